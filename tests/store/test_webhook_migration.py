"""Deliveries from before there were endpoints get theirs."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.migrate import alembic_config, migrate


def test_deliveries_from_before_get_an_endpoint_for_each_address(empty_database_url):
    command.upgrade(alembic_config(empty_database_url), "0003")
    database = Database(empty_database_url)
    with database.begin() as connection:
        for url in ("https://a.example/", "https://a.example/", "https://b.example/"):
            connection.execute(
                text("""
                    WITH job AS (
                        INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, is_small)
                        VALUES (:client_id, 'queued', 'fake', '{}', 'none/1', 1, true) RETURNING id)
                    INSERT INTO deliveries (job_id, client_id, event, url, body)
                    SELECT id, :client_id, 'job.completed', :url, '{}' FROM job
                """),
                {"client_id": DEFAULT_CLIENT_ID, "url": url},
            )
    migrate(empty_database_url)
    with database.begin() as connection:
        found = connection.execute(
            text("SELECT e.url, count(*) FROM deliveries d JOIN webhook_endpoints e ON e.id = d.endpoint_id GROUP BY 1")
        )
        assert dict(map(tuple, found)) == {"https://a.example/": 2, "https://b.example/": 1}
    database.dispose()
