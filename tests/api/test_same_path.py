"""What another client owns and what nobody has take the same way: the same statements, and the same answer."""

from __future__ import annotations

from uuid import UUID

import pytest
from fake_scoring import score_chunk
from keyed import door
from sqlalchemy import event

from core.chunks import ChunkKey

UNKNOWN = "0192d5a0-0000-7000-8000-000000000000"
QUERIES = {"recover": {"since": "2026-01-01T00:00:00Z"}}


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    """A front end, and the statements that it has sent."""
    found, statements = [], []
    with door(lambda settings: serving(settings, found), api_settings, database, database_url) as entrance:
        event.listen(found[0].database.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
        entrance.statements = statements
        yield entrance


@pytest.fixture
def owned(entrance):
    """Ids of what one client has: an open job, an ended one with a webhook, its endpoint and its delivery."""
    api = entrance.client_of("one")
    open_job, ended = (
        api.post("/v1/jobs", json={"items": ["a"], "webhook_url": "https://receiver.example/"}).json() for _ in range(2)
    )
    score_chunk(entrance.database, ChunkKey(UUID(ended["id"]), 0), failing={0})
    (endpoint,) = api.get("/v1/webhook_endpoints").json()["items"]
    (delivery,) = api.get(f"/v1/webhook_endpoints/{endpoint['id']}/deliveries").json()["items"]
    return {"job_id": [open_job["id"], ended["id"]], "endpoint_id": [endpoint["id"]], "delivery_id": [delivery["id"]]}


def test_an_id_of_another_clients_and_one_of_nobodys_take_the_same_statements_and_get_the_same_answer(entrance, owned):
    api = entrance.client_of("two")
    seen = 0

    def ask(method, path):
        for _ in range(2):  # the first one may look the key up
            del entrance.statements[:]
            answer = api.request(method, path, params=QUERIES.get(path.rsplit("/", 1)[1]))
        return answer.status_code, answer.content, sorted(answer.headers), list(entrance.statements)

    def without_the_key(taken):
        *answer, statements = taken
        return [*answer, [each for each in statements if "api_keys" not in each]]

    for path, methods in api.get("/openapi.json").json()["paths"].items():
        for name in owned:
            if f"{{{name}}}" not in path:
                continue
            for method in methods:
                nobodys = without_the_key(ask(method, path.replace(f"{{{name}}}", UNKNOWN)))
                assert nobodys[0] == 404, (method, path)
                for each in owned[name]:
                    assert without_the_key(ask(method, path.replace(f"{{{name}}}", each))) == nobodys, (method, path)
                    seen += 1
    assert seen >= 18
