"""Entries of ``models.toml``: how a model is to be served, before anything of it is loaded.

Knows the file's text. Reading the file and loading the model are others' matters.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from core.errors import Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """Under this query the first item must score higher than the second, by the entry's margin."""

    query: str
    better: str
    worse: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model. ``source`` is a folder, a hub id or a .gguf file; empty values leave the choice to the settings."""

    name: str
    source: str
    revision: str = ""  # of a hub id; a branch, a tag or a commit
    dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_tokens: int = 0
    max_batch_tokens: int = 0
    template: str = "none"
    labels: list[str] = field(default_factory=list)  # default: the template's
    templates: dict[str, str] = field(default_factory=dict)  # the user's own: name to the file that holds it
    known_answers: list[KnownAnswer] = field(default_factory=list)
    margin: float = 0.1

    @property
    def is_verifiable(self) -> bool:
        """Whether a mis-templated model would be found out."""
        return bool(self.known_answers)


def parse(text: str, *, file: str) -> dict[str, ModelEntry]:
    """The entries of a ``models.toml`` by name. Raises Broken naming the file, the entry and the field."""
    try:
        tables: Mapping[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Broken(f"{file} is no TOML: {error}") from error
    entries = {}
    for name, table in tables.items():
        unknown = sorted(set(table) - {each for each in ModelEntry.__dataclass_fields__ if each != "name"})
        if unknown:
            raise Broken(f"{file}, [{name}]: there is no field {unknown[0]!r}")
        try:
            entries[name] = msgspec.convert({**table, "name": name}, ModelEntry)
        except msgspec.ValidationError as error:
            raise Broken(f"{file}, [{name}]: {error}") from error
    return entries
