"""The header Idempotency-Key: the same request sent twice makes one job, and both are answered with it as it is now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import TypeVar
from uuid import UUID

from starlette.requests import Request

from core.errors import Refused
from core.jobs import Job
from store import idempotency, jobs
from store.database import Database
from store.idempotency import Claim

T = TypeVar("T")

HEADER = "Idempotency-Key"
MAX_CHARACTERS = 255


class Hashed:
    """Iterates over the pieces of a body and hashes what passes. ``digest`` reads what is left of it first."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._hash = sha256()

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._hash.update(piece)
            yield piece

    def digest(self) -> bytes:
        """The hash of the whole body. Raises what its reading raises."""
        for piece in self._pieces:
            self._hash.update(piece)
        return self._hash.digest()


def claim_of(request: Request, client_id: UUID) -> Claim | None:
    """The key that the request comes with. Raises Refused for one that is none."""
    sent = request.headers.getlist(HEADER)
    if not sent:
        return None
    (key, *others) = sent
    if others or not 0 < len(key) <= MAX_CHARACTERS or any(not " " <= character <= "~" for character in key):
        detail = f"{HEADER} is one text of 1 to {MAX_CHARACTERS} printable ASCII characters"
        raise Refused("invalid_idempotency_key", detail, status=400, field=HEADER)
    return Claim(client_id, key)


def once(database: Database, claim: Claim | None, body_sha256: Callable[[], bytes], make: Callable[[], T]) -> T | Job:
    """What ``make`` makes, or the job that was made with this key and the same body.

    Raises Refused where the key has made something of another body (422), or is about to (409). ``make`` takes the key in
    the transaction that writes the job: of any number of requests at once, one does.
    """
    if claim is None:
        return make()
    if (job := _earlier(database, claim, body_sha256)) is not None:
        return job
    try:
        return make()
    except Refused as error:
        if error.code != "idempotency_key_in_use" or (job := _earlier(database, claim, body_sha256)) is None:
            raise
        return job


def _earlier(database: Database, claim: Claim, body_sha256: Callable[[], bytes]) -> Job | None:
    with database.begin() as connection:
        earlier = idempotency.find(connection, claim)
    if earlier is None:
        return None
    if earlier.body_sha256 is None:
        raise idempotency.in_use()
    if body_sha256() != earlier.body_sha256:
        detail = f"this {HEADER} came with another request before: a new request wants a key of its own"
        raise Refused("idempotency_key_reused", detail, field=HEADER)
    with database.begin() as connection:
        return jobs.get(connection, earlier.job_id, client_id=claim.client_id)
