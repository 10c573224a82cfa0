"""Labels: the tokens whose probabilities a job asks for, given as texts of one token each or as ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from api import texts
from core.errors import Refused

MIN_LABELS = 2
MAX_LABELS = 128
MAX_SHOWN = 8  # tokens of a label that is none


class LabelRules:
    """Resolves and checks the labels of one job.

    ``encode`` turns a text into the ids that a model would say for it. ``ends_open``: the prompt may end inside a line,
    so that an answer may begin with a blank or without one.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        encode: Callable[[str], Sequence[int]],
        ends_open: bool,
        min_labels: int = MIN_LABELS,
    ) -> None:
        self._min_labels = min_labels
        self._vocab_size = vocab_size
        self._encode = encode
        self._ends_open = ends_open
        self._ids: dict[str, int] = {}

    def resolve(
        self, label_texts: list[str] | None, ids: list[int] | None, *, prefix: str = "", item: int | None = None
    ) -> list[int] | None:
        """The label ids, or None where neither texts nor ids are given. ``prefix`` says whose labels they are."""
        if label_texts is not None and ids is not None:
            raise Refused(
                "conflicting_fields",
                f"give either {prefix}labels or {prefix}label_token_ids, not both",
                field=f"{prefix}label_token_ids",
                item=item,
            )
        if label_texts is not None:
            field = f"{prefix}labels"
            check_count(len(label_texts), field, item, least=self._min_labels)
            ids = [self._id(text, f"{field}[{at}]", item) for at, text in enumerate(label_texts)]
        elif ids is not None:
            field = f"{prefix}label_token_ids"
            check_count(len(ids), field, item, least=self._min_labels)
        else:
            return None
        self._check_ids(ids, field, item)
        return ids

    def resolve_own(self, label_texts: list[str], template_name: str) -> list[int]:
        """The ids of a template's own labels, which are meant as they stand there."""
        found = [self._encode(text) for text in label_texts]
        for text, ids in zip(label_texts, found, strict=True):
            if len(ids) != 1:
                raise Refused(
                    "label_not_one_token",
                    f"the label {text!r} of the template {template_name!r} is {len(ids)} tokens of this model"
                    f" ({_listed(ids)}): name labels of your own",
                    field="labels",
                )
        return [ids[0] for ids in found]

    def _id(self, text: str, field: str, item: int | None) -> int:
        if text not in self._ids:
            texts.check(text, field, item=item)
            self._ids[text] = self._one_token(text, field, item)
        return self._ids[text]

    def _one_token(self, text: str, field: str, item: int | None) -> int:
        found = self._encode(text)
        spaced = self._encode(f" {text}") if text and not text[0].isspace() else []
        if len(found) != 1:
            hint = f"; with a leading blank, {' ' + text!r}, it is one: {spaced[0]}" if len(spaced) == 1 else ""
            raise Refused(
                "label_not_one_token",
                f"{field} {text!r} is {len(found)} tokens of this model ({_listed(found)}); a label is exactly one{hint}",
                field=field,
                item=item,
            )
        if self._ends_open and len(spaced) == 1 and spaced[0] != found[0]:
            raise Refused(
                "ambiguous_label",
                f"{field} can be two tokens of this model, {text!r} ({found[0]}) and {' ' + text!r} ({spaced[0]}), and"
                " the prompt ends where either could follow: give the text with its leading blank, or the id",
                field=field,
                item=item,
            )
        return found[0]

    def _check_ids(self, ids: list[int], field: str, item: int | None) -> None:
        first_at: dict[int, int] = {}
        for at, label_id in enumerate(ids):
            if not 0 <= label_id < self._vocab_size:
                raise Refused(
                    "label_out_of_vocabulary",
                    f"{field}[{at}] is {label_id}: the model's token ids are 0 to {self._vocab_size - 1}",
                    field=f"{field}[{at}]",
                    item=item,
                )
            if label_id in first_at:
                raise Refused(
                    "duplicate_label",
                    f"{field}[{first_at[label_id]}] and {field}[{at}] are the same token, {label_id}",
                    field=f"{field}[{at}]",
                    item=item,
                )
            first_at[label_id] = at


def check_count(num_labels: int, field: str, item: int | None = None, *, least: int = MIN_LABELS) -> None:
    """Raises Refused for too few labels or too many."""
    if least <= num_labels <= MAX_LABELS:
        return
    why = "; the probability of a single label over itself is always 1" if num_labels == 1 else ""
    raise Refused(
        "label_count",
        f"{field} has {num_labels} labels; {least} to {MAX_LABELS} are possible{why}",
        field=field,
        item=item,
    )


def _listed(ids: Sequence[int]) -> str:
    shown = ", ".join(str(token_id) for token_id in ids[:MAX_SHOWN])
    return f"{shown}, …" if len(ids) > MAX_SHOWN else shown or "none"
