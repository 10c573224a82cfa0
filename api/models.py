"""The served models: their shape on the wire, and their route."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from msgspec import Struct

from api import answers, openapi
from api.process import InProcess
from core.templates import Template
from store import model_cards
from store.model_cards import ServedModel

routes = APIRouter(tags=["models and workers"])


class TemplateAnswer(Struct, frozen=True, kw_only=True):
    """A way to ask this model. ``labels``, ``instruction`` and ``target`` are what a job gets that names none."""

    name: str
    version: str
    text: str
    labels: list[str] | None
    instruction: str
    target: str | None


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """A model that jobs can name. Token ids and label ids are 0 to ``vocab_size`` - 1.

    ``is_verified``: its worker checked it against known answers when it started.
    """

    name: str
    object: Literal["model"] = "model"
    source: str
    revision: str
    dtype: str
    engine: str
    max_tokens: int
    vocab_size: int
    default_template: str
    default_label_token_ids: list[int] | None
    templates: list[TemplateAnswer]
    is_verified: bool
    num_workers_ready: int


class ModelList(Struct, frozen=True):
    """Every served model, by name."""

    items: list[ModelAnswer]


@routes.get("/v1/models", summary="List the served models", **openapi.LIST_MODELS)
def list_models(process: InProcess) -> Response:
    """Every model that a worker has published, and how many workers would score with it now."""
    with process.database.begin() as connection:
        served = model_cards.list_all(connection)
    return answers.respond(ModelList([_answer(model) for model in served]))


def _answer(served: ServedModel) -> ModelAnswer:
    card = served.card
    return ModelAnswer(
        name=card.name,
        source=card.source,
        revision=card.revision,
        dtype=card.dtype,
        engine=card.engine,
        max_tokens=card.max_tokens,
        vocab_size=card.vocab_size,
        default_template=card.default_template,
        default_label_token_ids=card.default_label_token_ids,
        templates=[_template(template) for template in card.templates],
        is_verified=card.is_verified,
        num_workers_ready=served.num_workers_ready,
    )


def _template(template: Template) -> TemplateAnswer:
    return TemplateAnswer(
        name=template.name,
        version=template.version,
        text=template.text,
        labels=template.labels,
        instruction=template.instruction,
        target=template.target,
    )
