"""The batcher over real engine processes: every fault lands on its own item, and everybody else gets a score."""

from __future__ import annotations

import os
import signal
import threading
import zlib

import numpy as np
import pytest

from core.results import ItemError
from worker.batcher import Batcher
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import Prompts


@pytest.fixture
def start(monkeypatch):
    running = []

    def make(*, hang_seconds=30.0, delay_ms=0):
        monkeypatch.setenv("RANKMILL_FAKE_FAULTS", "1")
        monkeypatch.setenv("RANKMILL_FAKE_DELAY", str(delay_ms))
        options = EngineOptions(max_batch_tokens=20_000)
        engine = EngineProcess(options, start_timeout_seconds=60, hang_seconds=hang_seconds)
        engine.start()
        engine.wait_ready(60)
        running.append((Batcher(engine), engine))
        return running[-1]

    yield make
    for batcher, engine in running:
        batcher.stop(1)
        engine.stop()


def prompts_of(texts):
    return Prompts(
        np.frombuffer(b"".join(texts), np.uint8).astype(np.int32),
        np.array([len(text) for text in texts], np.int32),
        np.tile(np.array([[0, 1]], np.int32), (len(texts), 1)),
    )


def check(outcomes, texts, errors):
    assert {text: error for text, error in zip(texts, outcomes.errors, strict=True) if error} == errors
    for text, logprobs in zip(texts, outcomes.label_logprobs_BL, strict=True):
        if text not in errors:
            assert np.exp(logprobs.astype(np.float64))[0] == pytest.approx(zlib.crc32(text) / 2**32, abs=1e-6)


def test_of_512_items_the_four_bad_ones_fail_by_name_and_508_have_their_scores(start):
    batcher, engine = start()
    errors = {
        b"\x01crash 77": ItemError.CRASHES_ENGINE,
        b"\x01nan": ItemError.NON_FINITE_SCORE,
        b"\x01OOM": ItemError.OUT_OF_MEMORY,
        b"": ItemError.EMPTY_PROMPT,
    }
    texts = [b"item %d" % number for number in range(507)] + [b"\x01oom is fine alone"]
    for place, bad in zip((77, 200, 300, 400), errors, strict=True):
        texts.insert(place, bad)
    check(batcher.score(prompts_of(texts), small=False), texts, errors)
    assert engine.num_deaths <= 2 * np.log2(512) + 2


def test_an_item_that_hangs_the_engine_fails_and_its_neighbours_do_not(start):
    batcher, engine = start(hang_seconds=0.3)
    texts = [b"one", b"\x01hang", b"three"]
    check(batcher.score(prompts_of(texts), small=True), texts, {b"\x01hang": ItemError.HANGS_ENGINE})
    assert engine.num_deaths <= 2 * np.log2(3) + 2


def test_an_engine_that_is_killed_again_and_again_costs_no_item(start):
    batcher, engine = start(delay_ms=30)
    texts = [b"item %d" % number * 20 for number in range(2_000)]
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(batcher.score(prompts_of(texts), small=False)))
    thread.start()
    for kill in range(3):
        while batcher.stats.num_batches < 2 * (kill + 1):
            thread.join(0.01)
        os.kill(engine._child.pid, signal.SIGKILL)
        while engine.num_deaths <= kill:
            thread.join(0.01)
    thread.join()
    check(outcomes[0], texts, {})
    assert engine.num_deaths == 3
