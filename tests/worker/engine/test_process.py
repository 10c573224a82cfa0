"""The engine process and its handle, with the fake engine: real processes, killed, hung, starved and refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from core.errors import Broken, NotReady
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import Batch, EngineDied, EngineHung, EngineOutOfMemory, EngineRefused


def batch_of(*texts):
    return Batch(
        np.frombuffer(b"".join(texts), np.uint8).astype(np.int32),
        np.array([len(text) for text in texts], np.int32),
        np.tile(np.array([[0, 1]], np.int32), (len(texts), 1)),
        np.zeros(len(texts), np.int32),
    )


@contextmanager
def running(options=None, *, start_timeout_seconds=30.0, hang_seconds=30.0):
    engine = EngineProcess(
        options or EngineOptions(), start_timeout_seconds=start_timeout_seconds, hang_seconds=hang_seconds
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture(autouse=True)
def faults(monkeypatch):
    monkeypatch.setenv("RANKMILL_FAKE_FAULTS", "1")


def pid_of(engine):
    return engine._child.pid


def in_thread(engine, batch):
    outcome = []

    def score():
        try:
            outcome.append(engine.score(batch))
        except Broken as error:
            outcome.append(error)

    thread = threading.Thread(target=score)
    thread.start()
    return thread, outcome


def wait_until(is_true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_says_what_it_serves_and_scores_in_the_order_of_asking():
    with running() as engine:
        info = engine.wait_ready(30)
        assert (info.card.name, info.layout, info.card.vocab_size) == ("fake", "padded", 256)
        first, second = engine.score(batch_of(b"a", b"b")), engine.score(batch_of(b"b", b"a"))
    assert np.array_equal(first.label_logprobs_BL, second.label_logprobs_BL[::-1])


def test_two_threads_keep_it_busy_and_each_gets_its_own_scores():
    texts = [bytes([65 + number]) * 50_000 for number in range(20)]
    with running() as engine:
        engine.wait_ready(30)
        alone = [engine.score(batch_of(text)).label_logprobs_BL for text in texts]
        threads = [in_thread(engine, batch_of(text)) for text in texts]
        for (thread, outcome), expected in zip(threads, alone, strict=True):
            thread.join()
            assert np.array_equal(outcome[0].label_logprobs_BL, expected)


def test_when_it_is_killed_the_batch_at_work_is_suspect_the_one_behind_it_not_and_the_next_engine_goes_on():
    with running() as engine:
        engine.wait_ready(30)
        running_thread, first = in_thread(engine, batch_of(b"\x01hang"))
        wait_until(lambda: len(engine._pending) == 1)
        waiting_thread, second = in_thread(engine, batch_of(b"behind"))
        wait_until(lambda: len(engine._pending) == 2)
        start = time.monotonic()
        os.kill(pid_of(engine), signal.SIGKILL)
        running_thread.join()
        waiting_thread.join()
        assert time.monotonic() - start < 1
        assert isinstance(first[0], EngineDied)
        assert (first[0].was_running, second[0].was_running) == (True, False)
        assert np.isfinite(engine.score(batch_of(b"after")).label_logprobs_BL).all()
        assert engine.num_deaths == 1


def test_an_engine_that_makes_no_progress_is_killed_and_starts_again():
    with running(hang_seconds=0.5) as engine:
        engine.wait_ready(30)
        with pytest.raises(EngineHung):
            engine.score(batch_of(b"\x01hang"))
        engine.score(batch_of(b"after"))


def test_an_engine_that_hangs_after_it_idled_longer_than_that_is_killed_in_time():
    with running(hang_seconds=0.4) as engine:
        engine.wait_ready(30)
        engine.score(batch_of(b"before"))
        time.sleep(1)
        with pytest.raises(EngineHung):
            engine.score(batch_of(b"\x01hang"))
        engine.score(batch_of(b"after"))


def test_an_engine_that_is_stopped_by_a_signal_counts_as_hung_even_with_a_batch_larger_than_the_pipe():
    with running(hang_seconds=0.5) as engine:
        engine.wait_ready(30)
        os.kill(pid_of(engine), signal.SIGSTOP)
        with pytest.raises(EngineHung):
            engine.score(batch_of(b"x" * 1_000_000))
        engine.score(batch_of(b"after"))


def test_an_idle_engine_is_never_taken_for_hung():
    with running(hang_seconds=0.2) as engine:
        engine.wait_ready(30)
        time.sleep(0.6)
        assert time.monotonic() - engine.progress < 0.1
        engine.score(batch_of(b"after"))
        assert engine.num_deaths == 0


def test_progress_stands_still_while_a_batch_hangs():
    with running() as engine:
        engine.wait_ready(30)
        in_thread(engine, batch_of(b"\x01hang"))
        wait_until(lambda: len(engine._pending) == 1)
        before = engine.progress
        time.sleep(0.3)
        assert engine.progress == before


def test_out_of_memory_costs_no_restart():
    with running() as engine:
        pid = engine.wait_ready(30) and pid_of(engine)
        with pytest.raises(EngineOutOfMemory):
            engine.score(batch_of(b"\x01oom", b"other"))
        engine.score(batch_of(b"\x01oom"))
        assert pid_of(engine) == pid


def test_a_fault_that_nobody_foresaw_ends_the_process_with_its_reason():
    no_byte = Batch(np.array([999], np.int32), *(np.array(v, np.int32) for v in ([1], [[0, 1]], [0])))
    with running() as engine:
        engine.wait_ready(30)
        with pytest.raises(EngineDied, match="AssertionError"):
            engine.score(no_byte)


def test_a_model_that_does_not_exist_is_refused_with_the_reason_and_not_tried_again():
    with running(EngineOptions(model="/nowhere/model.gguf")) as engine:
        with pytest.raises(EngineRefused, match=r"there is no file /nowhere/model\.gguf"):
            engine.wait_ready(60)
        with pytest.raises(EngineRefused):
            engine.score(batch_of(b"a"))
        assert engine.num_deaths == 0
        wait_until(lambda: not engine._threads[0].is_alive())  # nobody starts it again


def test_an_engine_that_takes_too_long_to_start_is_not_ready_and_tried_again(monkeypatch):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "")
    with running(start_timeout_seconds=0.01) as engine:
        with pytest.raises(NotReady, match=r"within 0\.2 s"):
            engine.wait_ready(0.2)
        wait_until(lambda: engine.num_deaths >= 2)


def test_signals_to_the_whole_group_do_not_end_a_running_batch():
    with running() as engine:
        engine.wait_ready(30)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid_of(engine), number)
        engine.score(batch_of(b"after"))
        assert engine.num_deaths == 0


def test_stopping_fails_what_runs_and_leaves_no_process():
    with running() as engine:
        engine.wait_ready(30)
        pid = pid_of(engine)
        thread, outcome = in_thread(engine, batch_of(b"\x01hang"))
        wait_until(lambda: len(engine._pending) == 1)
        engine.stop()
        thread.join()
        assert isinstance(outcome[0], NotReady)
        assert not psutil.pid_exists(pid)
        with pytest.raises(NotReady):
            engine.score(batch_of(b"late"))


PARENT = """
import sys, threading, numpy as np
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import Batch
engine = EngineProcess(EngineOptions(), start_timeout_seconds=30, hang_seconds=30)
engine.start()
engine.wait_ready(30)
print(engine._child.pid, flush=True)
text = np.frombuffer(sys.argv[1].encode(), np.uint8).astype(np.int32)
engine.score(Batch(text, *(np.array(v, np.int32) for v in ([len(text)], [[0, 1]], [0]))))
threading.Event().wait()
"""


@pytest.mark.parametrize("text", ["fine", "\x01hang"], ids=["idle", "at work"])
def test_the_death_of_the_parent_ends_the_engine(text):
    with subprocess.Popen([sys.executable, "-c", PARENT, text], stdout=subprocess.PIPE, text=True) as parent:
        lines = (line for line in parent.stdout if line.strip().isdigit())
        child = psutil.Process(int(next(lines)))
        parent.kill()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
