"""Templates: how a query, an item and an instruction become one prompt.

A template is text with slots: ``{query}``, ``{item}``, ``{instruction}``; ``{{`` and ``}}`` stand for braces. ``{|}`` is
a seam: what lies on its two sides is tokenised apart, where a model's authors do so. The template's own words may hold
special tokens; what fills a slot is text and nothing else, whatever it contains.

Knows strings. How they become token ids is the tokenizer's matter (``store.prompting``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from core.errors import Refused

SLOTS = ("query", "item", "instruction")
SEAM = "|"
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one of ``SLOTS``."""

    name: str


Piece = str | Slot


@dataclass(frozen=True, slots=True)
class Template:
    """A named way to ask. ``labels`` are the answers that it asks for, where it asks for certain ones.

    ``target`` is what follows the prompt when its likelihood is asked for, with the slot ``{query}`` at most; it is
    tokenised apart from the prompt, which all targets share. ``is_chat``: the text came of a chat template and brings its own BOS; the tokenizer's is not put before it.
    """

    name: str
    text: str
    labels: list[str] | None = None
    instruction: str = ""
    target: str | None = None
    is_chat: bool = False

    @property
    def version(self) -> str:
        """Changes whenever the same query and item would make another prompt."""
        digest = sha256(f"{self.text}\0{self.instruction}\0{self.target}\0{self.is_chat}".encode()).hexdigest()
        return f"{self.name}/{digest[:12]}"

    @property
    def puts_item_first(self) -> bool:
        """Whether the item comes before everything else that fills a slot."""
        slots = [piece for section in sections(self.text) for piece in section if isinstance(piece, Slot)]
        return slots[0] == Slot("item")

    @property
    def needs_query(self) -> bool:
        """Whether an item without a query makes no prompt."""
        return any(piece == Slot("query") for section in sections(self.text) for piece in section)


NONE = Template("none", "{query}{item}")
NONE_ITEM_FIRST = Template("none", "{item}{query}")


@lru_cache(maxsize=256)
def sections(text: str) -> list[list[Piece]]:
    """A template's text as what is tokenised together: at each seam a new section begins. The lists are shared.

    Raises Refused for an unknown slot, a single brace, or a template without an item.
    """
    found: list[list[Piece]] = [[]]
    for piece in _pieces(text):
        if piece == Slot(SEAM):
            found.append([])
        elif isinstance(piece, str) and found[-1] and isinstance(found[-1][-1], str):
            found[-1][-1] += piece
        else:
            found[-1].append(piece)
    if not any(piece == Slot("item") for section in found for piece in section):
        raise Refused("bad_template", "a template has the slot {item}", field="template")
    return [section for section in found if section]


def sections_of_target(text: str) -> list[Piece]:
    """A target's text as words and the slot ``{query}``, which is all that it may hold."""
    return list(_pieces(text))


def fill(section: list[Piece], values: Mapping[str, str]) -> str:
    """A section with its slots filled, once: what looks like a slot inside a value stays as it is."""
    return "".join(piece if isinstance(piece, str) else values[piece.name] for piece in section)


def _pieces(text: str) -> Iterator[Piece]:
    end = 0
    for match in _PIECE.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        end = match.end()
        if match[0] in ("{{", "}}"):
            yield match[0][0]
        elif match[1] in (*SLOTS, SEAM):
            yield Slot(match[1])
        else:
            raise Refused(
                "bad_template",
                f"{match[0]!r} at character {match.start()} of the template is no slot; there are"
                f" {', '.join('{' + name + '}' for name in SLOTS)}, and {{{{ and }}}} for braces",
                field="template",
            )
    if end < len(text):
        yield text[end:]
