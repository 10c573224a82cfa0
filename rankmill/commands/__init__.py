"""The commands, one file a group. Each imports what it runs only when it runs."""
