"""The models that are served: published by workers, read by front ends that have no torch."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, text

from core.model_cards import ModelCard
from store import rows
from store.workers import ALIVE_SECONDS


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's card, and how many workers would score with it now."""

    card: ModelCard
    num_workers_ready: int


def publish(connection: Connection, card: ModelCard, tokenizer_json: bytes | None) -> None:
    """Write the card, over an older one of the same name."""
    connection.execute(
        text("""
            INSERT INTO model_cards AS m (name, card, tokenizer_json) VALUES (:name, CAST(:card AS jsonb), :tokenizer)
            ON CONFLICT (name) DO UPDATE SET card = excluded.card, tokenizer_json = excluded.tokenizer_json,
                                             published_at = now()
             WHERE (m.card, m.tokenizer_json) IS DISTINCT FROM (excluded.card, excluded.tokenizer_json)
        """),
        {"name": card.name, "card": rows.to_json(card), "tokenizer": tokenizer_json},
    )


def get(connection: Connection, name: str) -> ModelCard | None:
    """The card of that name."""
    card = connection.execute(text("SELECT card FROM model_cards WHERE name = :name"), {"name": name}).scalar()
    return None if card is None else msgspec.convert(card, ModelCard)


def list_all(connection: Connection) -> list[ServedModel]:
    """Every card, by name."""
    found = connection.execute(
        text("""
            SELECT m.card, (SELECT count(*) FROM workers w WHERE w.model = m.name AND w.state = 'ready'
                               AND w.heartbeat_at > now() - make_interval(secs => :alive)) AS num_ready
              FROM model_cards m ORDER BY m.name
        """),
        {"alive": ALIVE_SECONDS},
    )
    return [ServedModel(msgspec.convert(row.card, ModelCard), row.num_ready) for row in found]


def tokenizer_json(connection: Connection, name: str) -> bytes | None:
    """The ``tokenizer.json`` that was published with the card; None where the model's tokens are bytes."""
    data = connection.execute(
        text("SELECT tokenizer_json FROM model_cards WHERE name = :name"), {"name": name}
    ).scalar()
    return None if data is None else bytes(data)
