"""Real servers for every test that asks: one Postgres and one Valkey a session, a fresh database a test."""

from __future__ import annotations

import os
from itertools import count
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from rankmill.embedded.postgres import Postgres
from rankmill.embedded.valkey import Valkey
from store.database import Database
from store.migrate import migrate

TEMPLATE = "rankmill_template"
numbers = count()


def pytest_make_parametrize_id(val, argname):
    """Bytes name no test: a compressed parameter may hold the time, and two processes would collect different names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def _settings_come_from_the_test_alone():
    """A developer's own ``RANKMILL_`` variables never decide how a test ends."""
    for name in [name for name in os.environ if name.startswith("RANKMILL_")]:
        del os.environ[name]


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory):
    """The address of an embedded server's own database; ``rankmill_template`` on it is migrated."""
    folder = tmp_path_factory.mktemp("postgres")
    server = Postgres(folder, output=folder / "postgres.log", fsync=False)
    server.start()
    try:
        _execute(server.url, f"CREATE DATABASE {TEMPLATE}")
        migrate(server.url_of(TEMPLATE))
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory):
    """The address of an embedded server, shared by the session: ask for ``redis_url`` instead."""
    folder = tmp_path_factory.mktemp("valkey")
    server = Valkey(folder, output=folder / "valkey.log")
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def empty_database_url(postgres_url):
    """The address of a new database with nothing in it."""
    yield from _new_database(postgres_url, template="template1")


@pytest.fixture
def database_url(postgres_url):
    """The address of a new database, migrated."""
    yield from _new_database(postgres_url, template=TEMPLATE)


@pytest.fixture
def database(database_url):
    """``Database`` on a new, migrated database."""
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def redis_url(valkey_url):
    """The address of a Valkey with nothing in it."""
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
    return valkey_url


def _new_database(server_url, *, template):
    name = f"test_{next(numbers)}"
    _execute(server_url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
    _execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(url, statement):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
