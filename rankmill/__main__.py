"""``python -m rankmill``: the command line, whatever the PATH says."""

from __future__ import annotations

from rankmill.cli import app

app(prog_name="rankmill")
