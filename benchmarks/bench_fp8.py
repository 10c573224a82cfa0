"""fp8 beside bfloat16: how far scores move, whether they rank as before, and what it brings in speed.

    python benchmarks/bench_fp8.py [--queries 10]
    PYTHONPATH=.:kernels python3 benchmarks/bench_fp8.py --model random

The first scores Cranfield's passages with the demo's real weights by ``core``'s templates ``topic`` (labels) and
``query-likelihood``: in float32, in bfloat16 and in fp8, whose products plain torch computes on a CPU, so that
differences are what a GPU's would be but for the order of sums, and times mean nothing. The second needs a GPU of
compute capability 8.9: W1 at the shape of Qwen3-0.6B with random weights, timed and compared. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
import transformers

from core.builtin_templates import QUERY_LIKELIHOOD, TOPIC
from core.jobs import JobParameters
from worker.engine.checkpoint import Checkpoint, load
from worker.engine.fp8 import FAST_ACCUMULATION, replace_products
from worker.engine.options import EngineOptions
from worker.engine.packed_model import layers_of

from ranking import kendall, ndcg  # isort: skip - lies beside this script

TOPICS = (" heat", " flow", " pressure", " structure", " noise")
MAX_TOKENS = 128


def in_fp8(checkpoint: Checkpoint) -> Checkpoint:
    """The loaded bfloat16 model, its products replaced, whatever the device."""
    model = checkpoint.model
    replace_products("the model", model, layers_of(model), model.device)
    return checkpoint


def differences(found, truth) -> dict[str, float]:
    """Largest and mean."""
    apart = np.abs(np.subtract(found, truth, dtype=np.float64))
    return {"max": float(apart.max()), "mean": float(apart.mean())}


class RealWeights:
    """The demo's model over passages of Cranfield, once a dtype."""

    def __init__(self, num_queries: int) -> None:
        from bench_likelihood import CRANFIELD, read_grades, read_lines

        self.queries, self.passages = (read_lines(CRANFIELD / name) for name in ("queries.jsonl", "docs.jsonl"))
        candidates = json.loads((CRANFIELD / "candidates.json").read_text())
        self.held = dict(list(candidates.items())[:num_queries])
        self.grades = read_grades(CRANFIELD / "qrels.tsv")

    def score(self, dtype: str) -> dict[str, Any]:
        """Topics' log-probabilities and probabilities [passages, topics], and likelihoods and nDCG by query."""
        from bench_likelihood import Worker, default_model

        model = default_model()
        options = EngineOptions(
            model=model, model_name="smollm2", dtype="float32" if dtype == "float32" else "bfloat16"
        )
        checkpoint = load(options, torch.device("cpu"))
        if dtype == "fp8":
            in_fp8(checkpoint)
        began = time.perf_counter()
        worker = Worker(_InProcess(options, checkpoint), MAX_TOKENS)
        likelihoods, found_ndcg = [], []
        for query, held in self.held.items():
            parameters = JobParameters("m", self.queries[query], [], template=QUERY_LIKELIHOOD, method="likelihood")
            scores, _ = worker.scores(parameters, [self.passages[doc] for doc in held])
            likelihoods.append(scores)
            order = sorted(range(len(held)), key=lambda place: -scores[place])
            found_ndcg.append(ndcg([self.grades.get((query, held[place]), 0) for place in order]))
            print(f"{dtype} query {query:>3} nDCG@10 {found_ndcg[-1]:.3f}", flush=True)
        docs = sorted({doc for held in self.held.values() for doc in held})
        labels = [list(ids) for ids in worker.tokenizer.encode_texts(list(TOPICS))]
        assert all(len(ids) == 1 for ids in labels), labels
        parameters = JobParameters("m", "", [ids[0] for ids in labels], template=TOPIC)
        results = worker.results(parameters, [self.passages[doc] for doc in docs], include=("label_logprobs",))
        worker.stop()
        print(f"{dtype}: {time.perf_counter() - began:.0f} s", flush=True)
        return {
            "logprobs": np.array([result.label_logprobs for result in results]),
            "probabilities": np.array([result.probabilities for result in results]),
            "likelihoods": likelihoods,
            "ndcg": found_ndcg,
        }


class _InProcess:
    """A loaded model as ``bench_likelihood`` wants its engine process."""

    progress = 0.0

    def __init__(self, options: EngineOptions, checkpoint: Checkpoint) -> None:
        from worker.engine.packed import PackedEngine, packed_engine

        engine = packed_engine(options, checkpoint, lambda: None)
        assert isinstance(engine, PackedEngine), engine
        self.info, self.score = engine.info, engine.score

    def wait_ready(self, _timeout_seconds: float):
        return self.info


