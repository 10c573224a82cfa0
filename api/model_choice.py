"""Which served model a request means: the one that it names, or the only one."""

from __future__ import annotations

from sqlalchemy import Connection

from api import texts
from core.errors import NotReady, Refused
from core.model_cards import ModelCard
from store import model_cards


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
