"""Attention over a packed batch as a function that Transformers calls: any model that calls it has its layers packed.

Registered under ``NAME`` when this file is imported. What a layer's attention must know of the batch reaches it as the
keyword argument ``packed``, which models hand down through their layers. What a model asks of attention is honoured, or
found by ``Inspection`` at load: scale, sliding window, soft-cap and sinks are; a mask of its own is not.

    T = packed tokens, Q = tokens that a layer has queries of, H = query heads, K = KV heads, D = head size
"""

# ruff: noqa: N815 - tensors carry their shape in the name
from __future__ import annotations

from typing import Any, NamedTuple

import torch
from label_kernels import AttentionPlan, prefix_attention, reference
from label_kernels.attention_plan import heads_per_tile
from label_kernels.prefix_attention import kernel_for
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "rankmill_packed"
_WITHOUT_MEANING = {"position_ids", "cache_position", "position_embeddings", "use_cache", "is_causal", "layer_idx"}
_WITHOUT_MEANING |= {"past_key_values", "past_key_value", "cache", "output_attentions", "output_hidden_states"}


class Packed(NamedTuple):
    """What one batch's layers are told: who sees whom, and at the last layer which tokens are worth computing."""

    plan: AttentionPlan | None
    rows_Q: torch.Tensor | None = None  # the tokens that are scored
    rows_plan: AttentionPlan | None = None  # the plan for queries of those alone
    key_TKD: torch.Tensor | None = None  # of all tokens, for a layer that has only some of them
    value_TKD: torch.Tensor | None = None
    caught: list[torch.Tensor] | None = None  # takes a layer's key and value, and nothing else is computed
    inspection: Inspection | None = None


class NotHandedDown(Exception):  # noqa: N818 - it says what is the case
    """A model's attention was called without what its layers were told."""


class Heads(NamedTuple):
    """The shape of a layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def kernel_name(heads: Heads, dtype: torch.dtype, device: torch.device) -> str:
    """Which kernel serves attention of this shape there; off CUDA the reference does."""
    if device.type != "cuda":
        return "reference"
    query = torch.empty(1, heads.num_heads, heads.head_dim, dtype=dtype, device=device)
    kernel, _ = kernel_for(query, heads_per_tile(heads.num_heads, heads.num_kv_heads))
    return kernel.__name__.rpartition(".")[2]


class Inspection:
    """Collects what a model asks of attention, layer by layer, while it reads one prompt; computes nothing."""

    def __init__(self) -> None:
        self.heads: list[Heads] = []  # of each call
        self.troubles: list[str] = []

    def see(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attention_mask: Any,
        window: int | None,
        others: dict[str, Any],
    ) -> None:
        """Look at one call."""
        self.heads.append(Heads(query.shape[1], key.shape[1], query.shape[3]))
        if key.shape != value.shape:
            self.troubles.append(f"its keys and values have unlike shapes, {[*key.shape]} and {[*value.shape]}")
        if not (isinstance(attention_mask, torch.Tensor) and attention_mask.shape == (1, 1, 1, 1)):
            self.troubles.append("it makes a mask of its own")
        elif int(attention_mask) < 0:
            self.troubles.append("it asks for a mask that is neither causal nor a sliding window")
        elif int(attention_mask) != (window or 0):
            self.troubles.append(f"its mask has a window of {int(attention_mask)} and its attention one of {window}")
        unknown = [name for name, value in others.items() if name not in _WITHOUT_MEANING and _means_something(value)]
        if unknown:
            self.troubles.append(f"it passes {', '.join(unknown)} to attention")

    def heads_of_all(self, num_layers: int) -> Heads | str:
        """The heads that all layers have, or what about the model can't be packed."""
        if self.troubles:
            return self.troubles[0]
        if len(self.heads) != num_layers:
            return f"it attends {len(self.heads)} times in {num_layers} layers"
        if len(set(self.heads)) > 1:
            return f"its layers have unlike heads: {sorted(set(self.heads))}"
        return self.heads[0]


def _means_something(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or value not in (None, False, 0, 0.0)


def _attend(
    module: torch.nn.Module,
    query_1HQD: torch.Tensor,
    key_1KTD: torch.Tensor,
    value_1KTD: torch.Tensor,
    attention_mask: Any,
    *,
    packed: Packed | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The function that Transformers calls. Its output is [1, Q, H, D]."""
    del module, dropout  # nothing is trained here
    if packed is None:
        raise NotHandedDown("its layers hand no keyword arguments to attention")
    if packed.inspection is not None:
        packed.inspection.see(
            query_1HQD, key_1KTD, value_1KTD, attention_mask=attention_mask, window=sliding_window, others=others
        )
        return query_1HQD.new_zeros(*query_1HQD.transpose(1, 2).shape[:3], value_1KTD.shape[3]), None
    key_TKD, value_TKD = key_1KTD[0].transpose(0, 1), value_1KTD[0].transpose(0, 1)
    if packed.caught is not None:
        packed.caught.extend((key_TKD, value_TKD))
        return query_1HQD.transpose(1, 2), None  # of the right shape; nobody reads it
    if packed.key_TKD is not None and packed.value_TKD is not None:
        key_TKD, value_TKD = packed.key_TKD, packed.value_TKD
    assert packed.plan is not None
    attend = prefix_attention if query_1HQD.is_cuda else reference.planned_prefix_attention
    out_QHD = attend(
        query_1HQD[0].transpose(0, 1),
        key_TKD,
        value_TKD,
        packed.plan,
        scale=query_1HQD.shape[3] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out_QHD[None], None


def _mask(*, mask_function: Any, local_size: int | None = None, device: Any = None, **_: Any) -> torch.Tensor:
    """Not a mask, which packed attention has no use for, but what the model asks for: its window, 0 none, -1 refused.

    Called only at the inspection: other passes give a mask of four dimensions, which Transformers takes for ready.
    """
    window = local_size or 0
    far = 3 * window + 3
    place = torch.tensor([0, 1, window - 1, window, window + 1, 2 * window - 1, 2 * window, far - 1, far]).clamp(min=0)
    query, key = (grid.reshape(-1) for grid in torch.meshgrid(place, place, indexing="ij"))
    expected = key <= query
    if window:
        expected &= key > query - window
    zero = torch.zeros_like(query)
    try:
        is_known = bool((mask_function(zero, zero, query, key) == expected).all())
    except IndexError:  # it looks tokens up, so it depends on them
        is_known = False
    return torch.full((1, 1, 1, 1), window if is_known else -1, device=device)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
