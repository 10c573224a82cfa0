"""What a rewrite asks of the operations of a traced layer."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

_LINEAR = torch._C._nn.linear  # noqa: SLF001 - the name that tracing gives torch.nn.functional.linear
_ALIGNED = 8  # numbers of 16 bits in the 16 bytes that a kernel's rows begin at
_WRITING = (
    operator.setitem,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.imatmul,
    operator.iand,
    operator.ior,
    operator.ixor,
    operator.ilshift,
    operator.irshift,
)
_SAME_NUMBERS = ("reshape", "view", "contiguous", "flatten")


def value_of(node: Any) -> torch.Tensor | None:
    """An example of the tensor that the operation gives, if it gives one."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_lone_product(node: Any) -> bool:
    """Whether this is a product with a weight, without a bias, that one operation reads."""
    if not isinstance(node, Node) or node.target is not _LINEAR or len(node.users) != 1:
        return False
    return not node.kwargs and all(bias is None for bias in node.args[2:])


def is_aligned(node: Any) -> bool:
    """Whether these are rows of 16-bit numbers as kernels fetch them."""
    value = value_of(node)
    return value is not None and value.itemsize == 2 and value.shape[-1] % _ALIGNED == 0 and value.is_contiguous()  # noqa: PLR2004


def writes(node: Node) -> bool:
    """Whether it changes a tensor that it is given. Torch's own ``is_impure`` takes methods and operators for pure."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001 - it has no public name
        return target._schema.is_mutable  # noqa: SLF001
    if target in _WRITING or node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if getattr(target, "__module__", "") == operator.add.__module__:  # `and_` and `or_` write nothing
        return False
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return node.op in ("call_method", "call_function") and name.endswith("_") and not name.endswith("__")


def may_move(node: Node, place: Node) -> bool:
    """Whether the operation gives the same when it is run right before a later one: nothing is written in between."""
    between = node.next
    while between is not place:
        if writes(between):
            return False
        between = between.next
    return True


def same_numbers(node: Any) -> Any:
    """Where the numbers come from that this one shows in another shape."""
    while len(node.users) == 1 and (node.target in _SAME_NUMBERS or node.target is operator.getitem):
        node = node.args[0]
    return node


def rotated_half(joined: Any) -> tuple[Any, int]:
    """What is rotated and half its size, if this is that."""
    if (
        not isinstance(joined, Node)
        or joined.target is not torch.cat
        or joined.kwargs.get("dim", joined.args[-1]) != -1
    ):
        return None, 0
    match joined.args[0]:
        case (
            Node(target=operator.neg, args=(Node(target=operator.getitem, args=(whole, high)),)),
            Node(target=operator.getitem, args=(same, low)),
        ) if whole is same and (value := value_of(whole)) is not None:
            half = value.shape[-1] // 2
            if (low, high) == ((Ellipsis, slice(None, half, None)), (Ellipsis, slice(half, None, None))):
                return (whole, half) if value.shape[-1] == 2 * half else (None, 0)
    return None, 0
