"""Passes of few tokens as CUDA graphs: one launch in place of hundreds, which take longer to issue than to run.

A graph is a pass of one shape over buffers that stay where they are; passes are filled up to the next shape. All graphs
share one pool of memory, because one runs at a time and its states are read before the next begins.
"""

# ruff: noqa: N815 - tensors carry their shape in the name
from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.engine.packed_model import PackedModel
from worker.engine.packed_pass import HostPass, PassInputs, PassPlanner, PassShape, graph_shape
from worker.engine.prefix_tree import prefix_tree
from worker.engine.probe import synthetic_batch
from worker.engine.protocol import num_scored

# Steps of a tenth or so, because what fills up is computed too; beyond the last, a pass takes longer than its launches.
GRAPH_TOKENS = (64, 128, 256, 512, 768, *range(1_024, 4_096, 256), *range(4_096, 8_193, 512))


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    flat: torch.Tensor
    graph: torch.cuda.CUDAGraph
    states_QD: torch.Tensor


class Graphs:
    """A graph for each shape. Making them must have the GPU to itself."""

    def __init__(self, model: PackedModel, most_tokens: int) -> None:
        self._model = model
        self._pool = torch.cuda.graph_pool_handle()
        tile_rows = PassPlanner(model.heads, model.device).tile_rows
        self.shapes = tuple(graph_shape(tokens, tile_rows) for tokens in GRAPH_TOKENS if tokens <= most_tokens)
        self._graphs = self._capture_all()

    def holds(self, planned: HostPass) -> bool:
        """Whether there is a graph for this pass."""
        return planned.shape in self._graphs

    def states(self, planned: HostPass) -> torch.Tensor:
        """The last states of the rows, in a buffer that the next pass overwrites."""
        graph = self._graphs[planned.shape]
        graph.flat.copy_(planned.flat[: planned.shape.size], non_blocking=True)
        graph.graph.replay()
        return graph.states_QD

    def _capture_all(self) -> dict[PassShape, _Graph]:
        """All graphs, from one stream: each stream would have memory of its own for passes and for matrix products.

        ``torch.cuda.graph`` would give all unused memory back before each of them, and most of the time would go there.
        """
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graphs = {shape: self._capture(shape) for shape in reversed(self.shapes)}  # the largest makes the pool
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()  # what the stream had outside the graphs is of no use to another one
        return graphs

    @torch.inference_mode()
    def _capture(self, shape: PassShape) -> _Graph:
        """The graph of one shape, from the current stream, which must not be the default one."""
        batch = synthetic_batch(shape.tokens // 2, 2, shape.tokens, depth=0)
        tree = prefix_tree(batch.lengths_B, batch.shared_B, num_scored(batch.label_ids_BL, batch.is_path_B))
        planned = PassPlanner(self._model.heads, self._model.device, (shape,)).plan(batch, tree)
        assert planned.shape == shape
        flat = planned.flat[: shape.size].to(self._model.device)
        # Once by itself: what is made at a first pass must not be captured.
        self._model.states(PassInputs.read(flat, shape, planned.tile_rows))
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        try:
            states_QD = self._model.states(PassInputs.read(flat, shape, planned.tile_rows))
        finally:
            graph.capture_end()
        return _Graph(flat, graph, states_QD)
