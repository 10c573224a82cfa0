"""What a line of a batch is answered is what its route answers, in every dialect, for every value that is honoured or not."""

from __future__ import annotations

from collections import defaultdict

import pytest
from batch_world import batching, line
from dialect_tables import tables, without_names

from api.dialects.urls import DIALECT_OF_URL
from store import model_cards
from store.tokenizer import ByteTokenizer


def bodies():
    """Of each path, bodies with every value that its tables name."""
    found = defaultdict(list)
    for table in tables().values():
        found[table.path].append(table.body)
        for row in table.rows:
            found[table.path] += [{**table.body, row.field: value} for value in (*row.honoured, *row.refused)]
    return found


BODIES = bodies()
MODEL = "reranker"


@pytest.fixture(scope="module")
def world(ranking_url, ranking_ledger, batcher):
    with ranking_ledger.begin() as connection:
        card = model_cards.get(connection, MODEL)
    with batching(ranking_url, ranking_ledger, card, tokenizer=ByteTokenizer(), batcher=batcher) as world:
        yield world


def test_every_route_of_a_dialect_is_one_that_batches_take():
    assert set(BODIES) <= set(DIALECT_OF_URL)


@pytest.mark.parametrize("path", sorted(BODIES))
def test_a_line_is_answered_as_its_route_answers(path, world, ranking):
    asked = {str(n): body for n, body in enumerate(BODIES[path]) if body.get("model") in (None, MODEL)}
    batch = world.run([line(name, body, url=path) for name, body in asked.items()], endpoint=path)
    assert batch.status == "completed", batch.errors
    output, errors = world.lines_of(batch.output_file_id), []
    if batch.error_file_id is not None:
        errors = world.lines_of(batch.error_file_id)
    answered = {each["custom_id"]: each["response"] for each in [*output, *errors]}
    assert sorted(answered, key=int) == list(asked)
    assert (len(output), len(errors)) == (batch.request_counts.completed, batch.request_counts.failed)
    for name, body in asked.items():
        alone = ranking.post(path, json=body)
        assert answered[name]["status_code"] == alone.status_code, (body, answered[name], alone.text)
        assert without_names(answered[name]["body"]) == without_names(alone.json()), body
        assert ("truncated" in answered[name]) == ("rankmill-truncated" in alone.headers), body
