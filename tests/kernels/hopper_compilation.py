"""Compiles the Hopper kernel for an H200 without a GPU, once for each dtype and set of options, and prints what came out.

A script, because Triton's interpreter is chosen for a whole process and compiles nothing.
"""

from __future__ import annotations

import itertools
import json

import triton
from label_kernels import hopper_attention
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

KERNEL = hopper_attention._attend_tile
POINTERS = {"tiles_ptr": "*i32", "token_ptr": "*i32", "start_ptr": "*i32"}
NUMBERS = {"scale": "fp32", "softcap": "fp32", "window": "i32"}


def compiled(dtype: str, heads: int, stretches: int, *, has_options: bool):
    rows, keys, dim = 64, 32, hopper_attention.HEAD_DIM
    constants = {"GROUPS": 8, "GROUPS_PER_KV": 1, "HEADS": heads, "D": dim, "ROWS": rows, "KEYS": keys}
    constants |= {"STRETCHES": stretches}
    constants |= dict.fromkeys(("HAS_WINDOW", "HAS_SOFTCAP", "HAS_SINKS"), has_options)
    types = {
        **POINTERS,
        **NUMBERS,
        "queries": f"tensordesc<{dtype}[{rows // heads}, {heads}, {dim}],{hopper_attention._LAYOUT!r}>",
        "keys": f"tensordesc<{dtype}[{keys}, 1, {dim}],{hopper_attention._LAYOUT!r}>",
        "values": f"tensordesc<{dtype}[{keys}, 1, {dim}],{hopper_attention._LAYOUT!r}>",
        "out_ptr": f"*{dtype}",
        "sinks_ptr": f"*{dtype}",
    }
    names = KERNEL.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("out_ptr", "tiles_ptr", "token_ptr")}
    source = GluonASTSource(KERNEL, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": 128})


def main() -> None:
    for (dtype, has_options), (heads, stretches) in itertools.product(
        (("bf16", False), ("fp16", True)), ((1, 4), (8, 1))
    ):
        kernel = compiled(dtype, heads, stretches, has_options=has_options)
        ptx = kernel.asm["ptx"]
        print(  # noqa: T201 - what the test reads
            json.dumps(
                {
                    "products": ptx.count("wgmma.mma_async"),
                    "copies": ptx.count("cp.async.bulk.tensor"),
                    "shared": kernel.metadata.shared,
                    "cubin": len(kernel.asm["cubin"]),
                }
            )
        )


if __name__ == "__main__":
    main()
