"""How many prompt tokens a job has, counted as its worker will: for jobs that are small enough to count at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from api import likelihood
from api.readers import Reader
from core.chunks import TOKEN_BYTES, Content, NewChunk
from core.jobs import JobParameters
from store.prompting import Values

MAX_TOKENS = 500_000  # as estimated: a second or two with the slowest tokenizer


class PromptCount:
    """``num_tokens`` so far: of each prompt once, and of each target after it. None once the job is not counted.

    It is not where it is large, nor where a prompt is too long for the model: its worker cuts or fails that one.
    """

    def __init__(self, parameters: JobParameters, reader: Reader) -> None:
        self.num_tokens: int | None = 0
        self._parameters = parameters
        self._reader = reader
        self._prompter = reader.prompter(parameters.template)
        self._targets: dict[str, list[int]] = {}  # tokens of the targets, by the query that they are made of
        self._num_estimated = 0

    def add(self, chunk: NewChunk) -> None:
        """Count a chunk's prompts."""
        self._num_estimated += chunk.num_tokens_estimate
        if self.num_tokens is None or self._num_estimated > MAX_TOKENS:
            self.num_tokens = None
            return
        prompts = [(num, self._target_tokens(query)) for num, query in self._prompts(chunk)]
        longest = max((num + max(targets, default=1) - 1 for num, targets in prompts), default=0)
        if longest > self._reader.card.max_tokens:
            self.num_tokens = None
        else:
            self.num_tokens += sum(num + sum(targets) for num, targets in prompts)

    def _prompts(self, chunk: NewChunk) -> Iterator[tuple[int, str]]:
        """The length of each prompt, in no order, and its query where that is text."""
        texts = []
        for query, item in self._asked(chunk):
            if isinstance(item, str):
                assert isinstance(query, str), "query and item are of one kind"
                texts.append(Values(query, item, self._parameters.instruction))
            else:
                yield (len(query) + len(item)) // TOKEN_BYTES, ""
        for values, ids in zip(texts, self._prompter.prompts(texts), strict=True):
            yield len(ids), values.query

    def _target_tokens(self, query: str) -> list[int]:
        """The length of each target; none where labels are asked for."""
        parameters = self._parameters
        if parameters.method == "label":
            return []
        if parameters.target is not None or parameters.labels is not None:
            query = ""  # the same for all
        if query not in self._targets:
            texts = [parameters.target] if parameters.target is not None else parameters.labels
            texts = texts or [likelihood.own_target(parameters.template, query)]
            self._targets[query] = [len(ids) for ids in self._reader.tokenizer.encode_texts(texts)]
        return self._targets[query]

    def _asked(self, chunk: NewChunk) -> Iterator[tuple[Content, Content]]:
        """Query and item of each prompt, both of one kind. An item that came with an error is asked nothing."""
        payload, query = chunk.payload, self._parameters.query
        own = array("i", query).tobytes() if isinstance(query, list) else query
        queries = {0: own, **(payload.queries or {})}
        for place, item in enumerate(payload.contents):
            if payload.errors is None or payload.errors[place] is None:
                found = queries[0 if payload.query_nos is None else payload.query_nos[place]]
                yield (type(item)() if found is None else found), item
