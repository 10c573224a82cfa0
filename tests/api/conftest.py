"""The front end as it is served: uvicorn on a free port, real Postgres and Valkey, and a scorer in place of a worker."""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psycopg
import pytest
import redis
from api_limits import MAX_BODY_BYTES, MAX_ITEM_BYTES, MAX_ITEMS, PREFIX
from asking import Asking
from assets import asset
from cards import FAKE_CARD, QWEN3_CARD
from fake_scoring import score_chunk
from in_process_worker import working
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from api import model_choice
from api.readers import Reader
from api.server import server_for
from core.chunks import ChunkKey
from core.queues import small_queue
from core.settings import Settings
from store import jobs, model_cards, notices
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.tokenizer import JsonTokenizer

TABLES = ("jobs", "chunks", "chunk_inputs", "results", "deliveries", "idempotency_keys")


@pytest.fixture(autouse=True)
def _models_looked_up_each_time(monkeypatch):
    """What a test publishes is served at once, and nothing that another test has published."""
    monkeypatch.setattr(model_choice, "KEPT_SECONDS", 0.0)


@pytest.fixture(scope="session")
def ledger_url(postgres_url):
    """One database for all tests of the front end, with the fake model's card."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE api_tests TEMPLATE rankmill_template STRATEGY file_copy")
    url = urlsplit(postgres_url)._replace(path="/api_tests").geturl()
    database = Database(url)
    with database.begin() as connection:
        model_cards.publish(connection, FAKE_CARD, None)
    database.dispose()
    return url


@pytest.fixture(scope="session")
def ledger(ledger_url):
    """The same database, for looking and for scoring."""
    database = Database(ledger_url)
    yield database
    database.dispose()


@pytest.fixture(scope="session")
def api_settings(ledger_url, valkey_url):
    """Small limits, so that tests can reach them."""
    return Settings(
        database_url=ledger_url,
        redis_url=valkey_url,
        redis_prefix=PREFIX,
        api_port=0,
        max_body_bytes=MAX_BODY_BYTES,
        max_item_bytes=MAX_ITEM_BYTES,
        max_items=MAX_ITEMS,
        small_lane_per_client=100_000,  # other tests leave their jobs open
    )


@contextmanager
def serve(settings, found=None):
    """A served front end; its address. ``found`` gets its ``Process``."""
    server = server_for(settings)
    thread = threading.Thread(target=server.run, name="front end")
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        if found is not None:
            found.append(server.app.state.process)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def serving():
    """Serve another front end, with its own settings, for the length of a block."""
    return serve


@pytest.fixture(scope="session")
def _served(api_settings):
    found = []
    with serve(api_settings, found) as url:
        yield url, found[0]


@pytest.fixture(scope="session")
def api_url(_served):
    """The address of the served front end."""
    return _served[0]


@pytest.fixture
def front_end(_served):
    """What the front end's process holds."""
    return _served[1]


