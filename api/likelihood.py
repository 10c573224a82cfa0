"""The method "likelihood": which texts' likelihood is asked for, and what does not go with it."""

from __future__ import annotations

from api import texts
from api.labels import check_count
from api.readers import Reader
from api.requests import JobRequest
from core.errors import Refused
from core.templates import Slot, Template, fill, sections_of_target


def read(
    request: JobRequest, template: Template, reader: Reader, *, max_bytes: int
) -> tuple[list[str] | None, str | None]:
    """Labels of any length or a single target; neither: the template's own target, made of each item's query."""
    if request.label_token_ids is not None:
        raise _conflict("label_token_ids", "likelihood is that of texts: give labels or target")
    if not request.apply_softmax:
        raise _conflict("apply_softmax", "likelihoods of texts are no probabilities over the vocabulary: leave it out")
    if request.labels is not None and request.target is not None:
        raise _conflict("target", "give either labels or target, not both")
    if request.target is not None:
        _check(request.target, "target", reader, max_bytes)
        return None, request.target
    labels = request.labels
    if labels is None:
        if template.target is not None:
            is_fixed = Slot("query") not in sections_of_target(template.target)
            return None, own_target(template, "") if is_fixed else None
        if template.labels is None:
            raise Refused(
                "target_required",
                f"the template {template.name!r} has no target of its own: give target, or labels to compare",
                field="target",
            )
        return template.labels, None
    check_count(len(labels), "labels")
    for at, text in enumerate(labels):
        _check(text, f"labels[{at}]", reader, max_bytes)
        if labels.index(text) != at:
            detail = f"labels[{labels.index(text)}] and labels[{at}] are the same text, {text!r}"
            raise Refused("duplicate_label", detail, field=f"labels[{at}]")
    return labels, None


def own_target(template: Template, query: str) -> str:
    """The template's target for an item with this query."""
    assert template.target is not None, "a question without targets has a template with one"
    return fill(sections_of_target(template.target), {"query": query})


def check_unused(request: JobRequest) -> None:
    """Raises Refused for a field that only the method "likelihood" reads."""
    for field in ("target", "normalize"):
        if getattr(request, field) is not None:
            raise _conflict(field, f'{field} goes with the method "likelihood"')


def _check(text: str, field: str, reader: Reader, max_bytes: int) -> None:
    texts.bounded(text, field, max_bytes=max_bytes)
    (ids,) = reader.tokenizer.encode_texts([text])
    if not len(ids):
        raise Refused("empty_target", f"{field} {text!r} has no token, and so no likelihood", field=field)


def _conflict(field: str, detail: str) -> Refused:
    return Refused("conflicting_fields", detail, field=field)
