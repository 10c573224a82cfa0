"""Contents: the text or token ids of a query or an item, checked, in the form that the ledger keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from api import texts
from core.chunks import TOKEN_BYTES, Content
from core.errors import Refused


@dataclass(frozen=True, slots=True)
class ContentRules:
    """What a model and the settings allow."""

    vocab_size: int
    max_bytes: int

    def item(self, value: str | list[int], field: str, index: int) -> Content:
        """An item's content. ``field`` says where it stands in the request."""
        content, num_bytes = self._content(value, field, index)
        if num_bytes > self.max_bytes:
            raise Refused("item_too_large", self._too_large(field, num_bytes), field=field, item=index)
        return content

    def query(self, value: str | list[int], field: str, index: int | None = None) -> Content:
        """A query's content: the job's own, or that of the item ``index``."""
        content, num_bytes = self._content(value, field, index)
        if num_bytes > self.max_bytes:
            raise Refused("query_too_large", self._too_large(field, num_bytes), field=field, item=index)
        return content

    def _content(self, value: str | list[int], field: str, index: int | None) -> tuple[Content, int]:
        if isinstance(value, str):
            return value, texts.check(value, field, item=index)
        self._check_ids(value, field, index)
        return np.array(value, dtype="<i4").tobytes(), len(value) * TOKEN_BYTES

    def _check_ids(self, ids: list[int], field: str, index: int | None) -> None:
        if not ids or (min(ids) >= 0 and max(ids) < self.vocab_size):
            return
        at = next(at for at, token_id in enumerate(ids) if not 0 <= token_id < self.vocab_size)
        raise Refused(
            "token_id_out_of_vocabulary",
            f"{field}[{at}] is {ids[at]}: the model's token ids are 0 to {self.vocab_size - 1}",
            field=f"{field}[{at}]",
            item=index,
        )

    def _too_large(self, field: str, num_bytes: int) -> str:
        return f"{field} has {num_bytes:,} bytes; at most {self.max_bytes:,} are allowed"
