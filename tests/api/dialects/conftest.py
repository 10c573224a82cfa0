"""One front end for the dialects' tests: a single served model, a reranker of bytes, and a worker that scores by a rule."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from cards import FAKE_CARD
from in_process_worker import logprob, working

from core.builtin_templates import PLAIN, QWEN3_RERANKER
from store import model_cards
from store.database import Database
from store.tokenizer import ByteTokenizer

CARD = replace(
    FAKE_CARD,
    name="reranker",
    max_tokens=1_024,
    default_template=QWEN3_RERANKER.name,
    default_label_token_ids=[ord("y"), ord("n")],
    templates=[*PLAIN, QWEN3_RERANKER],
)


@pytest.fixture(scope="session")
def ranking_settings(postgres_url, api_settings):
    """The settings of a front end whose ledger serves that one model."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE dialects TEMPLATE rankmill_template STRATEGY file_copy")
    url = urlsplit(postgres_url)._replace(path="/dialects").geturl()
    settings = api_settings.model_copy(update={"database_url": url})
    database = Database(url)
    with database.begin() as connection:
        model_cards.publish(connection, CARD, None)
    yield settings
    database.dispose()


@pytest.fixture(scope="session")
def ranking_ledger(ranking_settings):
    """Its database."""
    database = Database(ranking_settings.database_url)
    yield database
    database.dispose()


@pytest.fixture(scope="session")
def ranking_url(serving, ranking_settings):
    """Its address."""
    with serving(ranking_settings) as url:
        yield url


@pytest.fixture(scope="module")
def batcher(ranking_ledger, valkey_url):
    """The worker's batcher: its ``rule`` can be another one, and it keeps the prompts that it saw."""
    with working(ranking_ledger, valkey_url, CARD, ByteTokenizer()) as batcher:
        yield batcher


@pytest.fixture
def ranking(ranking_url, batcher):
    """An HTTP client of that front end, with a worker behind it whose rule is the usual one."""
    batcher.rule = logprob
    batcher.prompts.clear()
    with httpx.Client(base_url=ranking_url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
def post(ranking):
    """Post a body to a path."""

    def post(path, body, **fields):
        return ranking.post(path, json={**body, **fields})

    return post
