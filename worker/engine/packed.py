"""The packed engine: any Transformers CausalLM whose attention can be ours, its batches without padding, prefixes once.

Meant for CUDA, where layers are compiled and passes of few tokens are graphs. On a CPU it computes the same by plain
torch, for tests and as a reference; the padded engine is faster there.

    B = sequences, R = scored positions, L = most labels
"""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import transformers

from worker.engine.checkpoint import Checkpoint, load
from worker.engine.cost import CostModel
from worker.engine.deterministic import Deterministic
from worker.engine.device import device_of
from worker.engine.graphs import Graphs
from worker.engine.memory import within_memory
from worker.engine.options import EngineOptions
from worker.engine.packed_model import PackedModel, pack
from worker.engine.packed_pass import HostPass, PassInputs, PassPlanner
from worker.engine.padded_pass import Gather, PaddedPass, twin_of
from worker.engine.prefix_tree import PrefixTree, prefix_tree
from worker.engine.probe import TOLERANCE
from worker.engine.protocol import (
    Batch,
    EngineInfo,
    EngineRefused,
    Launch,
    Scores,
    Wait,
    at_once,
    num_scored,
)
from worker.engine.warm_up import WarmUp

CPU_BATCH_TOKENS = 2_048
_SLACK = 8  # a batch may exceed its budget by an eighth: neighbours share a few tokens that are not worth a segment


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Sequences of a batch that one pass scores; ``flat`` lies on the device."""

    first: int
    host: HostPass
    flat: torch.Tensor
    cached_tokens_B: npt.NDArray[np.int64]


def load_packed(options: EngineOptions, beat: Callable[[], None]) -> PackedEngine | str:
    """The engine with the options' model, or why that model's batches can't be packed."""
    if options.torch_threads:
        torch.set_num_threads(options.torch_threads)
    return packed_engine(options, load(options, device_of(options)), beat)


def packed_engine(options: EngineOptions, checkpoint: Checkpoint, beat: Callable[[], None]) -> PackedEngine | str:
    """The engine of a loaded model, or why its batches can't be packed."""
    twin = twin_of(checkpoint.model)
    model = pack(checkpoint.model)
    if isinstance(model, str):
        return model
    deterministic = Deterministic(
        PaddedPass(twin, Gather.of(options, model.device), beat), max_tokens=checkpoint.max_tokens
    )
    return PackedEngine(options, checkpoint, model, deterministic, beat)


