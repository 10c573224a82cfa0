"""State: every SQL statement, the Celery client, and hints that leave after the commit."""
