"""Targets: the texts whose likelihood after a prompt is asked for, as token ids."""

from __future__ import annotations

from core.chunks import Content
from core.jobs import JobParameters
from core.templates import fill, sections_of_target
from store.ragged import Ids
from store.tokenizer import Tokenizer


class Targets:
    """The targets of a job's items: one that the job names, each of its labels, or the template's own.

    They are tokenised apart from the prompt: every item is asked for the same tokens, and all share its prompt.
    """

    def __init__(self, parameters: JobParameters, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = parameters.template
        texts = [parameters.target] if parameters.target is not None else parameters.labels
        self._fixed = None if texts is None else self._encode(texts)
        self._by_query: dict[str, list[Ids]] = {}

    @property
    def num_values(self) -> int:
        """How many targets each item has."""
        return 1 if self._fixed is None else len(self._fixed)

    def of(self, query: Content | None) -> list[Ids]:
        """The targets to be scored after a prompt with this query, in order."""
        if self._fixed is not None:
            return self._fixed
        assert isinstance(query, str), "a template's own target is made of a query that is text"
        if query not in self._by_query:
            assert self._template.target is not None, "a job without targets has a template with one"
            text = fill(sections_of_target(self._template.target), {"query": query})
            self._by_query[query] = self._encode([text])
        return self._by_query[query]

    def _encode(self, texts: list[str]) -> list[Ids]:
        return self._tokenizer.encode_texts(texts)
