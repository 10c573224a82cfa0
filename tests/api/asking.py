"""Requests read as the front end reads them, for one model, without a front end."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from api.readers import Reader
from api.requests import JobRequest
from api.submissions import Limits, to_submission
from core.errors import Refused
from store.prompting import Values

LIMITS = Limits(max_items=1_000, max_item_bytes=100_000, default_expires_seconds=3_600)


class Asking:
    """What becomes of requests for the reader's model."""

    def __init__(self, reader):
        self.reader = reader

    def with_card(self, **changes):
        """The same for a model whose card differs in this."""
        return Asking(Reader(replace(self.reader.card, **changes), self.reader.tokenizer))

    def job(self, items=("a",), **fields):
        """What is stored of the job."""
        request = JobRequest(items=list(items), **fields)
        return to_submission(request, reader=self.reader, client_id=UUID(int=1), limits=LIMITS).job

    def parameters(self, items=("a",), **fields):
        """The job's parameters."""
        return self.job(items, **fields).parameters

    def refusal(self, items=("a",), **fields):
        """Why it is refused."""
        with pytest.raises(Refused) as refused:
            self.job(items, **fields)
        return refused.value

    def fault(self, items=("a",), **fields):
        """The code of the refusal, and the field at fault."""
        refusal = self.refusal(items, **fields)
        return refusal.code, refusal.field

    def num_tokens(self, query, template):
        """Tokens of a prompt with an empty item."""
        (ids,) = self.reader.prompter(template).prompts([Values(query, "", template.instruction)])
        return len(ids)
