"""Queries and keys of a traced layer that are normed head by head and turned by their positions: one product of ours.

The rewrite knows one way of writing it down, that of most models of Transformers: a product seen as heads, an RMS norm
over each head or none, heads in front, and ``x * cos + rotate_half(x) * sin`` with cosines and sines [1, T, C].

    T = packed tokens, C = head size
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from label_kernels import reference, rotated_product
from label_kernels.rotated_product import HEAD_DIMS
from torch.fx import GraphModule, Node

from worker.engine.traced import is_aligned, is_lone_product, may_move, rotated_half, value_of


@torch.library.custom_op("rankmill::rotated", mutates_args=())
def rotated(  # noqa: PLR0917 - operations are traced with their arguments in a row
    states: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    """Heads of ``states @ weight.T`` [1, T, N], normed where there is a norm, and rotated."""
    compute = rotated_product if states.is_cuda else reference.rotated_product
    out_TN: torch.Tensor = compute(states[0], weight, cos[0], sin[0], norm, epsilon=epsilon)
    return out_TN[None]


@rotated.register_fake
def _(states: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return states.new_empty(*states.shape[:-1], weight.shape[0])


class _Rotation(NamedTuple):
    """What is turned, by what, and the size of a head."""

    states: Any
    cos: Any
    sin: Any
    head_dim: int


class _Heads(NamedTuple):
    """A product seen as heads; ``norm`` is None where they are not normed."""

    product: Any
    norm: Any
    epsilon: float


def rotate_products(traced: GraphModule) -> None:
    """Replace each such product, norm and rotation in place."""
    for total in list(traced.graph.nodes):
        rotation = _rotation(total)
        heads = None if rotation is None else _heads(rotation.states)
        if rotation is None or heads is None or not _fits(heads, rotation, value_of(total)):
            continue
        if not may_move(heads.product, total):
            continue
        states, weight = heads.product.args[:2]
        args = (states, weight, rotation.cos, rotation.sin, heads.norm, heads.epsilon)
        with traced.graph.inserting_before(total):
            product = traced.graph.call_function(torch.ops.rankmill.rotated.default, args)
            seen = traced.graph.call_method("unflatten", (product, -1, (-1, rotation.head_dim)))
            turned = traced.graph.call_method("transpose", (seen, 1, 2))
        turned.meta.update(total.meta)
        total.replace_all_uses_with(turned)


def _rotation(total: Any) -> _Rotation | None:
    match total:
        case Node(
            target=operator.add,
            args=(
                Node(target=operator.mul, args=(states, Node(target="unsqueeze", args=(cos, 1)))),
                Node(target=operator.mul, args=(turned, Node(target="unsqueeze", args=(sin, 1)))),
            ),
        ):
            whole, half = rotated_half(turned)
            users = [len(each.users) for each in (whole, turned) if isinstance(each, Node)]
            if whole is states and users == [3, 1]:  # once whole, two halves
                return _Rotation(states, cos, sin, 2 * half)
    return None


def _heads(states: Any) -> _Heads | None:
    match states:
        case Node(target="transpose", args=(Node(target="view" | "reshape", args=(product, *_)) as seen, 1, 2)):
            return _Heads(product, None, 0.0) if len(seen.users) == 1 else None
        case Node(target="transpose", args=(Node(target=operator.mul, args=(norm, even)) as scaled, 1, 2)):
            found = _normed(even)
            return None if found is None or len(scaled.users) != 1 else _Heads(found[0], norm, found[1])
    return None


def _normed(even: Any) -> tuple[Any, float] | None:
    """The product whose heads these are, divided by the root of their mean square, and what is added to that."""
    match even:
        case Node(
            target="to",
            args=(
                Node(
                    target=operator.mul,
                    args=(
                        Node(
                            target="to",
                            args=(Node(target="view" | "reshape", args=(product, *_)) as seen, torch.float32),
                        ) as wide,
                        Node(
                            target=torch.rsqrt,
                            args=(
                                Node(
                                    target=operator.add,
                                    args=(
                                        Node(
                                            target="mean",
                                            args=(Node(target="pow", args=(squared, 2)), -1),
                                            kwargs={"keepdim": True},
                                        ),
                                        float(epsilon),
                                    ),
                                ),
                            ),
                        ),
                    ),
                ),
                _,
            ),
        ) if squared is wide and len(seen.users) == 1 and len(wide.users) == 2 and len(even.users) == 1:  # noqa: PLR2004
            return product, epsilon
    return None


def _fits(heads: _Heads, rotation: _Rotation, out: torch.Tensor | None) -> bool:
    """Whether the kernel serves these: sizes, types, and rows that begin where it likes them to."""
    product, norm, turned = (value_of(each) for each in (heads.product, heads.norm, rotation.states))
    if not is_lone_product(heads.product) or rotation.head_dim not in HEAD_DIMS:
        return False
    states = value_of(heads.product.args[0])
    if states is None or states.ndim != 3 or states.shape[0] != 1:  # noqa: PLR2004
        return False
    angles = (1, states.shape[1], rotation.head_dim)
    return (
        out is not None
        and product is not None
        and out.dtype == product.dtype
        and all(is_aligned(each) for each in heads.product.args[:2])
        and all(_are_rows(value_of(each), angles) for each in (rotation.cos, rotation.sin))
        and (heads.norm is None or (norm is not None and norm.shape == (rotation.head_dim,)))
        and (turned is not None and turned.shape[-1] == rotation.head_dim)
    )


def _are_rows(angles: torch.Tensor | None, shape: tuple[int, ...]) -> bool:
    return angles is not None and angles.shape == shape and angles.stride(-1) == 1
