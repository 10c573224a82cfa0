"""Who may come in: keys, what they open, and how soon a revoked one opens nothing."""

from __future__ import annotations

import socket
import time
from uuid import UUID

import pytest
from fake_scoring import score_chunk
from keyed import add_key, door
from sqlalchemy import event, text

from api.batches import documents as batch_documents
from api.dialects import documents
from api.keyring import Keyring
from core.chunks import ChunkKey
from core.keys import fingerprint, new_key
from store import api_keys

OPEN = {"/livez", "/readyz"}
NDJSON = {"Content-Type": "application/x-ndjson"}
NOBODY = "rk_" + "A" * 43


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as found:
        yield found


@pytest.fixture
def entrance_for_others(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url, api_host="0.0.0.0") as found:
        yield found


def routes_of(api):
    paths = api.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def ask(api, method, path):
    return api.request(method, path.replace("{job_id}", str(UUID(int=1))))


def post(api, *items, **fields):
    answer = api.post("/v1/jobs", json={"items": list(items), **fields})
    assert answer.status_code == 202, answer.text
    return answer.json()


def test_without_any_key_everybody_on_loopback_is_the_default_client_and_a_key_is_not_looked_at(entrance):
    job = post(entrance.client(), "a")
    assert entrance.client(NOBODY).get(job["links"]["self"]).status_code == 200
    assert entrance.client().get("/v1/workers").status_code == 200


@pytest.mark.parametrize("key", [None, NOBODY, "rk_short", "x", "rk_" + "é" * 43])
def test_with_a_key_every_route_but_health_asks_for_one(entrance, key):
    add_key(entrance.database, "one")
    api = entrance.client()
    if key is not None:
        api.headers = [(b"authorization", b"Bearer " + key.encode())]
    for method, path in routes_of(api):
        answer = ask(api, method, path)
        if path in OPEN:
            assert answer.status_code in (200, 503), path
            continue
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        if path in documents.ROUTES:
            error = answer.json()["error"]
            assert isinstance(error, str) or error["code"] == 401
        elif f"{method.upper()} {path}" in batch_documents.ROUTES:
            assert answer.json()["error"]["code"] == ("key_required" if key is None else "invalid_key")
        else:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == ("key_required" if key is None else "invalid_key")


def test_the_scheme_of_the_header_is_bearer_in_any_case(entrance):
    key, _ = add_key(entrance.database, "one")
    api = entrance.client()
    for header, status in (
        (f"Bearer {key}", 200),
        (f"bearer {key}", 200),
        (f"Basic {key}", 401),
        (key, 401),
        (f"Bearer {key}x", 401),
    ):
        assert api.get("/v1/jobs", headers={"Authorization": header}).status_code == status, header


def test_where_others_listen_a_key_is_needed_before_there_is_one(entrance_for_others):
    assert entrance_for_others.client().get("/v1/jobs").status_code == 401
    assert entrance_for_others.client(NOBODY).get("/v1/jobs").status_code == 401
    assert entrance_for_others.client_of("one").get("/v1/jobs").status_code == 200


def test_the_body_of_who_may_not_come_in_is_not_waited_for_and_the_connection_is_closed(entrance):
    add_key(entrance.database, "one")
    host, port = entrance.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
        )
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_what_a_client_owns_is_to_others_as_if_it_were_not_there(entrance):
    mine, theirs = entrance.client_of("one"), entrance.client_of("two")
    open_job, ended = post(mine, "a"), post(mine, "b")
    score_chunk(entrance.database, ChunkKey(UUID(ended["id"]), 0), failing={0})
    before = [mine.get(job["links"]["self"]).json() for job in (open_job, ended)]
    unknown = str(UUID(int=1))
    for method, path in routes_of(mine):
        if "{job_id}" not in path:
            continue
        nothing = theirs.request(method, path.replace("{job_id}", unknown))
        assert nothing.status_code == 404
        for job in (open_job, ended):
            answer = theirs.request(method, path.replace("{job_id}", job["id"]))
            assert (answer.status_code, answer.content) == (404, nothing.content), (method, path)
            assert set(answer.headers) == set(nothing.headers)
    assert theirs.get("/v1/jobs").json()["items"] == []
    assert [mine.get(job["links"]["self"]).json() for job in (open_job, ended)] == before
    assert [job["id"] for job in mine.get("/v1/jobs").json()["items"]] == [ended["id"], open_job["id"]]


def test_two_keys_of_one_client_see_the_same_jobs(entrance):
    first, second = entrance.client_of("one"), entrance.client_of("one")
    assert second.get(post(first, "a")["links"]["self"]).status_code == 200


