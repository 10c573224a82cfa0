"""Other systems' ways to ask for scores: a file a dialect, over one ledger and one engine. docs/dialects.md compares them."""
