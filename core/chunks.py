"""Chunks: what one lease covers and one save stores, and how items are cut into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

MAX_CHUNK_ITEMS = 1_000
MAX_CHUNK_BYTES = 1 << 20  # of item text, before compression
TOKEN_BYTES = 4  # a token id travels as one little-endian int32

T = TypeVar("T")

Content = str | bytes
"""Text, or token ids as little-endian int32: compact on the wire, and ``numpy.frombuffer`` reads it in place."""


class ChunkKey(NamedTuple):
    """Names one chunk."""

    job_id: UUID
    chunk_no: int


class NewItem(msgspec.Struct, frozen=True, gc=False):  # ten million a job: a dataclass takes three times as long
    """One item, checked: its content, the client's own id, its own query and its own labels where it has them.

    ``query_no`` numbers the job's distinct queries from 0 (the job's own query); ``index`` is set only where the
    item keeps the index that it had in another job (a retry). An item with an ``error`` came without content that could
    be scored: it takes its place, and fails by that name.
    """

    content: Content
    id: str | None = None
    query: Content | None = None
    query_no: int = 0
    label_token_ids: list[int] | None = None
    index: int | None = None
    error: str | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of content in UTF-8, own query included."""
        return _num_bytes(self.content) + (0 if self.query is None else _num_bytes(self.query))


class ChunkPayload(msgspec.Struct, frozen=True, array_like=True):
    """The items of one chunk, by column. A column that no item uses is None.

    ``queries`` maps the query numbers used here, other than 0, to their content.
    """

    contents: list[Any]  # Content, each: msgspec has no union of str and bytes, and msgpack tells them apart
    ids: list[str | None] | None = None
    query_nos: list[int] | None = None
    queries: dict[int, Any] | None = None
    label_token_ids: list[list[int] | None] | None = None
    indexes: list[int] | None = None
    errors: list[str | None] | None = None  # of items that failed before anybody could score them


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk as it is cut, before the ledger knows it. ``num_bytes`` are those of its items, own queries included."""

    chunk_no: int
    first_index: int
    num_items: int
    num_tokens_estimate: int
    payload: ChunkPayload
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A chunk that is ours until the lease ends. The epoch fences the save: a later claim makes it worthless."""

    key: ChunkKey
    epoch: int
    attempts: int
    first_index: int
    num_items: int
    num_tokens: int = 0  # by the estimate of whoever cut it
    is_small: bool = False
    is_whole: bool = False  # no other chunk is of its job, which ends with it
    has_webhook: bool = False  # the end of its job writes a delivery


def encode_payload(payload: ChunkPayload) -> bytes:
    """The payload as msgpack."""
    return msgspec.msgpack.encode(payload)


def decode_payload(data: bytes) -> ChunkPayload:
    """The payload that ``encode_payload`` wrote."""
    return msgspec.msgpack.decode(data, type=ChunkPayload)


def cut(
    items: Iterable[NewItem],
    *,
    query_bytes: int = 0,
    max_items: int = MAX_CHUNK_ITEMS,
    max_bytes: int = MAX_CHUNK_BYTES,
) -> Iterator[NewChunk]:
    """Cut items into chunks of at most ``max_items`` and ``max_bytes``, in order, every item in exactly one.

    An item larger than ``max_bytes`` gets a chunk of its own. ``query_bytes`` is the size of the job's query, which
    every item's prompt repeats, for the estimate of tokens.
    """
    waiting: list[NewItem] = []
    size = first_index = chunk_no = 0
    for item in items:
        num_bytes = item.num_bytes
        if waiting and (len(waiting) == max_items or size + num_bytes > max_bytes):
            yield _chunk(chunk_no, first_index, waiting, size, query_bytes)
            chunk_no, first_index = chunk_no + 1, first_index + len(waiting)
            waiting, size = [], 0
        waiting.append(item)
        size += num_bytes
    if waiting:
        yield _chunk(chunk_no, first_index, waiting, size, query_bytes)


def _chunk(chunk_no: int, first_index: int, items: list[NewItem], size: int, query_bytes: int) -> NewChunk:
    queries = {item.query_no: item.query for item in items if item.query is not None}
    payload = ChunkPayload(
        contents=[item.content for item in items],
        ids=_unless_none([item.id for item in items]),
        query_nos=[item.query_no for item in items] if queries else None,
        queries=queries or None,
        label_token_ids=_unless_none([item.label_token_ids for item in items]),
        indexes=_own_indexes(items),
        errors=_unless_none([item.error for item in items]),
    )
    estimate = (size + query_bytes * len(items)) // TOKEN_BYTES + len(items)
    return NewChunk(chunk_no, first_index, len(items), estimate, payload, size)


def _unless_none(column: list[T | None]) -> list[T | None] | None:
    """The column, or None where it would hold only Nones."""
    return column if column.count(None) < len(column) else None


def _own_indexes(items: list[NewItem]) -> list[int] | None:
    indexes = [item.index for item in items if item.index is not None]
    assert len(indexes) in (0, len(items)), "either all items of a job keep an index or none does"
    return indexes or None


def _num_bytes(content: Content) -> int:
    return len(content) if isinstance(content, bytes) or content.isascii() else len(content.encode())
