"""The models that ``bench_system`` serves, made on the spot: the fake one, or random weights, seeded, in a real shape.

    python benchmarks/system_model.py qwen3-0.6b FOLDER [TOKENIZER.JSON]

Run as a program to make a checkpoint, so that whoever asks for one holds no memory of a GPU. Without a tokenizer the
model gets one of bytes, which reads token ids and no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from core.builtin_templates import QWEN3_RERANKER
from core.templates import NONE, Template

NAME = "bench"
QWEN3_IDS = 151_000  # its tokens of text are below
QWEN3_LABELS = (9693, 2152)  # "yes", "no"
SHAPES = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
}
DTYPES = {"qwen3-0.6b": "bfloat16", "tiny": "float32"}
QWEN3_ROWS = 151_936


@dataclass(frozen=True)
class Model:
    """What is served. Token ids of a load are below ``num_ids``; ``tokenizer_file`` is None where texts can't be read."""

    source: str
    num_ids: int
    label_ids: tuple[int, ...]
    template: Template
    tokenizer_file: Path | None
    environment: dict[str, str] = field(default_factory=dict)

    def settings(self, folder: Path) -> dict[str, str]:
        """What processes are told of it; ``folder`` gets the file that it takes."""
        if self.source == "fake":
            return {"RANKMILL_MODEL": "fake", **self.environment}
        file = folder / "models.toml"
        file.write_text(f'[{NAME}]\nsource = "{self.source}"\ntemplate = "{self.template.name}"\n')
        return {"RANKMILL_MODEL": NAME, "RANKMILL_MODELS_FILE": str(file), **self.environment}


def made(kind: str, folder: Path, tokenizer_file: Path | None) -> Model:
    """The model of this kind, its checkpoint in the folder: made there, unless there is one."""
    if kind == "fake":
        environment = {} if tokenizer_file is None else {"RANKMILL_FAKE_TOKENIZER": str(tokenizer_file.absolute())}
        num_ids = 256 if tokenizer_file is None else QWEN3_IDS
        return Model("fake", num_ids, (0, 1), NONE, tokenizer_file, environment)
    arguments = [] if tokenizer_file is None else [str(tokenizer_file)]
    command = [sys.executable, __file__, kind, str(folder), *arguments]
    if not (folder / "config.json").exists():
        subprocess.run(command, check=True, env=os.environ | {"TQDM_DISABLE": "1"})
    if tokenizer_file is None:
        return Model(str(folder), 256, (97, 98), NONE, None)
    return Model(str(folder), QWEN3_IDS, QWEN3_LABELS, QWEN3_RERANKER, tokenizer_file)


def make_checkpoint(kind: str, folder: Path, tokenizer_file: Path | None) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        **SHAPES[kind],
        vocab_size=320 if tokenizer_file is None else QWEN3_ROWS,
        max_position_embeddings=40_960,
        rope_theta=1e6,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
    )
    torch.set_default_dtype(getattr(torch, DTYPES[kind]))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    _tokenizer(tokenizer_file).save_pretrained(folder)


def _tokenizer(file: Path | None):
    import tokenizers
    import transformers

    if file is not None:
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({byte: at for at, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


if __name__ == "__main__":
    make_checkpoint(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