class PackedEngine:
    """Scores packed batches. ``prepare`` may be called while another batch runs, from another thread."""

    def __init__(
        self,
        options: EngineOptions,
        checkpoint: Checkpoint,
        model: PackedModel,
        deterministic: Deterministic,
        beat: Callable[[], None],
    ) -> None:
        self._model = model
        self._deterministic = deterministic  # the model's own attention, without sharing: chosen for its bits
        self._beat = beat
        self._is_cuda = model.device.type == "cuda"
        self._graphs: Graphs | None = None
        self._planner = PassPlanner(model.heads, model.device)
        self._max_batch_tokens = options.max_batch_tokens or CPU_BATCH_TOKENS
        cost: CostModel | str = "not measured"
        if self._is_cuda:
            warm_up = WarmUp(model, self.score, checkpoint)
            self._max_batch_tokens = warm_up.max_batch_tokens(options.max_batch_tokens)
            warm_up.compile_all(self._max_batch_tokens)
            self._graphs = Graphs(model, self._max_batch_tokens)
            self._planner = PassPlanner(model.heads, model.device, self._graphs.shapes)
            cost = warm_up.cost(self.prepare, self._max_batch_tokens)
        else:
            model.beat_at_layers(beat)
        self._check_itself(options.model, checkpoint.dtype)
        self.info = EngineInfo(
            card=checkpoint.card(options, engine="packed"),
            tokenizer_json=checkpoint.tokenizer_json,
            engine_version=f"packed/1 torch/{torch.__version__} transformers/{transformers.__version__}",
            max_batch_tokens=self._max_batch_tokens,
            layout="packed",
            device=model.device.type,
            launches_ahead=self._is_cuda,
            choices={
                "attention": model.attention_kernel,
                "layers": "compiled" if self._is_cuda else "as they are",
                "deterministic": self._deterministic.way,
                "graphs": str(0 if self._graphs is None else len(self._graphs.shapes)),
                **checkpoint.choices,
                "cost": str(cost),
            },
            cost=cost if isinstance(cost, CostModel) else None,
        )

    def score(self, batch: Batch) -> Scores:
        """The scores of every sequence. A batch that exceeds the budget by far is scored in parts."""
        return self.prepare(batch)()()

    def prepare(self, batch: Batch) -> Launch:
        """Plan the batch and bring it to the device; what is returned launches it."""
        if batch.is_deterministic:
            return at_once(partial(self._deterministic.score, batch))
        return partial(self._launch, batch, within_memory(partial(self._parts, batch)))

    def _parts(self, batch: Batch) -> list[_Part]:
        return [_Part(first, host, self._bring(host), tree.cached_tokens_B) for first, host, tree in self._plan(batch)]

    def _plan(self, batch: Batch) -> Iterator[tuple[int, HostPass, PrefixTree]]:
        waiting = [(0, batch)]
        while waiting:
            first, part = waiting.pop()
            tree = prefix_tree(part.lengths_B, part.shared_B, num_scored(part.label_ids_BL, part.is_path_B))
            num_sequences = len(part.lengths_B)
            if num_sequences > 1 and len(tree.source_T) > self._max_batch_tokens * (_SLACK + 1) // _SLACK:
                middle = num_sequences // 2
                waiting += [(first + middle, part.part(middle, num_sequences)), (first, part.part(0, middle))]
            else:
                yield first, self._planner.plan(part, tree), tree

    def _bring(self, host: HostPass) -> torch.Tensor:
        is_graph = self._graphs is not None and self._graphs.holds(host)
        flat = (
            host.flat[host.shape.size :] if is_graph else host.flat
        )  # a graph's buffers are in use until it is its turn
        return flat.to(self._model.device, non_blocking=True)

    def _launch(self, batch: Batch, parts: list[_Part]) -> Wait:
        found, done = within_memory(partial(self._queue, parts))
        return partial(self._collect, batch, parts, found, done)

    def _queue(self, parts: list[_Part]) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        """Log-probabilities [rows of the head, L] of each part, which are on the host once the event has happened."""
        found = []
        for part in parts:
            self._beat()
            logprobs_RL = self._logprobs(part)
            host = torch.empty(logprobs_RL.shape, dtype=logprobs_RL.dtype, pin_memory=self._is_cuda)
            found.append(host.copy_(logprobs_RL, non_blocking=True))
        if not self._is_cuda:
            return found, None
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        return found, done

    def _collect(
        self, batch: Batch, parts: list[_Part], found: list[torch.Tensor], done: torch.cuda.Event | None
    ) -> Scores:
        if done is not None:
            done.synchronize()
        self._beat()
        logprobs_BL = np.full(batch.label_ids_BL.shape, np.nan, np.float32)
        cached_B = np.zeros(len(batch.lengths_B), np.int32)
        for part, logprobs_RL in zip(parts, found, strict=True):
            rows = slice(part.first, part.first + len(part.cached_tokens_B))
            own = part.host.scored.by_sequence(logprobs_RL.numpy())
            logprobs_BL[rows, : own.shape[1]] = own
            cached_B[rows] = part.cached_tokens_B
        return Scores(logprobs_BL, cached_B)

    @torch.inference_mode()
    def _logprobs(self, part: _Part) -> torch.Tensor:
        host = part.host
        if self._graphs is not None and self._graphs.holds(host):
            states_QD, labels = self._graphs.states(host), part.flat
        else:
            states_QD = self._model.states(PassInputs.read(part.flat, host.shape, host.tile_rows))
            labels = part.flat[host.shape.size :]
        num_rows = host.labels_shape[0]
        return self._model.head.logprobs(states_QD[:num_rows], labels.view(host.labels_shape))

    def _check_itself(self, name: str, dtype: str) -> None:
        """Compare what is compiled and captured with the model as it was loaded."""
        scores = self.score(self._model.probe).label_logprobs_BL
        difference = float(np.abs(scores - self._model.expected).max())
        if not difference <= TOLERANCE[dtype]:
            raise EngineRefused(f"{name} scores otherwise once it is compiled: log-probabilities {difference:g} off")
