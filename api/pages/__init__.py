"""The dashboard: pages for people, made on the server from the ledger. They do nothing that the API can't do."""
