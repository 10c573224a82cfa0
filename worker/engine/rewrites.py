"""What a compiler is told of a traced layer that it does not find by itself: rewrites of operations, exact in meaning.

They know operations of torch, not models: states that a product is added to, two halves that change places, a product
that gates another, rows that are quantised. Each was kept because it made passes faster (docs/benchmarks.md).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from label_kernels import gated_product, quantise_gated, quantise_rows, reference
from label_kernels.quantise_rows import MOST_COLUMNS
from torch.fx import GraphModule, Node

from worker.engine.fp8 import QUANTISED
from worker.engine.rotary_rewrite import rotate_products
from worker.engine.traced import is_aligned, is_lone_product, may_move, rotated_half, same_numbers, value_of, writes

_Tensors = tuple[torch.Tensor, torch.Tensor]


@torch.library.custom_op("rankmill::add_product", mutates_args={"states"})
def add_product(states: torch.Tensor, factor: torch.Tensor, weight: torch.Tensor) -> None:
    """Add ``factor @ weight.T`` to the states, in the product's own pass over memory."""
    states.view(-1, states.shape[-1]).addmm_(factor.reshape(-1, factor.shape[-1]), weight.t())


@torch.library.custom_op("rankmill::gated", mutates_args=())
def gated(states: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(states @ gate.T) * (states @ up.T)``, neither product stored."""
    compute = gated_product if states.is_cuda else reference.gated_product
    return compute(states.reshape(-1, states.shape[-1]), gate, up).view(*states.shape[:-1], gate.shape[0])


@torch.library.custom_op("rankmill::quantised_rows", mutates_args=())
def quantised_rows(rows: torch.Tensor) -> _Tensors:
    """The rows in eight bits and their scales, read once."""
    return (quantise_rows if rows.is_cuda else reference.quantise_rows)(rows)


@torch.library.custom_op("rankmill::quantised_gated", mutates_args=())
def quantised_gated(gate: torch.Tensor, up: torch.Tensor) -> _Tensors:
    """The rows of ``silu(gate) * up`` in eight bits and their scales, the factors read once."""
    return (quantise_gated if gate.is_cuda else reference.quantise_gated)(gate, up)


@add_product.register_fake
def _(states: torch.Tensor, factor: torch.Tensor, weight: torch.Tensor) -> None:
    pass


@gated.register_fake
def _(states: torch.Tensor, gate: torch.Tensor, _up: torch.Tensor) -> torch.Tensor:
    return states.new_empty(*states.shape[:-1], gate.shape[0])


@quantised_rows.register_fake
def _(rows: torch.Tensor) -> _Tensors:
    return torch.empty_like(rows, dtype=torch.float8_e4m3fn), rows.new_empty(rows.shape[0], 1, dtype=torch.float32)


@quantised_gated.register_fake
def _(gate: torch.Tensor, _up: torch.Tensor) -> _Tensors:
    return torch.empty_like(gate, dtype=torch.float8_e4m3fn), gate.new_empty(gate.shape[0], 1, dtype=torch.float32)


def rewrite(traced: GraphModule, *, takes_inputs: bool, has_tuned_kernels: bool) -> None:
    """Apply all rewrites in place.

    ``takes_inputs``: nobody needs a layer's states once it has run. ``has_tuned_kernels``: kernels of ours are known to
    be the faster ones on this chip.
    """
    _quantise_once(traced)
    if has_tuned_kernels:
        _gate(traced)
        rotate_products(traced)
        _quantise_by_kernels(traced)
    _add_in_place(traced, takes_inputs=takes_inputs)
    _swap_halves(traced)
    traced.graph.eliminate_dead_code(lambda node: node.is_impure() or writes(node))
    traced.graph.lint()
    traced.recompile()


def _quantise_once(traced: GraphModule) -> None:
    """Products that read the same rows: these are quantised once."""
    seen: dict[Any, Node] = {}
    for node in list(traced.graph.nodes):
        if node.target in ("reshape", QUANTISED):
            first = seen.setdefault((node.target, node.args), node)
            if first is not node and may_move(first, node):
                node.replace_all_uses_with(first)
                traced.graph.erase_node(node)


def _gate(traced: GraphModule) -> None:
    """Two products of the same states, one of them the other's gate: one pass over the states."""
    for total in list(traced.graph.nodes):
        factors = _gate_and_up(total)
        if factors is None or not all(is_lone_product(product) and may_move(product, total) for product in factors):
            continue
        gate, up = factors
        sides = (*gate.args[:2], up.args[1])
        if gate.args[0] is up.args[0] and all(map(is_aligned, sides)) and is_aligned(total):
            with traced.graph.inserting_before(total):
                product = traced.graph.call_function(torch.ops.rankmill.gated.default, (*gate.args[:2], up.args[1]))
            product.meta.update(total.meta)
            total.replace_all_uses_with(product)


def _quantise_by_kernels(traced: GraphModule) -> None:
    """What a compiler quantises well are rows that it can hold while it makes them; others it reads twice."""
    for node in list(traced.graph.nodes):
        if node.target is not QUANTISED:
            continue
        source = same_numbers(node.args[0])
        width = source.meta["example_value"].shape[-1]
        if width > MOST_COLUMNS:
            continue
        factors = _gate_and_up(source) if len(source.users) == 1 else None
        if factors is not None and not all(may_move(factor, node) for factor in factors):
            continue
        with traced.graph.inserting_before(node):
            if factors is not None:
                rows = [traced.graph.call_method("reshape", (factor, -1, width)) for factor in factors]
                found = traced.graph.call_function(torch.ops.rankmill.quantised_gated.default, (*rows,))
            elif "attention" in str(source.target):
                found = traced.graph.call_function(torch.ops.rankmill.quantised_rows.default, node.args)
            else:
                continue
        node.replace_all_uses_with(found)


def _gate_and_up(node: Any) -> tuple[Any, Any] | None:
    """The factors of ``silu(gate) * up``, if this is that."""
    if node.target not in (operator.mul, torch.mul):
        return None
    for one, other in (node.args, node.args[::-1]):
        if isinstance(one, Node) and one.target is torch.nn.functional.silu and len(one.users) == 1:
            return (one.args[0], other) if isinstance(other, Node) and value_of(other) is not None else None
    return None


def _add_in_place(traced: GraphModule, *, takes_inputs: bool) -> None:
    """The sum of states and a product that nobody else reads: the product is added to the states where they are."""
    for total in list(traced.graph.nodes):
        if total.target not in (operator.add, torch.add) or len(total.args) != 2:  # noqa: PLR2004
            continue
        for states, product in (total.args, total.args[::-1]):
            if not is_lone_product(product) or not may_move(product, total):
                continue
            if _are_free(states, product, total, takes_inputs=takes_inputs):
                with traced.graph.inserting_before(total):
                    traced.graph.call_function(torch.ops.rankmill.add_product.default, (states, *product.args[:2]))
                total.replace_all_uses_with(states)
                traced.graph.erase_node(total)
                traced.graph.erase_node(product)
                break


def _are_free(states: Any, product: Node, total: Node, *, takes_inputs: bool) -> bool:
    """Whether these are states like the product, which nobody reads from the sum on: not by another name either."""
    value, other = value_of(states), value_of(product)
    if value is None or other is None or not value.is_contiguous():
        return False
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    names = [node for node in states.graph.nodes if _shares_memory(value_of(node), value)]
    inputs = [node for node in names if node.op == "placeholder"]
    if any(not takes_inputs or isinstance(value_of(node), torch.nn.Parameter) for node in inputs):
        return False
    return not any(name in later.all_input_nodes for later in _after(total) for name in names)


def _after(node: Node) -> Iterator[Node]:
    later = node.next
    while later.op != "root":
        yield later
        later = later.next


def _shares_memory(value: torch.Tensor | None, other: torch.Tensor) -> bool:
    return value is not None and value.untyped_storage()._cdata == other.untyped_storage()._cdata  # noqa: SLF001 - its identity


def _swap_halves(traced: GraphModule) -> None:
    """``cat((-x[..., h:], x[..., :h]))``, half of a rotary embedding: one read at another place and a sign, no branch."""
    for joined in list(traced.graph.nodes):
        whole, half = rotated_half(joined)
        if whole is None or not may_move(joined.args[0][0], joined):
            continue
        device = whole.meta["example_value"].device
        with traced.graph.inserting_before(joined):
            halves = traced.graph.call_method("unflatten", (whole, -1, (2, half)))
            swapped = traced.graph.call_method("flatten", (traced.graph.call_method("flip", (halves, -2)), -2))
            place = traced.graph.call_function(torch.arange, (2 * half,), {"device": device})
            is_first = traced.graph.call_function(operator.lt, (place, half))
            negative = traced.graph.call_function(operator.neg, (swapped,))
            joined.replace_all_uses_with(traced.graph.call_function(torch.where, (is_first, negative, swapped)))
