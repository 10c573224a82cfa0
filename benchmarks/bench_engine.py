"""Time the packed engine on one GPU: tokens in, scores out, at the shape of Qwen3-0.6B with random bfloat16 weights.

    PYTHONPATH=.:kernels python3 benchmarks/bench_engine.py

W1 and W2 (``workloads``) pass the worker's own pool, which plans batches in a thread that prepares each while another
runs, as the engine process does; several times in a row with other ids, so that the last planning shows and no prompt
comes twice. Plain Transformers, sorted and padded, scores W1 in the same run. Each figure is printed once it is measured;
the last line is JSON. ``--boot`` only starts an engine and scores once, for the time that it takes.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from functools import partial
from queue import Queue

from worker.engine.libraries import import_all

import_all()  # as an engine process begins

import numpy as np  # noqa: E402 - after the libraries
import system_model  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import triton  # noqa: E402
import workloads  # noqa: E402

from worker.engine.checkpoint import Checkpoint  # noqa: E402
from worker.engine.fp8 import FP8, replace_products  # noqa: E402
from worker.engine.options import EngineOptions  # noqa: E402
from worker.engine.packed import PackedEngine, packed_engine  # noqa: E402
from worker.engine.packed_model import layers_of  # noqa: E402
from worker.engine.padded_pass import twin_of  # noqa: E402
from worker.engine.protocol import Prompts  # noqa: E402
from worker.piece import Request  # noqa: E402
from worker.pool import Pool  # noqa: E402

REPEATS = 3
CHUNK_ITEMS = 1_000
NUM_REQUESTS = 60
PLAIN_BATCH = 128
TABLE_ROWS = 14


def random_model():
    """The model, seeded; its vocabulary in as many rows as Qwen3's."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        **system_model.SHAPES["qwen3-0.6b"],
        vocab_size=system_model.QWEN3_ROWS,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.Qwen3ForCausalLM(config).eval().requires_grad_(requires_grad=False)
    torch.set_default_dtype(torch.float32)
    return model


def engine_of(model, dtype="bfloat16") -> PackedEngine:
    if dtype == FP8:
        replace_products("random", model, layers_of(model), model.device)
    checkpoint = Checkpoint(model, b"", "random", 40960, workloads.VOCABULARY, [])
    engine = packed_engine(EngineOptions(model="random", model_name="random"), checkpoint, lambda: None)
    assert isinstance(engine, PackedEngine), engine
    gc.freeze()  # as an engine process does
    return engine


def requests_of(prompts, first_number=0, shift=0):
    """The prompts as chunks hand them in. A shift gives them other ids, and shares what they shared."""
    requests = []
    for first in range(0, len(prompts), CHUNK_ITEMS):
        part = prompts[first : first + CHUNK_ITEMS]
        ids = (np.concatenate(part) + shift) % 151_000
        lengths = np.array([len(each) for each in part], np.int32)
        labels = np.tile(np.array(workloads.LABEL_IDS, np.int32), (len(part), 1))
        requests.append(Request(first_number + len(requests), Prompts(ids.astype(np.int32), lengths, labels)))
    return requests


def drive(engine, requests) -> float:
    """Seconds from the first prompt to the last score."""
    pool = Pool()
    ready = Queue(1)

    def feed():
        for request in requests:
            pool.add(request, is_small=False)
        while (piece := pool.take(engine.info)) is not None:
            ready.put((piece, engine.prepare(piece.batch("packed"))))
        ready.put(None)

    def settle(launched):
        if launched is None:
            return
        piece, wait = launched
        scores = wait()
        for request, mask in piece.parts():
            request.label_logprobs[piece.rows[mask]] = scores.label_logprobs_BL[mask]

    start = time.perf_counter()
    thread = threading.Thread(target=feed)
    thread.start()
    waiting = None  # as the engine process does: the next batch is launched before this one's scores are waited for
    while (next_one := ready.get()) is not None:
        piece, launch = next_one
        launched = (piece, launch())
        settle(waiting)
        waiting = launched
    settle(waiting)
    seconds = time.perf_counter() - start
    thread.join()
    assert all(np.isfinite(request.label_logprobs).all() for request in requests)
    return seconds


