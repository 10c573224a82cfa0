"""API keys: how one is made, and what is kept of it. The key itself is kept nowhere."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256

KEY_BYTES = 32  # 256 bits: nobody guesses one, so a plain hash of it is enough
PREFIX_CHARACTERS = 7
LAST_CHARACTERS = 4

_KEY = re.compile(r"rk_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of a key: its hash, and as much of its text as a person needs to know it again."""

    sha256: bytes
    prefix: str
    last_four: str


def new_key() -> str:
    """A key that nobody had before: ``rk_`` and 43 characters that need no quoting anywhere."""
    return "rk_" + secrets.token_urlsafe(KEY_BYTES)


def is_key(text: str) -> bool:
    """Whether the text has a key's form."""
    return _KEY.fullmatch(text) is not None


def fingerprint(key: str) -> Fingerprint:
    """What is kept of it."""
    return Fingerprint(sha256(key.encode()).digest(), key[:PREFIX_CHARACTERS], key[-LAST_CHARACTERS:])
