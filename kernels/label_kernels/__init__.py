"""Kernels for a causal language model that scores labels, in Triton; each one's definition is in ``reference``.

From hidden states or logits to labels: ``label_logprobs``, ``gather_label_logprobs``. Inside a layer: ``prefix_attention``,
``rotated_product``, ``gated_product``, and in eight bits ``quantise_rows`` and ``quantise_gated``.
"""

from __future__ import annotations

from label_kernels.attention_plan import AttentionPlan, plan_attention
from label_kernels.gated_product import gated_product
from label_kernels.gather_label_logprobs import gather_label_logprobs
from label_kernels.label_logprobs import label_logprobs
from label_kernels.prefix_attention import prefix_attention
from label_kernels.quantise_rows import quantise_gated, quantise_rows
from label_kernels.rotated_product import rotated_product

__all__ = [
    "AttentionPlan",
    "gated_product",
    "gather_label_logprobs",
    "label_logprobs",
    "plan_attention",
    "prefix_attention",
    "quantise_gated",
    "quantise_rows",
    "rotated_product",
]
