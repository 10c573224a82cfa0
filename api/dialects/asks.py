"""What a body of another system's asks for: a job of ours, and how its results become that system's answer.

Nothing here waits or stores: the routes do, and so does whoever has many bodies at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np

from api.labels import MIN_LABELS
from api.lengths import LengthRules
from api.problems import Shape
from api.questions import Question
from api.readers import Reader
from api.requests import JobRequest
from api.submissions import Limits, Submission, to_submission
from core.errors import Refused
from core.results import ItemError, ItemResult
from core.templates import Template

Choose = Callable[[str | None], Reader]
"""The reader of the served model with that name; of the only one for None."""

_OURS = re.compile(r"items\[(\d+)\]\.(?:text|query)\b|\b(?:items|query|instruction|top_k)\b")


@dataclass(frozen=True, slots=True)
class Scored:
    """A job's results, all of them, in the order of its items."""

    id: UUID
    created_at: datetime
    model: str
    prompt_tokens: int
    cached_tokens: int
    items: list[ItemResult]

    @property
    def created(self) -> int:
        """In seconds since 1970."""
        return int(self.created_at.timestamp())


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one system is spoken to.

    ``names`` says what this system calls our fields (``items``, ``query`` and so on), and ``items.query`` where its
    queries are a list. ``read`` speaks this system's words by itself; ``refuse`` answers errors in its shape.
    """

    name: str
    read: Callable[[Any, Choose], Ask]
    refuse: Shape
    names: Mapping[str, str] = field(default_factory=dict)

    def ask(self, value: Any, choose: Choose) -> Ask:
        """What a parsed body asks for. Raises Refused in this dialect's words."""
        return self.read(value, choose)

    def submission(self, ask: Ask, client_id: UUID, limits: Limits) -> Submission:
        """The job to store. Raises Refused in this dialect's words, also for a prompt that may not be cut and is too long."""
        with self.speaking():
            return ask.submission(client_id, limits)

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Refusals that are raised inside, in our words, name fields as this system does."""
        try:
            yield
        except Refused as error:
            error.field = None if error.field is None else self._translate(error.field)
            error.detail = self._translate(error.detail)
            raise

    def _translate(self, text: str) -> str:
        def name(match: re.Match[str]) -> str:
            index, ours = match[1], match[0]
            if index is None:
                return self.names.get(ours, ours)
            kind = "items.query" if ours.endswith("query") else "items"
            return f"{self.names.get(kind, kind)}[{index}]"

        return _OURS.sub(name, text) if self.names else text


@dataclass(frozen=True, slots=True)
class Ask:
    """What one body asks for. ``request`` is None where it has no items and that is no fault: there is nothing to score.

    ``answer`` makes what is sent back, for msgspec to encode, of the results and the tokens cut off items, by index. ``template`` is taken instead of the one that the request
    names. ``dropped`` counts the tokens that were cut off items already, by index.
    """

    reader: Reader
    request: JobRequest | None
    answer: Callable[[Scored, Mapping[int, int]], Any]
    template: Template | None = None
    min_labels: int = MIN_LABELS
    needs_logprobs: bool = False
    dropped: Mapping[int, int] = field(default_factory=dict)

    def submission(self, client_id: UUID, limits: Limits) -> Submission:
        """The job to store. Raises Refused for a value that is wrong, or a prompt that is too long and may not be cut."""
        assert self.request is not None, "without items there is no job"
        made = to_submission(
            self.request,
            reader=self.reader,
            client_id=client_id,
            limits=limits,
            template=self.template,
            min_labels=self.min_labels,
        )
        if self.request.truncation == "error":
            _check_lengths(made, self.reader)
        return made

    def to_answer(self, scored: Scored) -> Any:
        """The answer. Raises Refused naming the first item that has no score."""
        for item in scored.items:
            if item.error is not None:
                is_long = item.error in (ItemError.TOO_LONG, ItemError.EMPTY_PROMPT)
                name = f"items[{item.index}]"
                raise Refused(
                    "item_failed", f"{name} has no score: {item.error}", status=400 if is_long else 500, field=name
                )
        return self.answer(scored, self.cuts(scored))

    def cuts(self, scored: Scored) -> dict[int, int]:
        """Tokens that were cut off each item that was cut, by index."""
        found = {item.index: item.tokens_dropped + self.dropped.get(item.index, 0) for item in scored.items}
        return {index: num_tokens for index, num_tokens in found.items() if num_tokens}


def score_of(item: ItemResult) -> float:
    """The score of an item that has one."""
    assert item.score is not None, "items without a score were refused before"
    return item.score


def _check_lengths(made: Submission, reader: Reader) -> None:
    """Raises Refused naming the first item whose prompt is longer than the model takes."""
    parameters = made.job.parameters
    question = Question(
        parameters.template,
        parameters.instruction,
        is_likelihood=parameters.method == "likelihood",
        target=parameters.target,
        labels=parameters.labels,
    )
    lengths = LengthRules(reader, question)
    query = parameters.query
    own = np.array(query, "<i4").tobytes() if isinstance(query, list) else query
    for chunk in made.chunks:
        payload = chunk.payload
        for place, item in enumerate(payload.contents):
            number = payload.query_nos[place] if payload.query_nos is not None else 0
            content = payload.queries[number] if number and payload.queries is not None else own
            if not lengths.may_exceed(content, item):
                continue
            num_tokens, name = lengths.num_tokens(content, item), f"items[{chunk.first_index + place}]"
            if num_tokens > lengths.max_tokens:
                raise Refused(
                    "query_too_long",
                    f"the prompt of {name} has {num_tokens:,} tokens; the model takes {lengths.max_tokens:,},"
                    " and nothing is cut here",
                    field=name,
                )
