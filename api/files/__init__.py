"""Files, as OpenAI's clients upload and read them: the lines of batches, and their answers."""