def test_workers_are_for_administrators(entrance):
    assert entrance.client_of("root", is_admin=True).get("/v1/workers").status_code == 200
    api = entrance.client_of("one")
    refused = api.get("/v1/workers")
    assert (refused.status_code, refused.json()["code"]) == (403, "admin_required")
    assert api.get("/v1/models").status_code == 200


def test_a_revoked_key_opens_nothing_within_a_second_and_the_last_one_opens_no_door(entrance):
    key, key_id = add_key(entrance.database, "one")
    api = entrance.client(key)
    assert api.get("/v1/jobs").status_code == 200
    with entrance.database.begin() as connection:
        assert api_keys.revoke(connection, key_id)
    revoked_at = time.monotonic()
    while api.get("/v1/jobs").status_code == 200:
        assert time.monotonic() - revoked_at < 1.2
    refused = api.get("/v1/jobs")
    assert (refused.status_code, refused.json()["code"]) == (401, "invalid_key")
    assert entrance.client().get("/v1/jobs").status_code == 401


def test_a_rotated_key_is_good_until_its_grace_is_over_and_the_new_one_at_once(entrance):
    old, old_id = add_key(entrance.database, "one", is_admin=True)
    job = post(entrance.client(old), "a")
    new = new_key()
    with entrance.database.begin() as connection:
        assert api_keys.rotate(connection, old_id, fingerprint(new), old_seconds=1.5)
    assert entrance.client(new).get(job["links"]["self"]).status_code == 200
    assert entrance.client(new).get("/v1/workers").status_code == 200
    assert entrance.client(old).get("/v1/jobs").status_code == 200
    time.sleep(2.6)
    assert entrance.client(old).get("/v1/jobs").status_code == 401
    assert entrance.client(new).get("/v1/jobs").status_code == 200


def test_a_key_is_looked_up_once_a_second_and_its_use_is_written_once_a_minute(entrance, serving):
    key, key_id = add_key(entrance.database, "one")
    api = entrance.client(key)

    def used_at():
        with entrance.database.begin() as connection:
            return connection.execute(text("SELECT last_used_at FROM api_keys WHERE id = :id"), {"id": key_id}).scalar()

    assert used_at() is None
    for _ in range(20):
        assert api.get("/v1/jobs").status_code == 200
    first = used_at()
    assert first is not None
    time.sleep(1.1)
    api.get("/v1/jobs")
    assert used_at() == first
    with entrance.database.begin() as connection:
        connection.execute(text("UPDATE api_keys SET last_used_at = last_used_at - interval '61 s'"))
    time.sleep(1.1)
    api.get("/v1/jobs")
    assert used_at() > first


def test_an_answer_from_the_keyring_asks_nobody(database, api_settings):
    key, _ = add_key(database, "one")
    ring, statements = Keyring(api_settings, database), []
    event.listen(database.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    assert ring.kept(f"Bearer {key}") is None
    caller = ring.look(f"Bearer {key}")
    num_statements = len(statements)
    assert num_statements > 0
    assert all(ring.kept(f"Bearer {key}") == caller for _ in range(100))
    assert len(statements) == num_statements


def test_a_client_has_no_more_open_jobs_than_its_row_allows(entrance):
    api, other = entrance.client_of("one", max_open_jobs=2), entrance.client_of("two")
    jobs = [post(api, "a"), api.post("/v1/jobs", content=b'{}\n"b"\n', headers=NDJSON).json()]
    for answer in (
        api.post("/v1/jobs", json={"items": ["a"]}),
        api.post("/v1/jobs", content=b'{}\n"b"\n', headers=NDJSON),
    ):
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_open_jobs")
        assert int(answer.headers["retry-after"]) > 0
        assert "2 jobs of yours are open" in answer.json()["detail"]
    scoring = {"query": "", "items": ["a"], "label_token_ids": [0, 1]}
    assert api.post("/generative_scoring", json=scoring).json()["error"]["code"] == 429
    dry = api.post("/v1/jobs", json={"items": ["a"], "dry_run": True}).json()
    assert dry["refusal"]["code"] == "too_many_open_jobs"
    post(other, "a")
    time.sleep(1.1)
    score_chunk(entrance.database, ChunkKey(UUID(jobs[1]["id"]), 0), failing={0})
    time.sleep(1.1)
    jobs.append(post(api, "a"))
    retried = api.post(jobs[1]["links"]["self"] + "/retry")
    assert (retried.status_code, retried.json()["code"]) == (429, "too_many_open_jobs")
    assert api.post("/v1/jobs", json={"items": ["a"]}).status_code == 429
    api.post(jobs[0]["links"]["cancel"])
    time.sleep(1.1)
    post(api, "c")
    assert api.post("/v1/jobs", json={"items": ["a"]}).status_code == 429
