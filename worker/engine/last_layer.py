"""A model's last layer, of which only the scored tokens are worth computing, and keys and values of all.

Knows nothing of the layer but that it attends once, through ``packed_attention``: it runs once for keys and values alone,
where a compiler drops all that they don't need, and once more for the scored tokens, which attend to those.

    T = packed tokens, Q = scored tokens, D = hidden size
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from worker.engine.packed_attention import Packed

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class LastLayer:
    """Takes the place of the layer's ``forward``.

    ``returns_rows``: the states [1, Q, D] of the scored tokens are returned, else [1, T, D] with zeros for all others,
    for models that need the shape of their input back.
    """

    def __init__(self, forward: Callable[..., Any], compile_function: Compile) -> None:
        self._whole = forward
        self._keys_and_values = compile_function(self._catch)
        self._rows = compile_function(self._whole)
        self.returns_rows = True

    def __call__(self, hidden_1TD: torch.Tensor, *args: Any, packed: Packed, **kwargs: Any) -> Any:
        """What the layer returns."""
        if packed.rows_Q is None:
            return self._whole(hidden_1TD, *args, packed=packed, **kwargs)
        key_TKD, value_TKD = self._keys_and_values(hidden_1TD, args, kwargs)
        few = Packed(packed.rows_plan, key_TKD=key_TKD, value_TKD=value_TKD)
        args, kwargs = _pick((args, kwargs), packed.rows_Q, hidden_1TD.shape[1])
        out = self._rows(hidden_1TD.index_select(1, packed.rows_Q), *args, packed=few, **kwargs)
        if self.returns_rows:
            return out
        return _pytree.tree_map_only(torch.Tensor, lambda rows: _spread(rows, packed.rows_Q, hidden_1TD), out)

    def _catch(self, hidden_1TD: torch.Tensor, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        caught: list[torch.Tensor] = []
        self._whole(hidden_1TD, *args, packed=Packed(None, caught=caught), **kwargs)
        key_TKD, value_TKD = caught
        return key_TKD, value_TKD


def _pick(inputs: Any, rows_Q: torch.Tensor, num_tokens: int) -> Any:
    """The same inputs, those of every token for these tokens alone."""
    return _pytree.tree_map_only(
        torch.Tensor,
        lambda each: each.index_select(1, rows_Q) if each.ndim > 1 and each.shape[:2] == (1, num_tokens) else each,
        inputs,
    )


def _spread(rows: torch.Tensor, rows_Q: torch.Tensor | None, hidden_1TD: torch.Tensor) -> torch.Tensor:
    assert rows_Q is not None
    return torch.zeros_like(hidden_1TD).index_copy(1, rows_Q, rows)
