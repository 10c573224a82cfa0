"""Lengths of prompts: a query that leaves no room is refused at submit; items that need cutting are the worker's."""

from __future__ import annotations

from api.questions import Question
from api.readers import Reader
from core.chunks import TOKEN_BYTES, Content
from core.errors import Refused
from store.prompting import Values


class LengthRules:
    """Measures what a model has to read for one question, in tokens.

    Of a target all but its last token: that one is asked for and never read.
    """

    def __init__(self, reader: Reader, question: Question) -> None:
        self._reader = reader
        self._question = question
        self._prompter = reader.prompter(question.template)
        self._num_least = self.num_tokens("", "")

    @property
    def max_tokens(self) -> int:
        """What the model takes."""
        return self._reader.card.max_tokens

    def check_query(self, query: Content | None, field: str, item: int | None) -> None:
        """Raises Refused where the query does not fit even with an empty item."""
        if not self.may_exceed(query, ""):
            return
        num_tokens = self.num_tokens(query, "" if isinstance(query, str) else b"")
        if num_tokens > self.max_tokens:
            targets = ", all but the last token of its longest target included" if self._question.is_likelihood else ""
            raise Refused(
                "query_too_long",
                f"a prompt with this query and an empty item has {num_tokens:,} tokens{targets}; the model takes"
                f" {self.max_tokens:,}",
                field=field,
                item=item,
            )

    def may_exceed(self, query: Content | None, item: Content) -> bool:
        """Whether it is worth counting: a token is at least a byte of text. What normalisation adds, workers see."""
        num_bytes = _num_bytes(query) * (2 if self._question.is_likelihood else 1) + _num_bytes(item)
        return self._num_least + num_bytes > self.max_tokens

    def num_tokens(self, query: Content | None, item: Content) -> int:
        """Tokens of the prompt and of the longest target after it, as far as they are read."""
        query = b"" if query is None and isinstance(item, bytes) else query or ""
        targets = self._question.targets(query if isinstance(query, str) else "")
        num_target = max((len(self._reader.tokenizer.encode_texts([text])[0]) - 1 for text in targets), default=0)
        if isinstance(query, bytes) and isinstance(item, bytes):
            return (len(query) + len(item)) // TOKEN_BYTES + num_target
        assert isinstance(query, str), "query and item are of one kind"
        assert isinstance(item, str), "query and item are of one kind"
        (ids,) = self._prompter.prompts([Values(query, item, self._question.instruction)])
        return len(ids) + num_target


def _num_bytes(content: Content | None) -> int:
    """Bytes of UTF-8; of token ids the bytes that they take here, which is more than there are tokens."""
    return len(content.encode() if isinstance(content, str) else content or b"")
