"""Cursors: where a list goes on, as opaque text that is good for that list alone.

Each ends with a check on the rest: one that was changed, or cut and put together, is refused. It is no signature: a cursor
opens nothing, as every list shows its reader's own alone.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from uuid import UUID

from core.errors import Refused

CHECK_BYTES = 5
_RESULTS = struct.Struct(">B16sQ")  # kind and version, the job, the position
_LAST = struct.Struct(">B16s")  # kind and version, the last one that was listed
_RESULTS_1 = 0x11
_RANKING_1 = 0x12
_JOBS_1 = 0x21
_ENDPOINTS_1 = 0x31
_DELIVERIES_1 = 0x41


def results_cursor(job_id: UUID, position: int) -> str:
    """Go on with the job's results at ``position``."""
    return _encode(_RESULTS.pack(_RESULTS_1, job_id.bytes, position))


def results_position(cursor: str | None, job_id: UUID, *, num_items: int) -> int:
    """Where to go on; the beginning without a cursor. Raises Refused for what is not a cursor of this job."""
    if cursor is None:
        return 0
    data = _decode(cursor, _RESULTS.size)
    kind, job, position = _RESULTS.unpack(data)
    if kind != _RESULTS_1 or job != job_id.bytes or position > num_items:
        raise _invalid()
    return int(position)


def ranking_cursor(job_id: UUID, position: int) -> str:
    """Go on with the job's ranking behind the item at ``position``."""
    return _encode(_RESULTS.pack(_RANKING_1, job_id.bytes, position))


def ranking_position(cursor: str, job_id: UUID, *, num_items: int) -> int | None:
    """The position to go on behind; None for what is no cursor of a ranking. Raises Refused for another job's."""
    kind, job, position = _RESULTS.unpack(_decode(cursor, _RESULTS.size))
    if kind != _RANKING_1:
        return None
    if job != job_id.bytes or position >= num_items:
        raise _invalid()
    return int(position)


def jobs_cursor(last: UUID) -> str:
    """Go on with the jobs older than ``last``."""
    return _encode(_LAST.pack(_JOBS_1, last.bytes))


def jobs_before(cursor: str | None) -> UUID | None:
    """The job to go on after; None without a cursor. Raises Refused for what is not a cursor of this list."""
    return _before(_JOBS_1, cursor)


def endpoints_cursor(last: UUID) -> str:
    """Go on with the webhook endpoints older than ``last``."""
    return _encode(_LAST.pack(_ENDPOINTS_1, last.bytes))


def endpoints_before(cursor: str | None) -> UUID | None:
    """As ``jobs_before``."""
    return _before(_ENDPOINTS_1, cursor)


def deliveries_cursor(last: UUID) -> str:
    """Go on with the deliveries older than ``last``."""
    return _encode(_LAST.pack(_DELIVERIES_1, last.bytes))


def deliveries_before(cursor: str | None) -> UUID | None:
    """As ``jobs_before``."""
    return _before(_DELIVERIES_1, cursor)


def _before(kind: int, cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    found, last = _LAST.unpack(_decode(cursor, _LAST.size))
    if found != kind:
        raise _invalid()
    return UUID(bytes=last)


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data + _check(data)).rstrip(b"=").decode()


def _decode(cursor: str, num_bytes: int) -> bytes:
    try:
        data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[:num_bytes]
    except (binascii.Error, ValueError):
        raise _invalid() from None
    if len(data) != num_bytes or _encode(data) != cursor:
        raise _invalid()
    return data


def _check(data: bytes) -> bytes:
    return sha256(b"rankmill cursor" + data).digest()[:CHECK_BYTES]


def _invalid() -> Refused:
    detail = "the cursor is not one that this list gave out; begin without a cursor"
    return Refused("invalid_cursor", detail, status=400, field="cursor")
