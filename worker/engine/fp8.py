"""Products in eight bits: the linear products inside a model's layers, weights and activations scaled row by row.

Both are float8_e4m3fn with a scale for each row that brings its largest number to the largest that the type has: weights
once, a token's activations each time. What comes before a product fuses with their quantisation once it is compiled:
it is plain torch without side effects, equal for all products that read the same activations. The embedding, the head
and the routers of experts stay as they are, and so do experts that are no ``torch.nn.Linear``.

    T = tokens, K = numbers in, N = numbers out
"""

# ruff: noqa: N815 - tensors carry their shape in the name
from __future__ import annotations

from typing import Any

import torch
from label_kernels.reference import quantise_rows

from worker.engine.protocol import EngineRefused

FP8 = "fp8"  # the dtype's name
FAST_ACCUMULATION = True  # Hopper's tensor cores then keep fewer bits of a sum
CAPABILITY = (8, 9)  # the first whose tensor cores multiply eight bits
_STEP = 16  # the kernels' dimensions are multiples of it


class Fp8Linear(torch.nn.Module):
    """Takes the place of a linear module. Its numbers are buffers, so that the model's dtype stays that of the others."""

    weight_NK: torch.Tensor
    scale_1N: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear, device: torch.device) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight_NK, scale_N1 = quantise_rows(linear.weight.detach().to(device))
        self.register_buffer("weight_NK", weight_NK)
        self.register_buffer("scale_1N", scale_N1.t().contiguous())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().to(device))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The product of states [..., K], and the bias: [..., N]."""
        states_TK, scale_T1 = QUANTISED(states.reshape(-1, self.in_features))
        out_TN = product(states_TK, scale_T1, self.weight_NK, self.scale_1N)
        if self.bias is not None:
            out_TN = out_TN + self.bias
        return out_TN.view(*states.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """As a linear module has it."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


_library = torch.library.Library("rankmill", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("quantised(Tensor rows) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]
_library.impl("quantised", quantise_rows, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
QUANTISED = torch.ops.rankmill.quantised.default  # ``quantise_rows``, whole in a traced layer (see rewrites)


def product(
    states_TK: torch.Tensor, scale_T1: torch.Tensor, weight_NK: torch.Tensor, scale_1N: torch.Tensor
) -> torch.Tensor:
    """``(states * scale) @ (weight.T * scale)`` [T, N] in bfloat16: eight bits multiplied, summed in float32."""
    if not states_TK.is_cuda:
        return product_reference(states_TK, scale_T1, weight_NK, scale_1N)
    return torch._scaled_mm(  # noqa: SLF001 - the public name came with torch 2.10
        states_TK,
        weight_NK.t(),
        scale_a=scale_T1,
        scale_b=scale_1N,
        out_dtype=torch.bfloat16,
        use_fast_accum=FAST_ACCUMULATION,
    )


def product_reference(
    states_TK: torch.Tensor, scale_T1: torch.Tensor, weight_NK: torch.Tensor, scale_1N: torch.Tensor
) -> torch.Tensor:
    """The same product by plain torch, in float32, for tests and measurements on any device."""
    return (states_TK.float() @ weight_NK.float().t() * scale_1N * scale_T1).bfloat16()


def check_device(device: torch.device) -> None:
    """Raise EngineRefused where the device multiplies no eight bits."""
    what = "fp8 (RANKMILL_DTYPE, or dtype of the model's entry) needs a GPU of compute capability 8.9 or later"
    if device.type != "cuda":
        raise EngineRefused(f"{what}, and the engine is to run on a {device.type.upper()}")
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        raise EngineRefused(f"{what}; {torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}")


def replace_products(name: str, model: Any, layers: torch.nn.ModuleList, device: torch.device) -> None:
    """Replace the products inside the layers, the new ones on this device. Raises EngineRefused where there are none.

    Left as they are: those with a dimension that is no multiple of 16, those that choose among experts, and those that
    a model keeps in float32.
    """
    config = model.config.get_text_config().to_dict()
    num_experts = [number for key, number in config.items() if "experts" in key]
    replaced: dict[torch.nn.Linear, Fp8Linear] = {}  # a module that several layers share stays one
    for parent in list(layers.modules()):
        for key, linear in list(parent.named_children()):
            if type(linear) is torch.nn.Linear and linear.out_features not in num_experts and _fits(linear):
                if linear not in replaced:
                    replaced[linear] = Fp8Linear(linear, device)
                setattr(parent, key, replaced[linear])
    if not replaced:
        raise EngineRefused(f"{name} has no product that fp8 could compute: its layers hold no fitting torch.nn.Linear")


def dtype_of(model: Any) -> str:
    """The type of the model's weights; fp8 where products are in eight bits."""
    is_fp8 = any(isinstance(module, Fp8Linear) for module in model.modules())
    return FP8 if is_fp8 else str(model.dtype).removeprefix("torch.")


def extent(layers: torch.nn.ModuleList) -> str:
    """How much of the layers is in eight bits, in words."""
    ours = [module for module in layers.modules() if isinstance(module, Fp8Linear)]
    others = sum(type(module) is torch.nn.Linear for module in layers.modules())
    numbers = sum(module.weight_NK.numel() for module in ours)
    share = numbers / (numbers + sum(weight.numel() for weight in layers.parameters()))
    return f"{len(ours)} of {len(ours) + others} products, {share:.1%} of the layers' weights"


def _fits(linear: torch.nn.Linear) -> bool:
    sizes = (linear.in_features, linear.out_features)
    return linear.weight.dtype == torch.bfloat16 and not any(size % _STEP for size in sizes)
