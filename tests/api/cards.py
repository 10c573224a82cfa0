"""The models that the tests of the front end have served."""

from __future__ import annotations

from core.builtin_templates import PLAIN, QWEN3_RERANKER
from core.model_cards import ModelCard

FAKE_CARD = ModelCard(
    "fake", "fake", "1", "float32", "fake", 4096, 256, "bytes", default_label_token_ids=[0, 1], is_verified=True
)
QWEN3_CARD = ModelCard(
    "qwen3",
    "Qwen/Qwen3-Reranker-0.6B",
    "2026",
    "bfloat16",
    "padded",
    512,
    151_669,
    "json",
    default_template=QWEN3_RERANKER.name,
    default_label_token_ids=[9693, 2152],
    templates=[*PLAIN, QWEN3_RERANKER],
)
