"""The passes that a packed engine times at its start: legal for any model, few, and unlike enough to tell costs apart."""

from __future__ import annotations

import numpy as np
import pytest
from test_packed import engine_of, options_of
from tiny_models import CONFIGS, save

from worker.engine.checkpoint import load
from worker.engine.cost import CostModel, work
from worker.engine.device import device_of
from worker.engine.packed_head import MOST_ROWS
from worker.engine.protocol import num_scored
from worker.engine.warm_up import WarmUp

LONGEST_TINY = 512  # tokens that the tiny models take


@pytest.fixture
def checkpoint(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    options = options_of(tmp_path)
    return load(options, device_of(options))


def measured(checkpoint, max_batch_tokens, max_tokens):
    warm_up = WarmUp(None, None, checkpoint)
    warm_up._max_tokens = max_tokens
    return list(warm_up._measured(max_batch_tokens))


def works(batches):
    scored = [num_scored(batch.label_ids_BL, batch.is_path_B) for batch in batches]
    pairs = zip(batches, scored, strict=True)
    return np.stack([work(batch.lengths_B, batch.shared_B, rows).sum(axis=0) for batch, rows in pairs])


@pytest.mark.parametrize("max_tokens", [LONGEST_TINY, 40_960])
@pytest.mark.parametrize("max_batch_tokens", [256, 2_048, 65_536])
def test_measured_passes_are_within_every_limit_and_tell_tokens_pairs_and_rows_apart(
    checkpoint, max_batch_tokens, max_tokens
):
    batches = measured(checkpoint, max_batch_tokens, max_tokens)
    assert all(batch.lengths_B.max() <= max_tokens for batch in batches)
    found = works(batches)
    assert found[:, 0].max() <= max_batch_tokens
    assert found[:, 2].max() <= MOST_ROWS
    assert found[:, 0].sum() <= 100_000  # of all together: less than two full passes
    others = found[:, 1:] / found[:, :1]
    assert (others.max(axis=0) > 1.5 * others.min(axis=0)).all()


def test_an_engine_scores_the_measured_passes_and_gets_a_cost_or_a_reason(checkpoint, tmp_path):
    engine = engine_of(tmp_path, max_batch_tokens=2_048)
    warm_up = WarmUp(None, engine.score, checkpoint)
    for batch in warm_up._measured(2_048):
        assert np.isfinite(engine.score(batch).label_logprobs_BL).all()
    cost = warm_up.cost(engine.prepare, 2_048)
    assert isinstance(cost, CostModel | str)  # a busy machine may well give times that fit nothing
    assert engine.info.cost is None  # on a CPU nothing is measured
