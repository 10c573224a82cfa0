"""A Transformers model made ready for packed batches, or the reason why it can't be: nothing here knows any model.

T = packed tokens, Q = rows of the last layer, D = hidden size
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from label_kernels.tuned import tuned_for
from torch.utils import _pytree

from worker.engine.fp8 import dtype_of
from worker.engine.last_layer import Compile, LastLayer
from worker.engine.packed_attention import NAME, Heads, Inspection, NotHandedDown, Packed, kernel_name
from worker.engine.packed_head import Head
from worker.engine.packed_pass import PassInputs, PassPlanner
from worker.engine.prefix_tree import prefix_tree
from worker.engine.probe import TOLERANCE, own_logprobs, probe_batch
from worker.engine.protocol import Batch, FloatArray, num_scored
from worker.engine.rewrites import rewrite

RECOMPILE_LIMIT = 64  # of torch's compiler: layers may be of many kinds
_INSPECTED_TOKENS = 5


class PackedModel:
    """The model, its attention ours. Made by ``pack``; ``expected`` are its own scores of the batch ``probe``."""

    def __init__(self, model: Any, heads: Heads, head: Head, probe: Batch, expected: FloatArray) -> None:
        self.heads = heads
        self.head = head
        self.device: torch.device = model.device
        self.probe = probe
        self.expected = expected
        self._base = model.base_model
        self._layers = layers_of(model)
        self._last_forward = self._layers[-1].forward
        self._last = self._replace_last(lambda function: function)
        self._ready_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)  # see packed_attention._mask

    @property
    def attention_kernel(self) -> str:
        """The name of the kernel that computes its attention."""
        return kernel_name(self.heads, self._base.dtype, self.device)

    def compile(self) -> None:
        """Have every layer compiled at its first pass, for any number of tokens."""
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT  # noqa: SLF001 - it has no public name
        torch._dynamo.config.specialize_float = True  # noqa: SLF001 - else every epsilon is an argument
        backend = partial(_compile_rewritten, has_tuned_kernels=tuned_for(self.device).product is not None)
        in_place = partial(backend, takes_inputs=self._frees_states())
        for layer in self._layers[:-1]:
            layer.compile(backend=in_place, dynamic=True)
        returns_rows = self._last.returns_rows
        apart = partial(backend, takes_inputs=False)
        self._last = self._replace_last(partial(torch.compile, backend=apart, dynamic=True))
        self._last.returns_rows = returns_rows

    def beat_at_layers(self, beat: Callable[[], None]) -> None:
        """Count every layer as progress, so that one long batch on a slow device is not taken for a hang."""
        for layer in self._layers:
            layer.register_forward_pre_hook(lambda *_: beat())

    @torch.inference_mode()
    def states(self, inputs: PassInputs) -> torch.Tensor:
        """The last states [Q, D] of the rows."""
        hidden_1TD: torch.Tensor = self._base(
            input_ids=inputs.ids_1T,
            position_ids=inputs.position_1T,
            attention_mask=self._ready_mask,
            use_cache=False,
            packed=inputs.packed,
        )[0]
        if self._last.returns_rows:
            return hidden_1TD[0]
        assert inputs.packed.rows_Q is not None
        return hidden_1TD[0].index_select(0, inputs.packed.rows_Q)

    @torch.inference_mode()
    def compare(self, dtype: str) -> str | None:
        """How its scores, packed, differ from its own, if they do."""
        probe = self.probe
        tree = prefix_tree(probe.lengths_B, probe.shared_B, num_scored(probe.label_ids_BL, probe.is_path_B))
        planned = PassPlanner(self.heads, self.device).plan(probe, tree)
        inputs = PassInputs.read(planned.flat.to(self.device), planned.shape, planned.tile_rows)
        try:
            states_QD = self.states(inputs)
        except ValueError as error:  # what a kernel can't serve
            return str(error)
        except RuntimeError:  # GPT-2 gives its states the shape of its ids
            self._last.returns_rows = False
            states_QD = self.states(inputs)
        found_RL = self.head.logprobs(states_QD, planned.label_ids.to(self.device))
        difference = float(np.abs(planned.scored.by_sequence(found_RL.cpu().numpy()) - self.expected).max())
        if not difference <= TOLERANCE[dtype]:
            return f"its packed scores are unlike its own: log-probabilities {difference:g} off"
        return None

    def _frees_states(self) -> bool:
        """Whether the scores stay the same when what each layer read is spoilt as soon as it has run."""
        hooks = [layer.register_forward_hook(_spoil, with_kwargs=True) for layer in self._layers[:-1]]
        reason = self.compare(dtype_of(self._base))
        for hook in hooks:
            hook.remove()
        return reason is None

    def _replace_last(self, compile_function: Compile) -> LastLayer:
        last = LastLayer(self._last_forward, compile_function)
        self._layers[-1].forward = last
        return last


def pack(model: Any) -> PackedModel | str:
    """The model made ready, or why its scores would not be its own. A refused model keeps its attention."""
    if _rotates_by_longest(model):
        return "its rotary embedding depends on the longest prompt of a batch"
    head = Head.of(model)
    if isinstance(head, str):
        return head
    probe = probe_batch(model.get_input_embeddings().weight.shape[0])
    before = model.config._attn_implementation  # noqa: SLF001 - it has no public name
    model.set_attn_implementation("eager")  # a model's own definition: others have left out a soft-cap
    expected = own_logprobs(model, probe)
    heads = _take_attention(model)
    found = PackedModel(model, heads, head, probe, expected) if isinstance(heads, Heads) else heads
    reason = found if isinstance(found, str) else found.compare(dtype_of(model))
    if reason is None:
        return found
    model.set_attn_implementation(before)
    return reason


def _spoil(_layer: Any, args: Any, kwargs: Any, out: Any) -> None:
    states = [each for each in _pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    kept = {each.data_ptr() for each in _pytree.tree_leaves(out) if isinstance(each, torch.Tensor)}
    for each in states:
        if each.shape == states[0].shape and each.data_ptr() not in kept:
            each.fill_(torch.nan)


def _compile_rewritten(
    traced: torch.fx.GraphModule, inputs: Any, *, takes_inputs: bool, has_tuned_kernels: bool
) -> Callable[..., Any]:
    rewrite(traced, takes_inputs=takes_inputs, has_tuned_kernels=has_tuned_kernels)
    return compiled(traced, inputs)


def compiled(traced: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """The layer as torch's own compiler makes it."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 - slow to import, and a CPU has no use for it

    made: Any = compile_fx(traced, inputs)
    function: Callable[..., Any] = made
    return function


