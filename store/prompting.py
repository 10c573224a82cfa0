"""A template and a tokenizer, put together: queries and items become token ids, in one way for all of Rankmill.

What a model's authors tokenise as one text is one text here: query and item are joined first, then tokenised. A
template's special tokens are read as such; the text in its slots never is.
"""

# ruff: noqa: N806 - arrays carry their shape in the name; B = prompts, T = tokens

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.templates import Piece, Slot, Template, sections
from store.ragged import Ids, Ragged
from store.tokenizer import Tokenizer

Part = Ids | list[Piece]
Column = Sequence[str]
"""Ids that are always the same, or a section whose slots are filled and which is then tokenised as one text."""


@dataclass(frozen=True, slots=True)
class Values:
    """What fills the slots of one prompt."""

    query: str
    item: str
    instruction: str


class Prompter:
    """Renders and tokenises the prompts of one template for one model."""

    def __init__(self, template: Template, tokenizer: Tokenizer) -> None:
        self.template = template
        self._tokenizer = tokenizer
        self._parts = self._compile(template)

    def prompts(self, values: Sequence[Values]) -> list[Ids]:
        """The token ids of each prompt."""
        columns = ([each.query for each in values], [each.item for each in values])
        return self.flat(*columns, [each.instruction for each in values]).rows()

    def flat(self, queries: Column, items: Column, instructions: Column) -> Ragged:
        """The token ids of all prompts, end to end: of each query with its item and its instruction."""
        slots = {"query": queries, "item": items, "instruction": instructions}
        if len(self._parts) == 1 and not isinstance(self._parts[0], np.ndarray):
            return self._column(self._parts[0], slots)
        columns = [
            [part] * len(items) if isinstance(part, np.ndarray) else self._column(part, slots).rows()
            for part in self._parts
        ]
        pieces = Ragged.of([piece for prompt in zip(*columns, strict=True) for piece in prompt])
        return Ragged(pieces.ids_T, pieces.lengths_B.reshape(len(items), len(columns)).sum(axis=1, dtype=np.int32))

    def cut(self, values: Values, *, max_tokens: int) -> tuple[Ids, int] | None:
        """The prompt with the longest head of its item that fits, and the tokens dropped; None where nothing fits.

        The item is cut where one of its own tokens ends, and the prompt is tokenised anew: at a seam the joint tokens
        may differ from the item's own, so that one round may not be enough.
        """
        ends = self._tokenizer.ends(values.item)
        (whole_T,) = self.prompts([values])
        ids_T, num_kept = whole_T, len(ends)
        while (excess := len(ids_T) - max_tokens) > 0:
            num_kept = _whole(ends, num_kept - excess)
            if num_kept == 0:
                return None
            shorter = Values(values.query, values.item[: ends[num_kept - 1]], values.instruction)
            (ids_T,) = self.prompts([shorter])
        return ids_T, len(whole_T) - len(ids_T)

    def _compile(self, template: Template) -> list[Part]:
        parts: list[Part] = []
        if self._tokenizer.bos and not template.is_chat:
            parts.append(np.array(self._tokenizer.bos, np.int32))
        for section in sections(template.text):
            parts += [self._part(piece) for piece in self._at_control_tokens(section)]
        return parts

    def _at_control_tokens(self, section: list[Piece]) -> list[list[Piece]]:
        """The section cut where its own words hold an added token: tokenizers cut there before anything else."""
        tokens = self._tokenizer.control_tokens
        if not tokens:
            return [section]
        pattern = re.compile(f"({'|'.join(map(re.escape, tokens))})")
        found: list[list[Piece]] = [[]]
        for piece in section:
            if isinstance(piece, Slot):
                found[-1].append(piece)
                continue
            for number, words in enumerate(pattern.split(piece)):
                if number % 2:  # the added token itself
                    found += [[words], []]
                elif words:
                    found[-1].append(words)
        return [each for each in found if each]

    def _part(self, section: list[Piece]) -> Part:
        words = [piece for piece in section if isinstance(piece, str)]
        if len(words) < len(section):
            return section
        return np.array(self._tokenizer.encode_control("".join(words)), np.int32)

    def _column(self, section: list[Piece], slots: Mapping[str, Column]) -> Ragged:
        """What the section is in each prompt; equal texts are tokenised once."""
        num_prompts = len(slots["item"])
        columns = [[piece] * num_prompts if isinstance(piece, str) else slots[piece.name] for piece in section]
        texts = list(map("".join, zip(*columns, strict=True)))
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        distinct = self._tokenizer.encode_flat(list(places))
        if len(places) == num_prompts:
            return distinct
        rows = distinct.rows()
        return Ragged.of([rows[places[text]] for text in texts])


def _whole(ends: Sequence[int], num_kept: int) -> int:
    """The number of leading tokens, at most ``num_kept``, after which no character is cut in two."""
    num_kept = max(num_kept, 0)
    while 0 < num_kept < len(ends) and ends[num_kept] == ends[num_kept - 1]:
        num_kept -= 1
    return 0 if num_kept and ends[num_kept - 1] == 0 else num_kept
