"""What an engine is started with: the part of the settings that an engine process needs, small enough to travel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core.model_cards import FAKE_MODEL
from core.model_entries import ModelEntry

if TYPE_CHECKING:
    from core.settings import Settings  # the engine process has no use for pydantic


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Each field means what the setting of its name means; ``model_name`` is never empty."""

    model: str = FAKE_MODEL
    model_name: str = FAKE_MODEL
    revision: str = ""
    device: str = "auto"
    gpu_dir: str = ""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = "auto"
    engine: Literal["auto", "padded", "packed"] = "auto"
    label_gather: Literal["auto", "triton", "reference"] = "auto"
    max_model_tokens: int = 0
    max_batch_tokens: int = 0
    torch_threads: int = 0

    @classmethod
    def from_settings(cls, settings: Settings, entry: ModelEntry | None = None) -> EngineOptions:
        """What the settings ask for; what they leave open is as the model's entry says."""
        entry = entry or ModelEntry(name=default_name(settings.model), source=settings.model)
        return cls(
            model=entry.source,
            model_name=settings.model_name or entry.name,
            revision=entry.revision,
            device=settings.device if settings.device != "auto" else entry.device,
            gpu_dir=settings.gpu_dir,
            dtype=settings.dtype if settings.dtype != "auto" else entry.dtype,
            engine=settings.engine,
            label_gather=settings.label_gather,
            max_model_tokens=settings.max_model_tokens or entry.max_tokens,
            max_batch_tokens=settings.max_batch_tokens or entry.max_batch_tokens,
            torch_threads=settings.torch_threads,
        )


def default_name(model: str) -> str:
    """The last part of a folder, a hub id or a file's path, without ``.gguf``."""
    return Path(model.rstrip("/")).name.removesuffix(".gguf") or model
