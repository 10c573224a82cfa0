"""The catalogue of models that Rankmill knows how to serve, and an operator's own beside it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from core.errors import Broken
from core.model_entries import ModelEntry, parse


def catalogue(models_file: str) -> dict[str, ModelEntry]:
    """Every entry by name, those of ``models_file`` (none: empty) over ours. Raises Broken where it can't be read."""
    entries = parse((files("core") / "models.toml").read_text(), file="models.toml")
    if models_file:
        try:
            text = Path(models_file).read_text()
        except OSError as error:
            raise Broken(f"RANKMILL_MODELS_FILE can't be read: {error}") from error
        entries |= parse(text, file=models_file)
    return entries
