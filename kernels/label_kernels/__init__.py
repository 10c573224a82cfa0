"""Kernels that score labels with a causal language model, in Triton; each one's definition is in ``reference``."""

from __future__ import annotations

from label_kernels.gather_label_logprobs import gather_label_logprobs

__all__ = ["gather_label_logprobs"]
