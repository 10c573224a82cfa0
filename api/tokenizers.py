"""The tokenizers of the served models, one a process: read from the ledger the first time that a label needs one."""

from __future__ import annotations

from core.model_cards import ModelCard
from store import model_cards
from store.database import Database
from store.tokenizer import Tokenizer, tokenizer_for


class Tokenizers:
    """Keeps one tokenizer a model name, and another one once the card has another revision. Any thread may ask."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[str, tuple[ModelCard, Tokenizer]] = {}

    def of(self, card: ModelCard) -> Tokenizer:
        """The card's tokenizer. Two threads that both find it missing read it twice, to the same end."""
        kept = self._kept.get(card.name)
        if kept is None or kept[0].revision != card.revision:
            with self._database.begin() as connection:
                data = model_cards.tokenizer_json(connection, card.name)
            kept = self._kept[card.name] = (card, tokenizer_for(card, data))
        return kept[1]
