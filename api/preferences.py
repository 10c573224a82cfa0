"""The Prefer header (RFC 7240), of which we know ``wait``. What we can't read is ignored, as the RFC says."""

from __future__ import annotations

import re

MAX_WAIT_SECONDS = 60
_WAIT = re.compile(r"wait\s*=\s*\"?(\d{1,9})\"?", re.IGNORECASE)


def wait_seconds(prefer: str) -> int:
    """How long the client would wait, at most a minute; 0 where it does not say so. The first of several counts."""
    for preference in prefer.split(","):
        found = _WAIT.fullmatch(preference.partition(";")[0].strip())
        if found:
            return min(int(found[1]), MAX_WAIT_SECONDS)
    return 0
