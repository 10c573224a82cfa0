"""The ways in which items reach the ledger, and front ends with limits of their own to try them on."""

from __future__ import annotations

import json

import httpx
from cards import FAKE_CARD
from sqlalchemy import text

from store import model_cards

NDJSON = {"Content-Type": "application/x-ndjson"}
ITEM = "x" * 36  # 10 tokens as estimated, its own among them


def front_ends(serving, api_settings, database, database_url):
    """Yields a function that serves a front end with some settings over that ledger, and hands on a client of it."""
    clients = []
    with database.begin() as connection:
        model_cards.publish(connection, FAKE_CARD, None)

    def limited(**changes):
        settings = api_settings.model_copy(update={"database_url": database_url, **changes})
        block = serving(settings)
        client = httpx.Client(base_url=block.__enter__(), timeout=20, trust_env=False)
        clients.append((block, client))
        return client

    yield limited
    for block, client in clients:
        client.close()
        block.__exit__(None, None, None)


def num_rows(database):
    """How many jobs there are, and how many chunks of items."""
    with database.begin() as connection:
        return [connection.execute(text(f"SELECT count(*) FROM {t}")).scalar() for t in ("jobs", "chunk_inputs")]


def body_of(num_items, **job):
    return b"".join(json.dumps(each).encode() + b"\n" for each in [job, *[ITEM] * num_items])


def as_json(api, num_items):
    return api.post("/v1/jobs", json={"items": [ITEM] * num_items})


def as_lines(api, num_items):
    return api.post("/v1/jobs", content=body_of(num_items), headers=NDJSON)


def as_scoring(api, num_items):
    body = {"query": "", "items": [ITEM] * num_items, "label_token_ids": [1, 2]}
    return api.post("/generative_scoring", json=body)


WAYS = {"json": as_json, "lines": as_lines, "generative scoring": as_scoring}


def assert_refused(answer, status, code, *words):
    assert answer.status_code == status, answer.text
    problem = answer.json()
    if "error" in problem and isinstance(problem["error"], dict):
        detail = problem["error"]["message"]
        assert problem["error"]["code"] == status
    else:
        detail = problem["detail"]
        assert problem["code"] == code
    assert all(word in detail for word in words), detail
    assert 1 <= int(answer.headers["Retry-After"]) <= 3_600
