"""A browser's session: a signed text in a cookie that names a key and an end, and is neither the key nor its hash.

It is signed with what the ledger keeps of the key, so it ends with the key, holds on every front end, and is stored
nowhere. Signing out deletes the cookie.
"""

from __future__ import annotations

import binascii
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from uuid import UUID

SECONDS = 12 * 3_600

_PAYLOAD = struct.Struct(">B16sQ")  # version, the key's id, the end in seconds since 1970
_VERSION = 1
_SIGNATURE_BYTES = 32
_PURPOSE = b"rankmill session 1"


@dataclass(frozen=True, slots=True)
class Session:
    """A session as it was read, which says nothing yet: see ``is_signed``."""

    key_id: UUID
    ends_at: int
    signature: bytes

    def is_signed(self, key_sha256: bytes, now: float) -> bool:
        """Whether whoever had the key started this session, and it has not ended."""
        expected = _sign(_PAYLOAD.pack(_VERSION, self.key_id.bytes, self.ends_at), key_sha256)
        return hmac.compare_digest(expected, self.signature) and now < self.ends_at


def start(key_id: UUID, key_sha256: bytes, now: float) -> str:
    """The text of a session that begins now."""
    payload = _PAYLOAD.pack(_VERSION, key_id.bytes, int(now) + SECONDS)
    return urlsafe_b64encode(payload + _sign(payload, key_sha256)).rstrip(b"=").decode()


def read(text: str) -> Session | None:
    """The session that a cookie holds; None for what is no session's text."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    if len(data) != _PAYLOAD.size + _SIGNATURE_BYTES:
        return None
    version, key_id, ends_at = _PAYLOAD.unpack(data[: _PAYLOAD.size])
    return Session(UUID(bytes=key_id), ends_at, data[_PAYLOAD.size :]) if version == _VERSION else None


def _sign(payload: bytes, key_sha256: bytes) -> bytes:
    return hmac.digest(key_sha256, _PURPOSE + payload, "sha256")
