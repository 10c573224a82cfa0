"""From a request to what the ledger stores: every check of a job's values, and no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from api import metadata, questions, webhook_urls
from api.contents import ContentRules
from api.items import ItemIds, ItemReader, QueryNumbers, UsedQuery
from api.labels import MIN_LABELS, LabelRules
from api.lengths import LengthRules
from api.questions import Question
from api.readers import Reader
from api.requests import JobRequest
from core import chunks
from core.callback_rules import PUBLIC, CallbackRules
from core.chunks import NewChunk
from core.errors import Refused
from core.jobs import JobParameters, NewJob
from core.model_cards import ModelCard
from core.settings import Settings
from core.templates import Template

UNVERIFIED = (
    "unverified_model: the model has no known answers that it was checked against when its worker started; nothing but"
    " your own look at the scores says that its template and labels are right."
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings allow one job."""

    max_items: int
    max_item_bytes: int
    default_expires_seconds: int
    callbacks: CallbackRules = PUBLIC

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits in the settings."""
        return cls(
            settings.max_items, settings.max_item_bytes, settings.default_expires_seconds, CallbackRules.of(settings)
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that nothing is wrong with, and its items, cut."""

    job: NewJob
    chunks: list[NewChunk]


@dataclass(frozen=True, slots=True)
class Opening:
    """A job that nothing is wrong with, before its items: what reads them, and the bytes that each repeats."""

    job: NewJob
    reader: Reader
    items: ItemReader
    query_bytes: int


def to_submission(
    request: JobRequest,
    *,
    reader: Reader,
    client_id: UUID,
    limits: Limits,
    template: Template | None = None,
    min_labels: int = MIN_LABELS,
) -> Submission:
    """Everything that is to be stored. Raises Refused at the first fault.

    ``template`` is taken instead of the one that the request names.
    """
    if request.on_invalid != "refuse":
        raise Refused("conflicting_fields", "on_invalid goes with the lines of an NDJSON body", field="on_invalid")
    check_num_items(len(request.items), limits.max_items)
    opening = to_opening(
        request, reader=reader, client_id=client_id, limits=limits, template=template, min_labels=min_labels
    )
    cut = list(chunks.cut(opening.items.read_all(request.items), query_bytes=opening.query_bytes))
    return Submission(opening.job, cut)


def to_opening(
    request: JobRequest,
    *,
    reader: Reader,
    client_id: UUID,
    limits: Limits,
    template: Template | None = None,
    min_labels: int = MIN_LABELS,
    ids: ItemIds | None = None,
    queries: QueryNumbers | None = None,
) -> Opening:
    """Everything but the items. Raises Refused at the first fault."""
    card, max_bytes = reader.card, limits.max_item_bytes
    template = template or questions.choose_template(request, card)
    labels = LabelRules(
        vocab_size=card.vocab_size,
        encode=reader.label_tokens,
        ends_open=reader.ends_open(template),
        min_labels=min_labels,
    )
    question = questions.read(request, reader, labels, template, max_bytes=max_bytes)
    contents = ContentRules(vocab_size=card.vocab_size, max_bytes=max_bytes)
    query = None if request.query is None else contents.query(request.query, "query")
    check_used = partial(
        _check_query, LengthRules(reader, question), is_calibrated=request.calibrate, is_plain=question.is_plain
    )
    items = ItemReader(
        query=query,
        contents=contents,
        labels=labels,
        question=question,
        check_used=check_used,
        ids=ids,
        queries=queries,
    )
    job = NewJob(
        client_id=client_id,
        parameters=_parameters(request, card, question),
        template_version=template.version,
        metadata=metadata.check(request.metadata),
        webhook_url=webhook_urls.check(request.webhook_url, limits.callbacks),
        expires_in_seconds=request.expires_in_seconds or limits.default_expires_seconds,
        warnings=[] if card.is_verified else [UNVERIFIED],
    )
    query_bytes = 0 if query is None else len(query.encode() if isinstance(query, str) else query)
    return Opening(job, reader, items, query_bytes)


def check_num_items(num_items: int, max_items: int) -> None:
    """Raises Refused for no items, or too many."""
    if num_items == 0:
        raise Refused("no_items", "items is empty; a job has at least one item", field="items")
    if num_items > max_items:
        raise Refused(
            "too_many_items",
            f"items has {num_items:,} items; at most {max_items:,} are possible in one job",
            field="items",
        )


def _check_query(lengths: LengthRules, used: UsedQuery, *, is_calibrated: bool, is_plain: bool) -> None:
    if is_calibrated and is_plain and not used.query:
        raise Refused(
            "empty_prompt",
            "calibrate compares with an empty item, and without a query that prompt is empty",
            field="calibrate",
            item=used.item,
        )
    lengths.check_query(*used)


def _parameters(request: JobRequest, card: ModelCard, question: Question) -> JobParameters:
    return JobParameters(
        model=card.name,
        query=request.query,
        label_token_ids=question.label_token_ids or [],
        labels=question.labels,
        template=question.template,
        instruction=question.instruction,
        method=request.method,
        target=question.target,
        normalize=request.normalize or "mean",
        apply_softmax=request.apply_softmax,
        truncation=request.truncation,
        top_k=request.top_k,
        keep_inputs=request.keep_inputs,
        deterministic=request.deterministic,
        calibrate=request.calibrate,
    )
