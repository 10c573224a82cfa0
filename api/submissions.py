"""From a request to what the ledger stores: every check of a job's values, and no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from api import metadata, unsupported, webhook_urls
from api.contents import ContentRules
from api.items import ItemReader
from api.labels import LabelRules
from api.requests import JobRequest
from core import chunks
from core.chunks import NewChunk
from core.errors import Refused
from core.jobs import JobParameters, NewJob
from core.model_cards import ModelCard
from core.templates import NONE, NONE_ITEM_FIRST, Template


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings allow one job."""

    max_items: int
    max_item_bytes: int
    default_expires_seconds: int


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that nothing is wrong with, and its items, cut."""

    job: NewJob
    chunks: list[NewChunk]


def to_submission(
    request: JobRequest, *, card: ModelCard, labels: LabelRules, client_id: UUID, limits: Limits
) -> Submission:
    """Everything that is to be stored. Raises Refused at the first fault."""
    unsupported.check(request)
    _check_num_items(len(request.items), limits.max_items)
    contents = ContentRules(vocab_size=card.vocab_size, max_bytes=limits.max_item_bytes)
    query = None if request.query is None else contents.query(request.query, "query")
    label_token_ids = labels.resolve(request.labels, request.label_token_ids) or card.default_label_token_ids
    items = ItemReader(query=query, contents=contents, labels=labels, needs_labels=label_token_ids is None)
    job = NewJob(
        client_id=client_id,
        parameters=_parameters(request, card, label_token_ids or []),
        template_version=_template(request).version,
        metadata=metadata.check(request.metadata),
        webhook_url=webhook_urls.check(request.webhook_url),
        expires_in_seconds=request.expires_in_seconds or limits.default_expires_seconds,
    )
    query_bytes = 0 if query is None else len(query.encode() if isinstance(query, str) else query)
    return Submission(job, list(chunks.cut(items.read_all(request.items), query_bytes=query_bytes)))


def _check_num_items(num_items: int, max_items: int) -> None:
    if num_items == 0:
        raise Refused("no_items", "items is empty; a job has at least one item", field="items")
    if num_items > max_items:
        raise Refused(
            "too_many_items",
            f"items has {num_items:,} items; at most {max_items:,} are possible in one job",
            field="items",
        )


def _parameters(request: JobRequest, card: ModelCard, label_token_ids: list[int]) -> JobParameters:
    return JobParameters(
        model=card.name,
        query=request.query,
        label_token_ids=label_token_ids,
        labels=request.labels,
        template=_template(request),
        method=request.method,
        apply_softmax=request.apply_softmax,
        truncation=request.truncation,
        keep_inputs=request.keep_inputs,
    )


def _template(request: JobRequest) -> Template:
    return NONE_ITEM_FIRST if request.item_first else NONE
