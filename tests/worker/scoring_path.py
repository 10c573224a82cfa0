"""A worker's path from items to results, in this process: prepare, batcher, engine, results. No ledger, no pipes."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import numpy as np

from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.results import Evidence, StoredChunk, item_results
from store.tokenizer import JsonTokenizer
from worker.batcher import Batcher
from worker.chunk_results import scored
from worker.engine.process import EngineProcess
from worker.prompts import prepare

EVIDENCE = Evidence("r", "float32", "test/1")


class InThisProcess:
    """An engine as the batcher knows it, one batch at a time; ``trouble`` may raise before a batch is scored."""

    def __init__(self, engine, trouble=lambda _batch: None):
        self.engine, self.trouble = engine, trouble
        self.batches = []
        self._running = threading.Lock()

    @property
    def info(self):
        return self.engine.info

    @property
    def progress(self):
        return time.monotonic()

    def score(self, batch):
        with self._running:
            self.batches.append(batch)
            self.trouble(batch)
            return self.engine.score(batch)


class Path:
    """Scores items for a job as a worker does."""

    def __init__(self, batcher, tokenizer, max_tokens):
        self.batcher, self.tokenizer, self.max_tokens = batcher, tokenizer, max_tokens

    def chunk(self, items, **parameters):
        """The items' prompts and the results of their one chunk."""
        base = {"model": "tiny", "query": "", "label_token_ids": []}
        parameters = JobParameters(**(base | parameters))
        (chunk,) = cut([item if isinstance(item, NewItem) else NewItem(item) for item in items])
        prepared = prepare(parameters, chunk.payload, self.tokenizer, max_tokens=self.max_tokens)
        outcomes = self.batcher.score(prepared.prompts, small=False) if len(prepared.item_B) else None
        results = scored(parameters, chunk.payload, prepared, outcomes, EVIDENCE)
        return parameters, prepared, results

    def values(self, items, **parameters):
        """Of each item, the log-probabilities of its labels or the values of its targets."""
        _, _, results = self.chunk(items, **parameters)
        flat = np.array(results.label_logprobs, np.float32)
        offsets = results.label_offsets
        return np.split(flat, offsets[1:-1]) if offsets else list(flat.reshape(len(items), -1))

    def results(self, items, **parameters):
        """Each item's result as its reader sees it."""
        parameters, _, results = self.chunk(items, **parameters)
        return list(item_results(StoredChunk(0, 0, results), parameters))


@contextmanager
def path_of(engine, trouble=lambda _batch: None):
    """The path over an engine in this process, or in one of its own; ``path.engine`` is what the batcher speaks to."""
    living = engine if isinstance(engine, EngineProcess) else InThisProcess(engine, trouble)
    batcher = Batcher(living)
    path = Path(batcher, JsonTokenizer(living.info.tokenizer_json, is_fast=False), living.info.card.max_tokens)
    path.engine = living
    try:
        yield path
    finally:
        batcher.stop()
