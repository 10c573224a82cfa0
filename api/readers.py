"""How the served models read texts: a tokenizer a model and a prompter a template, made once in a process."""

from __future__ import annotations

from threading import Lock

from core.model_cards import ModelCard
from core.templates import Slot, Template, sections
from store import label_tokens, model_cards
from store.database import Database
from store.prompting import Prompter
from store.tokenizer import Tokenizer, tokenizer_for


class Reader:
    """A served model's card, and how it reads what is sent to it. Any thread may ask."""

    def __init__(self, card: ModelCard, tokenizer: Tokenizer) -> None:
        self.card = card
        self.tokenizer = tokenizer
        self._prompters: dict[str, Prompter] = {}

    def prompter(self, template: Template) -> Prompter:
        """What makes the template's prompts."""
        return self._prompters.setdefault(template.version, Prompter(template, self.tokenizer))

    def label_tokens(self, text: str) -> list[int]:
        """The ids that the model would have to say for this text; a special token's name is no special token."""
        return label_tokens.label_tokens(self.tokenizer, text)

    def ends_open(self, template: Template) -> bool:
        """Whether a prompt may end inside a line, so that an answer may begin with a blank or without one.

        It does not where the template's own words end with white space or with a control token.
        """
        last = sections(template.text)[-1][-1]
        if isinstance(last, Slot):
            return True
        return not last[-1].isspace() and not last.endswith(tuple(self.tokenizer.control_tokens))


class Readers:
    """Keeps one reader a model name, and makes another one once the model has another card."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()  # a large tokenizer takes a second or two to read: once, not in every thread that asks
        self._kept: dict[str, Reader] = {}

    def of(self, card: ModelCard) -> Reader:
        """The card's reader."""
        with self._lock:
            kept = self._kept.get(card.name)
            if kept is None or kept.card != card:
                with self._database.begin() as connection:
                    data = model_cards.tokenizer_json(connection, card.name)
                kept = self._kept[card.name] = Reader(card, tokenizer_for(card, data))
            return kept