@pytest.fixture
def api(api_url):
    """An HTTP client of the front end."""
    with httpx.Client(base_url=api_url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
def another_model(ledger):
    """A second served model, with a tokenizer of words and no default labels; its name."""
    words = Tokenizer(WordLevel({"[unk]": 0, "maybe": 1, "yes": 2, " no": 3}, unk_token="[unk]"))
    words.pre_tokenizer = Split(" no", "isolated")
    card = replace(FAKE_CARD, name="words", vocab_size=4, tokenizer="json", default_label_token_ids=None)
    with ledger.begin() as connection:
        model_cards.publish(connection, card, words.to_str().encode())
    yield card.name
    with ledger.begin() as connection:
        connection.exec_driver_sql("DELETE FROM model_cards WHERE name = %s", (card.name,))


@pytest.fixture(scope="session")
def qwen3_tokenizer():
    """The tokenizer that Qwen3 and Qwen3-Reranker share."""
    return JsonTokenizer(asset("qwen3-tokenizer/tokenizer.json").read_bytes(), is_fast=False)


@pytest.fixture(scope="session")
def asking(qwen3_tokenizer):
    """Requests read for a model with that tokenizer, without a front end."""
    return Asking(Reader(QWEN3_CARD, qwen3_tokenizer))


@pytest.fixture(scope="module")
def qwen3(ledger, valkey_url, qwen3_tokenizer):
    """A served model with that tokenizer, and a worker in this process that scores by a rule; its batcher."""
    with ledger.begin() as connection:
        model_cards.publish(connection, QWEN3_CARD, asset("qwen3-tokenizer/tokenizer.json").read_bytes())
    with working(ledger, valkey_url, QWEN3_CARD, qwen3_tokenizer) as batcher:
        yield batcher
    with ledger.begin() as connection:
        connection.exec_driver_sql("DELETE FROM model_cards WHERE name = %s", (QWEN3_CARD.name,))


@pytest.fixture
def submit(api):
    """Post a job and expect it to be taken; the job as it was answered."""

    def submit(items=("a", "b"), **fields):
        answer = api.post("/v1/jobs", json={"items": list(items), **fields})
        assert answer.status_code == 202, answer.text
        return answer.json()

    return submit


@pytest.fixture
def num_rows(ledger):
    """How many rows each table holds."""

    def num_rows():
        with ledger.begin() as connection:
            return {table: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() for table in TABLES}

    return num_rows


@pytest.fixture
def score(ledger):
    """Score chunks of a job that was answered: all of them, or those with these numbers."""

    def score(job, *, chunk_nos=None, failing=()):
        with ledger.begin() as connection:
            every = connection.exec_driver_sql(
                "SELECT chunk_no FROM chunks WHERE job_id = %s ORDER BY 1", (job["id"],)
            ).scalars()
            numbers = list(every) if chunk_nos is None else chunk_nos
        for number in numbers:
            score_chunk(ledger, ChunkKey(UUID(job["id"]), number), failing=failing)

    return score


@pytest.fixture
def scorer(ledger, valkey_url):
    """A thread that takes the hints of small jobs from the queue, scores them and announces their ends."""
    stop = threading.Event()
    client = redis.Redis.from_url(valkey_url)
    queue = PREFIX + small_queue("fake")
    client.delete(queue)

    def run():
        while not stop.is_set():
            message = client.brpop([queue], timeout=0.1)
            if message is None:
                continue
            (job_id, chunk_no), _, _ = json.loads(base64.b64decode(json.loads(message[1])["body"]))
            score_chunk(ledger, ChunkKey(UUID(job_id), chunk_no))
            notices.announce(client, UUID(job_id), prefix=PREFIX)

    thread = threading.Thread(target=run, name="scorer")
    thread.start()
    yield
    stop.set()
    thread.join(20)
    client.close()


@pytest.fixture
def copies_of_results(ledger):
    """Give an ended job of one full chunk many more chunks with the same results."""

    def copies_of_results(job, *, num_chunks):
        columns = (
            "label_logprobs, label_offsets, prompt_tokens, cached_tokens, tokens_dropped, errors, item_ids,"
            " item_indexes, query_nos, num_succeeded, num_failed, prompt_tokens_total, cached_tokens_total, num_low_mass,"
            " calibrated, revision, dtype, template_version, engine_version, epoch"
        )
        with ledger.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate, state)"
                " SELECT job_id, n, n * 1000, num_items, 1, state FROM chunks, generate_series(1, %s) n"
                " WHERE job_id = %s",
                (num_chunks, job["id"]),
            )
            connection.exec_driver_sql(
                f"INSERT INTO results (job_id, chunk_no, first_index, num_items, {columns})"
                f" SELECT job_id, n, n * 1000, num_items, {columns} FROM results, generate_series(1, %s) n"
                " WHERE job_id = %s",
                (num_chunks, job["id"]),
            )

    return copies_of_results


@pytest.fixture
def stored_job(ledger):
    """The job with this id as the ledger has it."""

    def stored_job(job_id):
        with ledger.begin() as connection:
            return jobs.get(connection, UUID(job_id), client_id=DEFAULT_CLIENT_ID)

    return stored_job
