"""Jobs whose items arrive one a line: read as a stream, stored as they come, never held whole."""
