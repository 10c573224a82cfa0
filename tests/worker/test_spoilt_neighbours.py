"""The packed engine with a token whose states are no numbers: its items fail, and their neighbours' scores are their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine.tiny_models import CONFIGS, save
from scoring_path import InThisProcess

from core.results import ItemError
from worker.batcher import Batcher
from worker.engine.options import EngineOptions
from worker.engine.packed import load_packed
from worker.engine.packed_pass import PassInputs
from worker.engine.process import EngineProcess
from worker.engine.protocol import Prompts
from worker.piece import Request

TOKEN = 290  # in none of the prompts that a start tries
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    config = CONFIGS["gemma3"]()  # it scales its embeddings, and so beyond what a float holds
    config.tie_word_embeddings = False
    model = save(folder, config)
    with torch.no_grad():
        model.get_input_embeddings().weight[TOKEN] = 3e38  # finite, as a checkpoint has to be
    model.save_pretrained(folder)
    return folder


def options_of(folder):
    return EngineOptions(model=str(folder), model_name="tiny", device="cpu", torch_threads=1, engine="packed")


def sequences(count, bad, *, prefix):
    """Prompts, most of which share a prefix; those of the numbers in ``bad`` hold the token somewhere."""
    generator = np.random.default_rng(0)
    prompts = []
    for number in range(count):
        own = generator.integers(0, 256, generator.integers(2, 30)).astype(np.int32)
        place = generator.integers(len(own))
        if number in bad:
            own[place] = TOKEN
        prompts.append(own if number % 5 == 4 else np.concatenate([prefix, own]))
    return prompts


def prompts_of(sequences):
    lengths = np.array([len(ids) for ids in sequences], np.int32)
    label_ids = np.tile(np.array([[7, 3, 200]], np.int32), (len(sequences), 1))
    return Prompts(np.concatenate(sequences), lengths, label_ids, np.arange(len(sequences)) % 7 == 3)


def outcomes_of(engine, prompts):
    batcher = Batcher(engine)
    try:
        return batcher.score(prompts, small=False)
    finally:
        batcher.stop()


def check(found, alone, bad):
    assert [error is not None for error in found.errors] == [number in bad for number in range(len(found.errors))]
    assert {found.errors[number] for number in bad} <= {ItemError.NON_FINITE_SCORE}
    fine = [number for number in range(len(found.errors)) if number not in bad]
    assert np.abs(found.label_logprobs_BL[fine] - alone.label_logprobs_BL[fine]).max() <= TOLERANCE


PREFIX = np.arange(40, 80, dtype=np.int32)


@pytest.mark.parametrize("bad", [{5}, {0, 7, 23}, {19, 20, 21, 22, 23}])
def test_items_with_the_token_fail_and_all_others_have_the_scores_of_a_batch_without_it(folder, bad):
    engine = load_packed(options_of(folder), lambda: None)
    clean = outcomes_of(InThisProcess(engine), prompts_of(sequences(24, set(), prefix=PREFIX)))
    assert clean.errors == [None] * 24
    living = InThisProcess(engine)
    check(outcomes_of(living, prompts_of(sequences(24, bad, prefix=PREFIX))), clean, bad)
    _, again = living.batches
    assert len(again.lengths_B) > len(bad), "the token did spoil its neighbours"


def test_items_whose_shared_prefix_holds_the_token_all_fail_and_the_rest_stand(folder):
    engine = load_packed(options_of(folder), lambda: None)
    clean = outcomes_of(InThisProcess(engine), prompts_of(sequences(24, set(), prefix=PREFIX)))
    spoilt = np.append(PREFIX[:-1], np.int32(TOKEN))
    living = InThisProcess(engine)
    found = outcomes_of(living, prompts_of(sequences(24, set(), prefix=spoilt)))
    check(found, clean, {number for number in range(24) if number % 5 != 4})
    assert len(living.batches) == 2


def test_a_lone_sequence_meets_no_token_but_its_own_where_a_pass_is_filled_up(folder):
    engine = load_packed(options_of(folder), lambda: None)
    ids = np.arange(40, 53, dtype=np.int32)
    ((_, host, _),) = engine._plan(Request(0, prompts_of([ids])).piece().batch("packed"))
    tokens = PassInputs.read(host.flat, host.shape, host.tile_rows).ids_1T[0]
    assert len(tokens) > len(ids)
    assert set(tokens.tolist()) == set(ids.tolist())


def test_an_engine_process_does_the_same(folder):
    bad = {3, 11}
    process = EngineProcess(options_of(folder), start_timeout_seconds=100, hang_seconds=60)
    process.start()
    try:
        process.wait_ready(100)
        clean = outcomes_of(process, prompts_of(sequences(24, set(), prefix=PREFIX)))
        check(outcomes_of(process, prompts_of(sequences(24, bad, prefix=PREFIX))), clean, bad)
    finally:
        process.stop()