def compare(found: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """How one dtype's scores differ from another's, and how alike they rank."""
    first, other = (each["probabilities"] for each in (found, truth))
    return {
        "topic_logprob": differences(found["logprobs"], truth["logprobs"]),
        "topic_probability": differences(first, other),
        "topic_same_best": float((first.argmax(1) == other.argmax(1)).mean()),
        "likelihood": differences(np.concatenate(found["likelihoods"]), np.concatenate(truth["likelihoods"])),
        "kendall": float(
            np.mean([kendall(*pair) for pair in zip(found["likelihoods"], truth["likelihoods"], strict=True)])
        ),
    }


def real(num_queries: int) -> dict[str, Any]:
    weights = RealWeights(num_queries)
    found = {dtype: weights.score(dtype) for dtype in ("float32", "bfloat16", "fp8")}
    return {
        "queries": num_queries,
        "passages_for_topics": len(found["fp8"]["logprobs"]),
        "likelihoods": sum(map(len, found["fp8"]["likelihoods"])),
        "ndcg_at_10": {dtype: float(np.mean(each["ndcg"])) for dtype, each in found.items()},
        "ndcg_difference_of_a_query": differences(found["fp8"]["ndcg"], found["float32"]["ndcg"]),
        "fp8 to float32": compare(found["fp8"], found["float32"]),
        "fp8 to bfloat16": compare(found["fp8"], found["bfloat16"]),
        "bfloat16 to float32": compare(found["bfloat16"], found["float32"]),
    }


def random_weights() -> dict[str, Any]:
    """W1 by either dtype: items a second, three times in turn, and the differences of all its 4,000 items."""
    import bench_engine as bench
    import workloads

    shared = workloads.shared_query()
    prompts = workloads.prompts(shared)
    engines, figures = {}, {}
    for dtype in ("bfloat16", "fp8"):
        torch.cuda.empty_cache()
        before, began = torch.cuda.memory_allocated(), time.perf_counter()
        engines[dtype] = bench.engine_of(bench.random_model(), dtype)
        figures[dtype] = {
            "weights_gib": (torch.cuda.memory_allocated() - before) / 2**30,
            "boot_seconds": time.perf_counter() - began,
            "choices": engines[dtype].info.choices,
            "dtype": engines[dtype].info.card.dtype,
        }
    for _ in range(3):
        for dtype, engine in engines.items():
            figures[dtype].setdefault("w1", []).append(bench.throughput(engine, shared))
    for dtype, engine in engines.items():
        (batch, *_) = bench.batches_of(engine, prompts)
        figures[dtype]["w2"] = bench.throughput(engine, workloads.pairs())
        figures[dtype]["parts_ms"], kernels = bench.profile(engine, batch)
        figures[dtype]["kernels"] = [f"{ms:.3f} ms {count} x {name}" for ms, count, name in kernels]
        figures[dtype]["latency_ms"] = bench.latency(engine, shared)
        figures[dtype]["peak_gib"] = bench.peak_gib(engine, batch)
    twin = bench.random_model()
    for dtype, engine in engines.items():
        figures[dtype]["to_float32"] = bench.errors(engine, twin, shared)
    scores = {dtype: _logprobs(bench, engine, prompts) for dtype, engine in engines.items()}
    order = np.random.default_rng(0).permutation(len(prompts))
    again = {dtype: _logprobs(bench, engine, [prompts[n] for n in order]) for dtype, engine in engines.items()}
    for dtype in engines:
        figures[dtype]["in_other_batches"] = _compared(again[dtype], scores[dtype][order])
    groups = [slice(first, first + 200) for first in range(0, len(prompts), 200)]
    pairs = [[_probability(scores[dtype][rows]) for dtype in engines] for rows in groups]
    return {
        "chip": torch.cuda.get_device_name(),
        "fast_accumulation": FAST_ACCUMULATION,
        **figures,
        "fp8 to bfloat16": _compared(scores["fp8"], scores["bfloat16"]),
        "kendall": float(np.mean([kendall(*pair) for pair in pairs])),
    }


def _logprobs(bench, engine, prompts):
    requests = bench.requests_of(prompts)
    bench.drive(engine, requests)
    return np.concatenate([request.label_logprobs for request in requests])


def _probability(logprobs_BL):
    """Of the first of two labels."""
    return 1 / (1 + np.exp(np.float64(logprobs_BL[:, 1]) - logprobs_BL[:, 0]))


def _compared(found, truth) -> dict[str, Any]:
    return {
        "logprob": differences(found, truth),
        "probability": differences(_probability(found), _probability(truth)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", choices=["smollm2", "random"])
    parser.add_argument("--queries", type=int, default=10, help="of Cranfield's 25, 20 passages each")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    found = random_weights() if options.model == "random" else real(options.queries)
    print(json.dumps(found, indent=1))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"model": options.model, **versions, **found}))


if __name__ == "__main__":
    main()