def throughput(engine, groups) -> float:
    """Items a second."""
    prompts = workloads.prompts(groups)
    requests = [
        request for nth in range(REPEATS) for request in requests_of(prompts, first_number=100 * nth, shift=101 * nth)
    ]
    drive(engine, requests_of(prompts, shift=50))
    return REPEATS * len(prompts) / drive(engine, requests)


def batches_of(engine, prompts):
    """The batches of these prompts, as the pool plans them."""
    pool = Pool()
    for request in requests_of(prompts):
        pool.add(request, is_small=False)
    return [piece.batch("packed") for piece in iter(partial(pool.take, engine.info), None)]


def latency(engine, groups) -> dict[str, float]:
    """Milliseconds for 16 items of one query, prepared and scored: the same 16 again and again, and others."""

    def milliseconds(prompts):
        (batch,) = batches_of(engine, prompts)
        start = time.perf_counter()
        engine.score(batch)
        return 1_000 * (time.perf_counter() - start)

    of_group = [[np.concatenate([group.prefix, item]) for item in group.items] for group in groups]
    same = [milliseconds(of_group[0][:16]) for _ in range(NUM_REQUESTS + 5)][5:]
    others = [milliseconds(of_group[nth % 20][16 * (nth // 20) :][:16]) for nth in range(NUM_REQUESTS)]
    tokens = len(groups[0].prefix) * 16 + sum(map(len, groups[0].items[:16]))
    at = lambda values, share: float(np.quantile(values, share))  # noqa: E731
    return {
        "tokens": tokens,
        "p50": at(same, 0.5),
        "p95": at(same, 0.95),
        "others_p50": at(others, 0.5),
        "others_p95": at(others, 0.95),
    }


def profile(engine, batch) -> tuple[dict[str, float], list[tuple[float, int, str]]]:
    """Device milliseconds of one batch by part, and by kernel."""
    launch = engine.prepare(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        launch()()
    parts, kernels = defaultdict(float), []
    for event in profiler.key_averages():
        milliseconds = event.self_device_time_total / 1_000
        parts[_part(event.key)] += milliseconds
        kernels.append((milliseconds, event.count, event.key[:90]))
    return dict(parts), sorted(kernels, reverse=True)[:TABLE_ROWS]


def _part(kernel: str) -> str:
    if "_attend_tile" in kernel:
        return "attention"
    if any(name in kernel for name in ("nvjet", "gemm", "cutlass", "xmma")):
        return "products"
    if kernel.startswith(("_slice_sums", "_gather")):
        return "head"
    return "copies" if kernel.startswith(("Memcpy", "Memset")) else "elementwise"


def peak_gib(engine, batch) -> float:
    """Peak memory of one batch above what is allocated for good, in GiB."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    engine.score(batch)
    return (torch.cuda.max_memory_allocated() - before) / 2**30


@torch.inference_mode()
def plain_logprobs(model, prompts, batch_size):
    """Plain Transformers: sorted, padded on the left, the last position's logits."""
    order = sorted(range(len(prompts)), key=lambda nth: len(prompts[nth]))
    found = torch.empty(len(prompts), len(workloads.LABEL_IDS))
    labels = torch.tensor(workloads.LABEL_IDS, device="cuda")
    for first in range(0, len(order), batch_size):
        part = order[first : first + batch_size]
        length = max(len(prompts[nth]) for nth in part)
        ids, mask = np.zeros((len(part), length), np.int64), np.zeros((len(part), length), np.int64)
        for row, nth in enumerate(part):
            ids[row, length - len(prompts[nth]) :] = prompts[nth]
            mask[row, length - len(prompts[nth]) :] = 1
        inputs = {
            "input_ids": torch.from_numpy(ids).cuda(),
            "attention_mask": torch.from_numpy(mask).cuda(),
            "position_ids": torch.from_numpy(np.maximum(mask.cumsum(1) - 1, 0)).cuda(),
        }
        logits = model(**inputs, use_cache=False, logits_to_keep=1).logits[:, 0]
        found[part] = logits.float().log_softmax(-1)[:, labels].cpu()
    return found.numpy()


def plain_throughput(model, prompts) -> float:
    """Items a second of plain Transformers."""
    plain_logprobs(model, prompts[:256], PLAIN_BATCH)
    start = time.perf_counter()
    plain_logprobs(model, prompts, PLAIN_BATCH)
    return len(prompts) / (time.perf_counter() - start)


def errors(engine, twin, groups) -> dict[str, float]:
    """Largest and mean differences from float32, ours and plain Transformers' own, of 160 items in one batch."""
    prompts = [np.concatenate([group.prefix, item]) for group in groups[:20] for item in group.items[:8]]
    (batch,) = batches_of(engine, prompts)
    (request,) = requests_of(prompts)
    drive(engine, [request])
    truth = plain_logprobs(copy.deepcopy(twin).float(), prompts, 16)
    plain = np.abs(plain_logprobs(twin, prompts, 1) - truth)
    ours = np.abs(request.label_logprobs - truth)
    return {
        "tokens": len(batch.token_ids_T),
        "ours_max": float(ours.max()),
        "ours_mean": float(ours.mean()),
        "plain_max": float(plain.max()),
        "plain_mean": float(plain.mean()),
    }


def boot_seconds(dtype, folder=None) -> float:
    """Seconds from the start of a process to its first score; a folder without compiled code makes it a cold one."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    environment = os.environ | ({name: f"{folder}/{name}" for name in names} if folder else {})
    start = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--boot", "--dtype", dtype], check=True, env=environment)
    return time.perf_counter() - start


def boot(dtype) -> None:
    engine = engine_of(random_model(), dtype)
    prompts = workloads.prompts(workloads.shared_query()[:1])[:16]
    engine.score(batches_of(engine, prompts)[0])
    torch.cuda.synchronize()


class Figures:
    """What is measured, told at once: a run that is cut has told what it had."""

    def __init__(self) -> None:
        self.found = {"chip": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
        self.found |= {"transformers": transformers.__version__}

    def tell(self, what: str, key: str, value) -> None:
        self.found[key] = value
        shown = value if isinstance(value, dict) else {"": value}
        words = "  ".join(f"{name} {number:,.4g}".strip() for name, number in shown.items())
        print(f"{what:56}{words}", flush=True)


def main() -> int:
    """Measure all, print."""
    options = _options()
    figures, start = Figures(), time.perf_counter()
    model = random_model()
    twin = twin_of(model)
    engine = engine_of(model, options.dtype)
    figures.tell("first boot, s", "first_boot_seconds", time.perf_counter() - start)
    shared, pairs = workloads.shared_query(), workloads.pairs()
    figures.tell("W1, items/s", "w1", throughput(engine, shared))
    figures.tell("W2, items/s", "w2", throughput(engine, pairs))
    figures.tell("16 items, ms", "latency_ms", latency(engine, shared))
    batch = batches_of(engine, workloads.prompts(shared))[0]
    figures.tell("peak memory above weights, GiB", "peak_gib", peak_gib(engine, batch))
    parts, kernels = profile(engine, batch)
    figures.tell("one batch of 65,536 tokens, ms", "parts_ms", parts)
    figures.tell("difference from float32", "errors", errors(engine, twin, shared))
    figures.tell("W1 again, items/s", "w1_again", throughput(engine, shared))
    for milliseconds, count, name in kernels:
        print(f"{milliseconds:9.3f} ms {count:5} x {name}")
    if not options.brief:
        figures.tell("W1, plain Transformers, items/s", "plain_w1", plain_throughput(twin, workloads.prompts(shared)))
    del engine, model, twin
    torch.cuda.empty_cache()
    if not options.brief:
        figures.tell("boot, compiled code cached, s", "boot_cached_seconds", boot_seconds(options.dtype))
    if options.cold:
        with tempfile.TemporaryDirectory() as folder:
            figures.tell("boot, nothing cached, s", "boot_cold_seconds", boot_seconds(options.dtype, folder))
    print(json.dumps({"dtype": options.dtype, **figures.found}))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", FP8])
    parser.add_argument("--boot", action="store_true", help="only start an engine and score once")
    parser.add_argument("--cold", action="store_true", help="also time a boot without compiled code")
    parser.add_argument("--brief", action="store_true", help="neither plain Transformers nor boots")
    return parser.parse_args()


if __name__ == "__main__":
    if "--boot" in sys.argv:
        boot(_options().dtype)
    else:
        sys.exit(main())
