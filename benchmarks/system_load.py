"""What ``bench_system`` sends: W1 as token ids, or texts of W1's lengths, as jobs and as the engine's prompts.

W1 is ``workloads.shared_query``: 20 queries, 200 items each. It is sent again and again, each time with other ids or
words, up to ``VARIANTS`` of it in turn; a larger job begins again with the first, which is scored long before.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import workloads
import zstandard
from system_model import Model

from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.templates import NONE
from worker.engine.protocol import Prompts
from worker.prompts import prepare
from worker.serving import Served

VARIANTS = 10
GROUP_ITEMS = 200
NUM_QUERIES = 20
SUFFIX_TOKENS = 10  # of a W1 item, in a template's place
QUERY_WORDS = 35  # with Qwen3's template the prefix has W1's 96 tokens, and a prompt as many as W1's
SHIFT = 101  # between variants
COMMON_WORD = re.compile("Ġ[a-z]{3,9}")  # a token of a byte-level vocabulary that is a word with its blank
OWN_WORDS = 5_000  # made up where the vocabulary has no words


@dataclass(frozen=True)
class Group:
    """A query and its items: token ids or texts."""

    query: Any
    items: list[Any]

    def first(self, num_items: int) -> Group:
        return replace(self, items=self.items[:num_items])


class Load:
    """Jobs of one kind. ``head`` is the job's object: the first line of its upload, or a small job but for its items."""

    def __init__(self, name: str, head: dict[str, Any]) -> None:
        self.name, self.head = name, head

    def group(self, number: int) -> Group:
        """The number-th group of a job that never ends."""
        raise NotImplementedError

    def groups(self, num_items: int) -> Iterator[Group]:
        """The groups of a job of so many items."""
        for number in range(-(-num_items // GROUP_ITEMS)):
            yield self.group(number).first(num_items - number * GROUP_ITEMS)

    def upload(self, num_items: int) -> Iterator[bytes]:
        """The job as a compressed body, each piece made once."""
        yield _compressed(self.head)
        for number in range(-(-num_items // GROUP_ITEMS)):
            room = num_items - number * GROUP_ITEMS
            yield self._piece(number % (NUM_QUERIES * VARIANTS), min(room, GROUP_ITEMS))

    @lru_cache(maxsize=NUM_QUERIES * VARIANTS + 2)  # noqa: B019 - a load lives as long as the benchmark
    def _piece(self, number: int, num_items: int) -> bytes:
        group = self.group(number).first(num_items)
        return _compressed({"query": group.query, "items": group.items})

    def small(self, number: int, num_items: int) -> dict[str, Any]:
        """A small job: items of one query, others for each number."""
        group = self.group(number)
        first = num_items * (number // (NUM_QUERIES * VARIANTS)) % (GROUP_ITEMS - num_items + 1)
        return self.head | {"query": group.query, "items": group.items[first : first + num_items]}

    def prompts(self, num_items: int, served: Served) -> Iterator[Prompts]:
        """The same items as a worker hands them to its batcher, a chunk at a time."""
        card = served.card
        template = card.template(self.head["template"])
        labels = self.head.get("label_token_ids") or card.default_label_token_ids
        parameters = JobParameters(card.name, None, labels, template=template, instruction=template.instruction)
        for chunk in cut(self._items(num_items)):
            yield prepare(parameters, chunk.payload, served.tokenizer, max_tokens=card.max_tokens).prompts

    def _items(self, num_items: int) -> Iterator[NewItem]:
        for number, group in enumerate(self.groups(num_items), 1):
            query = _content(group.query)
            for item in group.items:
                yield NewItem(_content(item), query=query, query_no=number)


class TokenLoad(Load):
    """W1 itself."""

    def __init__(self, model: Model) -> None:
        super().__init__("token ids", {"template": NONE.name, "label_token_ids": list(model.label_ids)})
        self._groups = workloads.shared_query()
        self._num_ids = model.num_ids

    def group(self, number: int) -> Group:
        base = self._groups[number % NUM_QUERIES]
        shift = SHIFT * (number // NUM_QUERIES % VARIANTS)
        return Group(self._ids(base.prefix, shift), [self._ids(item, shift) for item in base.items])

    def _ids(self, ids: workloads.Ids, shift: int) -> list[int]:
        return ((ids + shift) % self._num_ids).tolist()


class TextLoad(Load):
    """As many words as W1's items have tokens, each a token of its own where the model's tokenizer knows such words."""

    def __init__(self, model: Model) -> None:
        super().__init__("texts", {"template": model.template.name})
        self._words = _words(model)
        self._lengths = [
            [len(item) - SUFFIX_TOKENS for item in group.items]
            for group in islice(workloads.shared_query(), NUM_QUERIES)
        ]

    def group(self, number: int) -> Group:
        number %= NUM_QUERIES * VARIANTS
        draw = random.Random(number)
        query = " ".join(draw.choices(self._words, k=QUERY_WORDS))
        items = [" ".join(draw.choices(self._words, k=length)) for length in self._lengths[number % NUM_QUERIES]]
        return Group(query, items)


def _words(model: Model) -> list[str]:
    if model.tokenizer_file is not None:
        vocabulary = msgspec.json.decode(model.tokenizer_file.read_bytes())["model"]["vocab"]
        return sorted(word[1:] for word in vocabulary if COMMON_WORD.fullmatch(word))
    draw = random.Random(1)
    return [f"{draw.randrange(1 << 20):05x}" for _ in range(OWN_WORDS)]


def _content(value: Any) -> str | bytes:
    return value if isinstance(value, str) else np.array(value, np.int32).tobytes()


def _compressed(line: dict[str, Any]) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(msgspec.json.encode(line) + b"\n")
