"""What a job asks of every item: its template, the instruction in it, and the labels or targets that may follow."""

from __future__ import annotations

from dataclasses import dataclass

from api import likelihood, texts
from api.labels import LabelRules
from api.readers import Reader
from api.requests import JobRequest
from core.errors import Refused
from core.model_cards import ModelCard
from core.templates import NONE, NONE_ITEM_FIRST, Slot, Template, sections


@dataclass(frozen=True, slots=True)
class Question:
    """Resolved and checked. ``label_token_ids`` is None where every item must bring labels of its own."""

    template: Template
    instruction: str
    is_likelihood: bool = False
    label_token_ids: list[int] | None = None
    labels: list[str] | None = None
    target: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether query and item are joined as they are, which token ids can be too."""
        return self.template.name == NONE.name

    @property
    def takes_query(self) -> bool:
        """Whether a query would show in a prompt or a target."""
        return self.template.needs_query or self._aims_at_query

    @property
    def needs_query(self) -> bool:
        """Whether an item without a query can't be asked."""
        return (self.template.needs_query and not self.is_plain) or self._aims_at_query

    def targets(self, query: str) -> list[str]:
        """The texts whose likelihood is asked for after an item with this query; none where labels are."""
        if not self.is_likelihood:
            return []
        if self.target is not None:
            return [self.target]
        return self.labels or [likelihood.own_target(self.template, query)]

    @property
    def _aims_at_query(self) -> bool:
        return self.is_likelihood and self.target is None and self.labels is None


def read(request: JobRequest, reader: Reader, labels: LabelRules, template: Template, *, max_bytes: int) -> Question:
    """The request's question. Raises Refused for what does not go together, or with the model or the template."""
    instruction = _instruction(request, template, max_bytes)
    if request.calibrate and not request.apply_softmax:
        raise Refused(
            "conflicting_fields",
            "calibrated values are no probabilities over the vocabulary: calibrate goes with apply_softmax true",
            field="apply_softmax",
        )
    if request.method == "likelihood":
        asked, target = likelihood.read(request, template, reader, max_bytes=max_bytes)
        return Question(template, instruction, is_likelihood=True, labels=asked, target=target)
    likelihood.check_unused(request)
    ids = labels.resolve(request.labels, request.label_token_ids)
    if ids is None:
        ids = _default_labels(template, reader.card, labels)
    return Question(template, instruction, label_token_ids=ids, labels=request.labels)


def choose_template(request: JobRequest, card: ModelCard) -> Template:
    """The template that the request names, or the model's own."""
    template = card.template(request.template or card.default_template)
    if not request.item_first:
        return template
    if template.name != NONE.name:
        raise Refused(
            "conflicting_fields",
            f"item_first goes with the template 'none'; {template.name!r} has its own order",
            field="item_first",
        )
    return NONE_ITEM_FIRST


def _instruction(request: JobRequest, template: Template, max_bytes: int) -> str:
    has_slot = any(piece == Slot("instruction") for section in sections(template.text) for piece in section)
    if request.instruction is None:
        return template.instruction if has_slot else ""
    if not has_slot:
        raise Refused(
            "conflicting_fields",
            f"the template {template.name!r} has no place for an instruction",
            field="instruction",
        )
    return texts.bounded(request.instruction, "instruction", max_bytes=max_bytes)


def _default_labels(template: Template, card: ModelCard, labels: LabelRules) -> list[int] | None:
    """The model's own labels belong to its own template; any other template has its own or none."""
    if template.name == card.default_template and card.default_label_token_ids is not None:
        return card.default_label_token_ids
    return None if template.labels is None else labels.resolve_own(template.labels, template.name)
