"""Batches, as OpenAI's clients know them: a file of requests, answered line by line through the ledger."""
