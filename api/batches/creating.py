"""Creating a batch: checked, stored, and from then on moved on by some front end's processor. Runs in a thread."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from uuid import UUID

from api import idempotency, strict_json
from api.batches import requests
from api.batches.requests import file_not_found
from api.bodies import Body
from api.files.answers import name_of
from api.process import Process
from core.batches import Batch, NewBatch
from core.callback_rules import CallbackRules
from core.errors import Refused
from store import batches, files
from store.idempotency import Claim


def create(process: Process, client_id: UUID, body: Body, claim: Claim | None) -> Batch:
    """The batch, now or by an earlier request with the same key. Raises Refused for a request with any fault."""
    data = body.open()
    new = requests.read(strict_json.parse(data), callbacks=CallbackRules.of(process.settings))
    new = replace(new, client_id=client_id)
    if claim is not None:
        new = replace(new, idempotency_key=claim.key, body_sha256=sha256(data).digest())
    with process.database.begin() as connection:
        if claim is not None and (earlier := batches.find(connection, client_id, claim.key)) is not None:
            return _same(new, *earlier)
        file = files.get(connection, new.input_file_id, client_id=client_id)
        if file is None:
            raise file_not_found(name_of(new.input_file_id))
        if file.purpose != "batch":
            detail = f"the file's purpose is {file.purpose!r}; a batch is made from one with the purpose 'batch'"
            raise Refused("invalid_purpose", detail, field="input_file_id")
        created = batches.create(connection, new)
    if created is not None:
        return created
    assert claim is not None, "only a key is in the way"
    with process.database.begin() as connection:
        earlier = batches.find(connection, client_id, claim.key)
    if earlier is None:
        raise Refused("idempotency_key_in_use", "another request with this key is under way", status=409)
    return _same(new, *earlier)


def _same(new: NewBatch, earlier: Batch, body_sha256: bytes) -> Batch:
    if body_sha256 != new.body_sha256:
        detail = f"this {idempotency.HEADER} came with another request before: a new request wants a key of its own"
        raise Refused("idempotency_key_reused", detail, field=idempotency.HEADER)
    return earlier
