"""Items are cut into chunks: every item in exactly one, in order, within both limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.chunks import NewItem, cut, decode_payload, encode_payload

contents = st.one_of(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), st.binary(max_size=40))
items = st.lists(
    st.builds(
        NewItem,
        content=contents,
        id=st.none() | st.text(alphabet="abc", max_size=3),
        label_token_ids=st.none() | st.lists(st.integers(0, 255), min_size=2, max_size=4),
    ),
    max_size=60,
)


@given(items=items, max_items=st.integers(1, 9), max_bytes=st.integers(1, 100))
def test_every_item_is_in_exactly_one_chunk_in_order_within_the_limits(items, max_items, max_bytes):
    chunks = list(cut(items, max_items=max_items, max_bytes=max_bytes))
    assert [content for chunk in chunks for content in chunk.payload.contents] == [item.content for item in items]
    assert [chunk.chunk_no for chunk in chunks] == list(range(len(chunks)))
    position = 0
    for chunk in chunks:
        own = items[position : position + chunk.num_items]
        assert chunk.first_index == position
        assert 1 <= chunk.num_items <= max_items
        assert sum(item.num_bytes for item in own) <= max_bytes or chunk.num_items == 1
        assert chunk.payload.ids == ([item.id for item in own] if any(i.id is not None for i in own) else None)
        position += chunk.num_items
    assert position == len(items)


@given(items=items)
def test_a_payload_comes_back_as_it_was_written(items):
    for chunk in cut(items):
        assert decode_payload(encode_payload(chunk.payload)) == chunk.payload


def test_each_items_own_query_travels_with_its_chunk_once():
    queries = {1: "red", 2: "blue"}
    wanted = [0, 1, 1, 2, 0, 2]
    cut_items = [NewItem(f"item {n}", query=queries.get(no), query_no=no) for n, no in enumerate(wanted)]
    first, second = cut(cut_items, max_items=3)
    assert first.payload.query_nos == [0, 1, 1]
    assert first.payload.queries == {1: "red"}
    assert second.payload.query_nos == [2, 0, 2]
    assert second.payload.queries == {2: "blue"}


def test_a_retry_keeps_the_indexes_of_its_items():
    (chunk,) = cut([NewItem("a", index=17), NewItem("b", index=4)])
    assert chunk.payload.indexes == [17, 4]


def test_bytes_are_counted_as_utf_8():
    assert [chunk.num_items for chunk in cut([NewItem("é" * 5)] * 4, max_bytes=20)] == [2, 2]
