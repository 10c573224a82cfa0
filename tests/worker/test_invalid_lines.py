"""Items that came with an error: they take their place, fail by that name, and cost no sequence."""

from __future__ import annotations

import numpy as np
import pytest

from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.results import Evidence, ItemError
from core.templates import NONE, Template
from store.tokenizer import ByteTokenizer
from worker.chunk_results import scored
from worker.outcomes import Outcomes
from worker.prompts import prepare

INVALID = NewItem("", error=ItemError.INVALID_LINE)
AFTER = Template("after", "{item}>", target=" {query}")
JOBS = {
    "labels": {"label_token_ids": [0, 1]},
    "labels of the items' own": {"label_token_ids": []},
    "calibrated": {"label_token_ids": [0, 1], "calibrate": True},
    "a target": {"label_token_ids": [], "method": "likelihood", "target": " yes"},
    "the query as target": {"label_token_ids": [], "method": "likelihood", "template": AFTER, "query": None},
}


def results_of(items, **parameters):
    parameters = JobParameters(**({"model": "fake", "query": "Q", "template": NONE} | parameters))
    (chunk,) = cut(items)
    prepared = prepare(parameters, chunk.payload, ByteTokenizer(), max_tokens=100)
    outcomes = None
    if num_sequences := len(prepared.item_B):
        logprobs = np.full(prepared.prompts.label_ids_BL.shape, -1, np.float32)
        outcomes = Outcomes(logprobs, np.zeros(num_sequences, np.int32), [None] * num_sequences)
    return scored(parameters, chunk.payload, prepared, outcomes, Evidence("1", "float32", "1")), num_sequences


@pytest.mark.parametrize("name", JOBS)
def test_an_invalid_line_fails_by_its_name_and_its_neighbours_stand(name):
    good = NewItem(
        "a", query="own", query_no=1, label_token_ids=None if "likelihood" in JOBS[name].values() else [0, 1]
    )
    results, _ = results_of([INVALID, good, INVALID, good], **JOBS[name])
    assert results.errors == ["invalid_line", None, "invalid_line", None]
    assert results.prompt_tokens[0] == 0 < results.prompt_tokens[1]


@pytest.mark.parametrize("name", JOBS)
def test_a_chunk_of_invalid_lines_alone_asks_nothing(name):
    results, num_sequences = results_of([INVALID, INVALID], **JOBS[name])
    assert (results.errors, num_sequences) == (["invalid_line"] * 2, 0)
