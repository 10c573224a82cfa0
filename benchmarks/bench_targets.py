"""Batches sized by time: how well a pass is foretold, what small jobs wait beside bulk work, and what planning costs.

    PYTHONPATH=.:kernels python3 benchmarks/bench_targets.py
    python benchmarks/bench_targets.py --planning

The first needs one GPU and times the packed engine at the shape of Qwen3-0.6B: passes of W1, W2 (``workloads``) and long
prompts beside what the cost model says of them, none of which it was fitted to; then a batcher that eight threads keep in
bulk chunks, alone and beside a thread that asks for 16 items, waits for them and thinks for 30 ms. ``--planning`` needs no
GPU: items a second that are planned without and with a target.
"""

from __future__ import annotations

import sys
import threading
import time
from queue import SimpleQueue

import numpy as np
import workloads

from worker.batcher import Batcher
from worker.batches import plan_packed
from worker.engine.cost import CostModel, Target, work
from worker.engine.protocol import Prompts, num_scored
from worker.piece import Request

CHUNK_ITEMS, SMALL_ITEMS, BULK_THREADS = 1_000, 16, 8
THINK_SECONDS, SECONDS = 0.03, 9.0
BUDGETS = (2_048, 8_000, 16_384, 32_768, 65_536)
TYPICAL = CostModel(fixed=1.5e-3, per_token=1.66e-6, per_pair=5.5e-10, per_row=6e-7)  # an H200's, for planning alone


def prompts_of(prompts, shift=0):
    """As a chunk hands them in. A shift gives them other ids, and shares what they shared."""
    ids = (np.concatenate(prompts) + shift) % 151_000
    lengths = np.array([len(each) for each in prompts], np.int32)
    labels = np.tile(np.array(workloads.LABEL_IDS, np.int32), (len(prompts), 1))
    return Prompts(ids.astype(np.int32), lengths, labels)


def planning():
    """Print the rates of planning; each the best of nine."""
    target = Target(TYPICAL, 0.04)
    for name, groups in (("W1", workloads.shared_query()), ("W2", workloads.pairs())):
        tokens = [np.ascontiguousarray(each).data for each in workloads.prompts(groups)]
        best = {"tokens alone": np.inf, "40 ms": np.inf}
        for _ in range(9):
            for way, aim in zip(best, (None, target), strict=True):
                start = time.process_time()
                plan_packed(tokens, BUDGETS[-1], np.ones(len(tokens), np.int32), aim)
                best[way] = min(best[way], time.process_time() - start)
        print(name, *(f"{way}: {len(tokens) / seconds:,.0f} items/s" for way, seconds in best.items()), sep="  ")


class Launching:
    """An engine in this process, as the batcher knows it; batches are launched ahead, as the engine process does."""

    def __init__(self, engine):
        self._engine, self.info, self.progress = engine, engine.info, 0.0
        self._prepared, self._launched = SimpleQueue(), SimpleQueue()
        for run in (self._launch, self._answer):
            threading.Thread(target=run, daemon=True).start()

    def score(self, batch):
        answer = SimpleQueue()
        self._prepared.put((self._engine.prepare(batch), answer))
        return answer.get()

    def _launch(self):
        while True:
            launch, answer = self._prepared.get()
            self._launched.put((launch(), answer))

    def _answer(self):
        while True:
            wait, answer = self._launched.get()
            answer.put(wait())


def foretold(engine):
    """Print passes beside what the cost model says of them."""
    cost = engine.info.cost
    print(engine.info.choices["cost"])
    generator = np.random.default_rng(5)
    long = [generator.integers(0, 150_000, count).astype(np.int32) for count in generator.integers(3_000, 7_000, 40)]
    w1, w2 = workloads.prompts(workloads.shared_query()), workloads.prompts(workloads.pairs())
    for name, prompts in (("W1", w1[:CHUNK_ITEMS]), ("W2", w2[:CHUNK_ITEMS]), ("long", long)):
        piece = Request(0, prompts_of(prompts)).piece()
        for budget, aim in (*((budget, None) for budget in BUDGETS), (BUDGETS[-1], Target(cost, 0.04))):
            order = plan_packed(piece.tokens(), budget, np.ones(len(piece), np.int32), aim)[0]
            batch = piece.pick(order).batch("packed")
            scored = num_scored(batch.label_ids_BL, batch.is_path_B)
            works = work(batch.lengths_B, batch.shared_B, scored).sum(axis=0)
            said = cost.fixed + float(cost.seconds(works))
            seconds = min(timed(engine, batch) for _ in range(3))
            off = f"{1e3 * said:7.1f} foretold, {said / seconds - 1:+.0%}"
            print(f"{name:5}{int(works[0]):7} tokens {1e3 * seconds:7.1f} ms {off}{'  (40 ms)' if aim else ''}")


def timed(engine, batch):
    launch = engine.prepare(batch)
    start = time.perf_counter()
    launch()()
    return time.perf_counter() - start


def beside(engine, target_seconds, *, with_small, seconds=SECONDS):
    """Print what bulk work and small jobs get of one batcher."""
    batcher = Batcher(Launching(engine), target_seconds=target_seconds)
    shared = workloads.prompts(workloads.shared_query())
    end = time.monotonic() + seconds
    done, waited = [], []

    def bulk(nth):
        for turn in range(1 << 30):
            first = CHUNK_ITEMS * (nth % 4)
            batcher.score(prompts_of(shared[first : first + CHUNK_ITEMS], 1 + 97 * nth + 13 * turn), small=False)
            if time.monotonic() > end:
                return
            done.append(CHUNK_ITEMS)

    def small():
        time.sleep(seconds / 6)
        for turn in range(1 << 30):
            first = SMALL_ITEMS * turn % (len(shared) - SMALL_ITEMS)
            prompts = prompts_of(shared[first : first + SMALL_ITEMS], 5 + turn)
            start = time.perf_counter()
            batcher.score(prompts, small=True)
            waited.append(1e3 * (time.perf_counter() - start))
            if time.monotonic() > end - 0.5:  # while there is bulk work for sure
                return
            time.sleep(THINK_SECONDS)

    threads = [threading.Thread(target=bulk, args=(nth,)) for nth in range(BULK_THREADS)]
    threads += [threading.Thread(target=small)] if with_small else []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.stop()
    line = f"target {1e3 * target_seconds:3.0f} ms: bulk {sum(done) / seconds:6,.0f} items/s"
    if waited:
        p50, p95 = np.quantile(waited, [0.5, 0.95])
        line += f", {len(waited)} small jobs p50 {p50:.1f} p95 {p95:.1f} max {max(waited):.1f} ms"
    print(line, flush=True)


def main():
    if "--planning" in sys.argv:
        planning()
        return
    import bench_engine

    engine = bench_engine.engine_of(bench_engine.random_model())
    foretold(engine)
    beside(engine, 0.04, with_small=False, seconds=3.0)  # whatever is slow once; not to be read
    for target_seconds, with_small in ((0.0, False), (0.04, False), (0.0, True), (0.04, True), (0.025, True)):
        beside(engine, target_seconds, with_small=with_small)


if __name__ == "__main__":
    main()
