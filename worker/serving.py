"""How a model is served: its entry in the catalogue, its templates, its labels, its tokenizer, all resolved at boot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from core.builtin_templates import QWEN3_RERANKER
from core.errors import Refused
from core.model_cards import ModelCard
from core.model_catalogue import catalogue
from core.model_entries import ModelEntry
from core.settings import Settings
from core.templates import Template, sections
from store.label_tokens import label_tokens
from store.tokenizer import JsonTokenizer, Tokenizer, tokenizer_for
from worker.engine.protocol import EngineInfo, EngineRefused
from worker.fast_tokenizer import differences

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Served:
    """A model as it is published: its finished card and what reads its texts."""

    card: ModelCard
    tokenizer: Tokenizer
    tokenizer_json: bytes | None
    engine_version: str


def entry_of(settings: Settings) -> ModelEntry | None:
    """The catalogue's entry of the model; None where ``model`` names a folder, a hub id or a file by itself."""
    return catalogue(settings.models_file).get(settings.model)


def serve(info: EngineInfo, entry: ModelEntry | None, settings: Settings) -> Served:
    """Finish the engine's card. Raises EngineRefused where entry, templates, labels or tokenizer can't be right."""
    card = info.card
    if card.tokenizer == "bytes":
        return Served(card, tokenizer_for(card, None), None, info.engine_version)
    assert info.tokenizer_json is not None, "an engine of a real model sends its tokenizer"
    is_fast = _is_fast(info.tokenizer_json, settings)
    tokenizer = JsonTokenizer(info.tokenizer_json, is_fast=is_fast)
    card = replace(card, tokenizer="fastokens" if is_fast else "json")
    if entry is not None:
        card = _with_entry(card, entry, tokenizer)
    return Served(card, tokenizer, info.tokenizer_json, info.engine_version)


def label_ids(tokenizer: Tokenizer, labels: list[str]) -> list[int]:
    """One id a label. Raises EngineRefused for a label that is no single token."""
    found = []
    for label in labels:
        ids = label_tokens(tokenizer, label)
        if len(ids) != 1:
            raise EngineRefused(f"the label {label!r} is {len(ids)} tokens of this model; a label is one")
        found.append(ids[0])
    if len(set(found)) < len(found):
        raise EngineRefused(f"two of the labels {labels} are the same token")
    return found


def _with_entry(card: ModelCard, entry: ModelEntry, tokenizer: Tokenizer) -> ModelCard:
    own = [_template(name, file) for name, file in entry.templates.items()]
    kept = [template for template in card.templates if template.name not in entry.templates]
    card = replace(card, templates=[*kept, *_builtin(entry.template), *own], default_template=entry.template)
    try:
        template = card.template(entry.template)
    except Refused as refusal:
        raise EngineRefused(f"models.toml, [{entry.name}]: {refusal.detail}") from refusal
    labels = entry.labels or template.labels
    return replace(card, default_label_token_ids=None if labels is None else label_ids(tokenizer, labels))


def _builtin(name: str) -> list[Template]:
    """A template of one family of models, offered only where an entry asks for it."""
    return [QWEN3_RERANKER] if name == QWEN3_RERANKER.name else []


def _template(name: str, file: str) -> Template:
    try:
        text = Path(file).read_text().removesuffix("\n")
        sections(text)
    except (OSError, Refused) as error:
        raise EngineRefused(f"the template {name} in {file} can't be used: {error}") from error
    return Template(name, text)


def _is_fast(tokenizer_json: bytes, settings: Settings) -> bool:
    if settings.tokenizer == "tokenizers":
        return False
    found = differences(tokenizer_json)
    if found and settings.tokenizer == "fastokens":
        raise EngineRefused(f"RANKMILL_TOKENIZER is fastokens, which does not fit this model: {found[0]}")
    log.info("tokenizer chosen", tokenizer="tokenizers" if found else "fastokens", reason=found[0] if found else None)
    return not found
