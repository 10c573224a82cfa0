"""Model cards: what a worker publishes of the model that it serves, enough for a front end without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from core.builtin_templates import PLAIN
from core.errors import Refused
from core.templates import Template

FAKE_MODEL = "fake"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model.

    ``vocab_size`` counts the ids that a tokenizer can make (added tokens included, padding rows of the embedding
    not). ``tokenizer`` says how texts become ids: ``bytes`` (the fake model: UTF-8 bytes), ``json`` (a Hugging
    Face ``tokenizer.json``, published beside the card) or ``fastokens`` (the same file, texts read by that library). ``default_label_token_ids`` is None where a job must
    name its labels. ``is_verified``: the model passed its known answers when its worker started.
    """

    name: str
    source: str
    revision: str
    dtype: str
    engine: str
    max_tokens: int
    vocab_size: int
    tokenizer: Literal["bytes", "json", "fastokens"]
    default_template: str = "none"
    default_label_token_ids: list[int] | None = None
    templates: list[Template] = field(default_factory=lambda: list(PLAIN))
    is_verified: bool = False

    def template(self, name: str) -> Template:
        """The template of that name. Raises Refused where the model has none."""
        for template in self.templates:
            if template.name == name:
                return template
        known = ", ".join(sorted({template.name for template in self.templates}))
        raise Refused("unknown_template", f"{self.name} has no template {name!r}; it has {known}", field="template")