def layers_of(model: Any) -> torch.nn.ModuleList:
    """The model's layers: its longest list of modules."""
    return max((module for module in model.modules() if isinstance(module, torch.nn.ModuleList)), key=len)


def _rotates_by_longest(model: Any) -> bool:
    kinds = [getattr(module, "rope_type", None) for module in model.modules()]
    names = {name for kind in kinds for name in (kind.values() if isinstance(kind, dict) else [kind])}
    return bool(names & {"dynamic", "longrope"})


@torch.inference_mode()
def _take_attention(model: Any) -> Heads | str:
    """Make the model's attention ours and see what it asks for."""
    parameters = inspect.signature(model.base_model.forward).parameters.values()
    if model.base_model is model or not any(each.kind is each.VAR_KEYWORD for each in parameters):
        return "its layers take no keyword arguments"
    if "position_ids" not in {each.name for each in parameters}:
        return "it takes no positions"
    inspection = Inspection()
    ids = torch.arange(_INSPECTED_TOKENS, device=model.device)[None]
    try:
        model.set_attn_implementation(NAME)
        model.base_model(input_ids=ids, position_ids=ids, use_cache=False, packed=Packed(None, inspection=inspection))
    except (NotHandedDown, ValueError, ImportError) as error:  # the latter two are how Transformers says no
        return str(error)
    return inspection.heads_of_all(len(layers_of(model)))
