"""Clients from before they had limits of requests have none of their own; what the version before does goes on."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from store import clients
from store.database import Database
from store.migrate import alembic_config

BEFORE = "0006"
MADE_BEFORE = "INSERT INTO clients (name, weight, max_queued_tokens, max_open_jobs) VALUES (:name, 1, NULL, NULL)"


def limits(database):
    with database.begin() as connection:
        return {client.name: client.requests_per_minute for client in clients.list_all(connection)}


def make_as_before(database, name):
    with database.begin() as connection:
        connection.execute(text(MADE_BEFORE), {"name": name})


def test_clients_keep_the_settings_limit_through_an_upgrade_and_lose_their_own_in_a_downgrade(empty_database_url):
    config = alembic_config(empty_database_url)
    database = Database(empty_database_url)
    command.upgrade(config, BEFORE)
    make_as_before(database, "old")
    command.upgrade(config, "0007")
    make_as_before(database, "beside")  # by a process of the version before
    with database.begin() as connection:
        clients.ensure(connection, "new", requests_per_minute=9)
    assert limits(database) == {"default": None, "old": None, "beside": None, "new": 9}
    command.downgrade(config, BEFORE)
    with database.begin() as connection:
        assert sorted(connection.execute(text("SELECT name FROM clients")).scalars()) == sorted(
            ("default", "old", "beside", "new")
        )
    command.upgrade(config, "0007")
    assert set(limits(database).values()) == {None}
    database.dispose()
