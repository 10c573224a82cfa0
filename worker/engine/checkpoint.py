"""A causal language model from a folder, a hub id or a .gguf file: loaded, and refused where its scores would be wrong.

Nothing here guesses: a checkpoint that lacks its head, holds NaN or is of another kind is refused with the reason.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from core.builtin_templates import PLAIN
from core.model_cards import ModelCard
from core.templates import Template
from worker.engine.chat import judge_template
from worker.engine.fp8 import FP8, check_device, dtype_of, extent, replace_products
from worker.engine.options import EngineOptions
from worker.engine.packed_model import layers_of
from worker.engine.protocol import EngineRefused

REVISION_DIGITS = 12
WEIGHTS = (".safetensors", ".bin", ".json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model. ``vocab_size`` counts the ids that its tokenizer can make; the head may have more rows."""

    model: Any  # a transformers.PreTrainedModel, in eval mode, on its device
    tokenizer_json: bytes
    revision: str
    max_tokens: int
    vocab_size: int
    templates: list[Template]  # those that every model has, and a judge where the model chats

    @property
    def dtype(self) -> str:
        """The type of its weights; fp8 where products are."""
        return dtype_of(self.model)

    @property
    def choices(self) -> dict[str, str]:
        """What an engine of this model tells of it beside its card."""
        return {"fp8": extent(layers_of(self.model))} if self.dtype == FP8 else {}

    def card(self, options: EngineOptions, *, engine: str) -> ModelCard:
        """What an engine of this model publishes of it."""
        return ModelCard(
            name=options.model_name,
            source=options.model,
            revision=self.revision,
            dtype=self.dtype,
            engine=engine,
            max_tokens=self.max_tokens,
            vocab_size=self.vocab_size,
            tokenizer="json",
            templates=self.templates,
        )


def load(options: EngineOptions, device: torch.device) -> Checkpoint:
    """Load the options' model onto the device. Raises EngineRefused with the reason."""
    transformers_logging.disable_progress_bar()
    if options.dtype == FP8:
        check_device(device)
    source, where = _locate(options.model)
    if options.revision:
        where["revision"] = options.revision
    config = AutoConfig.from_pretrained(source, **where)
    _check_kind(options.model, config)
    tokenizer = AutoTokenizer.from_pretrained(source, **where)
    if getattr(config.get_text_config(), "attn_logit_softcapping", None):
        where["attn_implementation"] = "eager"  # SDPA knows no soft-cap, and some versions of Transformers don't mind
    with ThreadPoolExecutor(1, "revision") as beside:  # to read all weights takes as long as to load them
        revision = beside.submit(_revision, options.model, config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=_loaded_dtype(options, device), output_loading_info=True, **where
        )
        model, loading = loaded
        _check_weights(options.model, model, loading)
    model.eval().requires_grad_(requires_grad=False)
    if options.dtype == FP8:
        replace_products(options.model, model, layers_of(model), device)
    return Checkpoint(
        model=model.to(device),
        tokenizer_json=_tokenizer_json(options.model, tokenizer),
        revision=revision.result(),
        max_tokens=_max_tokens(options, model.config.get_text_config()),
        vocab_size=min(len(tokenizer), model.get_input_embeddings().weight.shape[0]),
        templates=[*PLAIN, *([judge] if (judge := judge_template(tokenizer)) else [])],
    )


def _locate(model: str) -> tuple[str, dict[str, str]]:
    if model.endswith(".gguf"):
        path = Path(model)
        if not path.is_file():
            raise EngineRefused(f"there is no file {model}")
        return str(path.parent), {"gguf_file": path.name}
    if model.startswith((".", "/", "~")) and not Path(model).is_dir():
        raise EngineRefused(f"there is no folder {model}")
    return model, {}


def _loaded_dtype(options: EngineOptions, device: torch.device) -> str:
    if options.dtype == "auto":
        return "auto" if device.type == "cuda" else "float32"
    return "bfloat16" if options.dtype == FP8 else options.dtype


def _check_kind(model: str, config: Any) -> None:
    if config.is_encoder_decoder:
        raise EngineRefused(f"{model} is an encoder-decoder model; only causal language models can be served")
    kinds = config.architectures or []
    if kinds and not set(kinds) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise EngineRefused(
            f"{model} is a {', '.join(kinds)}; only causal language models with their head can be served"
        )
    if "bert" in config.model_type and not getattr(config, "is_decoder", False):
        raise EngineRefused(f"{model} sees tokens on both sides (is_decoder is false): it is no causal language model")


def _check_weights(name: str, model: Any, loading: dict[str, Any]) -> None:
    absent = sorted(map(str, loading["missing_keys"])) + sorted(map(str, loading["mismatched_keys"]))
    if absent:
        raise EngineRefused(
            f"{name} lacks {len(absent)} of its weights, or has them in another shape: {absent[0]}, ..."
        )
    if model.get_output_embeddings() is None:
        raise EngineRefused(f"{name} has no output head")
    for key, weight in model.named_parameters():
        if not _is_finite(weight):
            raise EngineRefused(f"{name} holds NaN or infinity in {key}")


def _is_finite(weight: torch.Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel():
        return True
    least_and_most = torch.stack(torch.aminmax(weight))  # NaN where there is any; ``isfinite`` of all takes far longer
    return bool(torch.isfinite(least_and_most).all())


def _tokenizer_json(name: str, tokenizer: Any) -> bytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EngineRefused(f"{name} has no tokenizer.json and none could be made of what it has")
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str()).encode()


def _max_tokens(options: EngineOptions, config: Any) -> int:
    own: int | None = getattr(config, "max_position_embeddings", None)
    asked = options.max_model_tokens
    if own is None:
        if not asked:
            raise EngineRefused(f"{options.model} does not say how long a prompt may be: set RANKMILL_MAX_MODEL_TOKENS")
        return asked
    if asked > own:
        raise EngineRefused(f"RANKMILL_MAX_MODEL_TOKENS is {asked}, but {options.model} takes {own} tokens at most")
    return asked or own


def _revision(model: str, config: Any) -> str:
    """The hub's commit, or the digest of what lies in the folder or the file: equal revisions are equal weights."""
    commit = getattr(config, "_commit_hash", None)
    if commit:
        return str(commit)[:REVISION_DIGITS]
    path = Path(model)
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in WEIGHTS)
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(file.name) if len(files) > 1 else b"")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:REVISION_DIGITS]
