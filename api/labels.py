"""Labels: the tokens whose probabilities a job asks for, given as texts of one token each or as ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from api import texts
from core.errors import Refused

MIN_LABELS = 2
MAX_LABELS = 128
MAX_SHOWN = 8  # tokens of a label that is none


class LabelRules:
    """Resolves and checks the labels of one job. ``encode`` turns a text into ids, without special tokens."""

    def __init__(self, *, vocab_size: int, encode: Callable[[str], Sequence[int]]) -> None:
        self._vocab_size = vocab_size
        self._encode = encode
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
            _check_count(len(label_texts), field, item)
            ids = [self._id(text, f"{field}[{at}]", item) for at, text in enumerate(label_texts)]
        elif ids is not None:
            field = f"{prefix}label_token_ids"
            _check_count(len(ids), field, item)
        else:
            return None
        self._check_ids(ids, field, item)
        return ids

    def _id(self, text: str, field: str, item: int | None) -> int:
        if text not in self._ids:
            texts.check(text, field, item=item)
            found = list(self._encode(text))
            if len(found) != 1:
                raise Refused(
                    "label_not_one_token",
                    f"{field} {text!r} is {len(found)} tokens of this model ({_listed(found)}); a label is exactly one",
                    field=field,
                    item=item,
                )
            self._ids[text] = found[0]
        return self._ids[text]

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


def _check_count(num_labels: int, field: str, item: int | None) -> None:
    if MIN_LABELS <= num_labels <= MAX_LABELS:
        return
    why = "; the probability of a single label over itself is always 1" if num_labels == 1 else ""
    raise Refused(
        "label_count",
        f"{field} has {num_labels} labels; {MIN_LABELS} to {MAX_LABELS} are possible{why}",
        field=field,
        item=item,
    )


def _listed(ids: list[int]) -> str:
    shown = ", ".join(str(token_id) for token_id in ids[:MAX_SHOWN])
    return f"{shown}, …" if len(ids) > MAX_SHOWN else shown or "none"
