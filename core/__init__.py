"""Rules: values and decisions. No I/O, no torch, nothing that knows of HTTP, SQL or a GPU."""
