"""Which served model a request means: the one that it names, or the only one."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from api import texts
from core.errors import NotReady, Refused
from core.model_cards import ModelCard
from store import model_cards
from store.database import Database

KEPT_SECONDS = 1.0


class ModelChoice:
    """Finds the card, and keeps it for a second. What is not served is looked up each time. Any thread may ask.

    A card that is published anew is taken from a second later: as if the request had come before it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[str, tuple[float, ModelCard]] = {}  # as many as there are cards
        self._only: tuple[float, str] | None = None  # the name of the only one

    def card(self, name: str | None) -> ModelCard:
        """The model's card. Raises as ``choose`` does."""
        began = time.monotonic()
        wanted = self._only[1] if name is None and self._only is not None and began < self._only[0] else name
        kept = None if wanted is None else self._kept.get(wanted)
        if kept is not None and began < kept[0]:
            return kept[1]
        with self._database.autocommit() as connection:
            card = choose(connection, name)
        until = began + KEPT_SECONDS
        self._kept[card.name] = until, card
        if name is None:
            self._only = until, card.name
        return card


def choose(connection: Connection, name: str | None) -> ModelCard:
    """The model's card. Raises Refused, listing what is served, and NotReady while nothing is."""
    if name is not None:
        texts.check(name, "model")
        if (card := model_cards.get(connection, name)) is not None:
            return card
    served = {served.card.name: served.card for served in model_cards.list_all(connection)}
    if not served:
        raise NotReady("no worker has published a model yet")
    if name is None and len(served) == 1:
        return next(iter(served.values()))
    names = ", ".join(served)
    if name is None:
        raise Refused("model_required", f"several models are served; name one of: {names}", field="model")
    raise Refused("unknown_model", f"there is no model {name!r}; served are: {names}", field="model")
