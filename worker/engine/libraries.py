"""The libraries of an engine with a real model, imported before anything else: they take much of its start."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from worker.engine.compiled_code import keep_compiled_code

_SIDE = 16  # of a product that is there to be made


def import_torch() -> None:
    """Import torch, which by itself asks CUDA nothing, and have it keep what it compiles."""
    keep_compiled_code()
    with _uncollected():
        import torch  # noqa: F401, PLC0415 - a process with the fake model has no use for it


def import_all() -> None:
    """Import what an engine needs; meanwhile CUDA starts, where there is a GPU. To be called once the GPU is chosen."""
    import_torch()
    import torch  # noqa: PLC0415 - as above

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        threading.Thread(target=_start_cuda, name="cuda", daemon=True).start()
    with _uncollected():
        import worker.engine.packed  # noqa: PLC0415 - as above
        import worker.engine.padded  # noqa: F401, PLC0415 - as above

        if has_gpu:
            import torch._inductor.compile_fx  # noqa: PLC0415 - as above


def _start_cuda() -> None:
    """Have CUDA make its context and load its products: no Python runs meanwhile, so the imports go on.

    What goes wrong here goes wrong again, and is told, where the GPU is first needed.
    """
    import torch  # noqa: PLC0415 - as above

    with torch.inference_mode():
        one = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device="cuda")
        (one @ one).cpu()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: modules stay, and looking takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
