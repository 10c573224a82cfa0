"""Scores one chunk: claim, load, tokenise, score, save, end. Assumes that its hint comes twice, late, or never."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import structlog

from core.chunks import ChunkKey, Claim
from core.errors import Broken, NotReady
from core.results import ChunkResults, Evidence
from store import failpoints, metrics
from store.chunks import LoadedChunk, PackedChunk, lane
from store.tokenizer import Tokenizer
from worker import traces
from worker.chunk_results import exhausted, scored
from worker.engine.protocol import Prompts
from worker.ledger import Ledger
from worker.outcomes import Outcomes
from worker.prompts import ChunkPrompts, prepare

QUICK_RETRIES = 3  # after that many failures a chunk waits until its lease runs out: it must not spin

log = structlog.get_logger()


class Stopping(Exception):  # noqa: N818 - no error: the chunk is pending again, for whoever goes on
    """The process stops before the chunk is done."""


class Unable(Broken):
    """This process can score nothing any more: its engine is refused, or its batcher broke."""


class Scores(Protocol):
    """The batcher, or a fake of it."""

    def score(self, prompts: Prompts, *, small: bool) -> Outcomes:
        """Block until all are scored. Raises NotReady when the process stops first, Broken when none ever will be."""
        ...


@dataclass(frozen=True, slots=True)
class Scorer:
    """Everything about the served model that a chunk needs."""

    batcher: Scores
    tokenizer: Tokenizer
    evidence: Evidence
    max_tokens: int
    max_attempts: int


def run_chunk(key: ChunkKey, ledger: Ledger, scorer: Scorer) -> None:
    """Score the chunk if it is still to be had. Raises Stopping and Unable; the chunk is pending again then."""
    if ledger.stopping.is_set():
        raise Stopping
    try:
        taken = ledger.take(key)
    except NotReady as error:  # the process stops while Postgres is away
        raise Stopping from error
    if taken is None:
        log.debug("hint claims nothing", job_id=str(key.job_id), chunk_no=key.chunk_no)
        return
    claim, packed = taken
    with traces.chunk(claim, packed):
        _run(claim, packed, ledger, scorer)


def _run(claim: Claim, packed: PackedChunk, ledger: Ledger, scorer: Scorer) -> None:
    key = claim.key
    ledger.meter.begin(claim)
    began = time.monotonic()
    is_saved = False
    try:
        results = _results(claim, packed.unpacked(), scorer)
        with traces.save(claim):
            is_saved = ledger.save(claim, results)
    except Exception as error:
        if isinstance(error, NotReady) and ledger.stopping.is_set():
            ledger.give_back(claim)
            raise Stopping from error
        _after_failure(claim, ledger)
        raise
    finally:
        ledger.meter.finish(claim, is_saved=is_saved)
    if is_saved:
        metrics.CHUNK_SECONDS.labels(lane(claim.is_small)).observe(time.monotonic() - began)
        if not claim.is_whole:
            ledger.end(key.job_id)
    else:
        ledger.leases.let_go(claim)
        log.info("chunk discarded: it is not ours any more", job_id=str(key.job_id), chunk_no=key.chunk_no)


def _results(claim: Claim, chunk: LoadedChunk, scorer: Scorer) -> ChunkResults:
    if claim.attempts > scorer.max_attempts:
        log.error("attempts exhausted", job_id=str(claim.key.job_id), chunk_no=claim.key.chunk_no)
        return exhausted(chunk.payload, len(chunk.parameters.label_token_ids), scorer.evidence)
    failpoints.hit("worker.score", "before")
    prepared = prepare(chunk.parameters, chunk.payload, scorer.tokenizer, max_tokens=scorer.max_tokens)
    outcomes = _score(prepared, scorer, is_small=chunk.is_small) if len(prepared.item_B) else None
    failpoints.hit("worker.score", "after")
    return scored(chunk.parameters, chunk.payload, prepared, outcomes, scorer.evidence)


def _score(prepared: ChunkPrompts, scorer: Scorer, *, is_small: bool) -> Outcomes:
    try:
        return scorer.batcher.score(prepared.prompts, small=is_small)
    except NotReady:
        raise
    except Broken as error:
        raise Unable(str(error)) from error


def _after_failure(claim: Claim, ledger: Ledger) -> None:
    """Give the chunk back for a quick retry, or, when it fails again and again, let its lease run out."""
    if claim.attempts <= QUICK_RETRIES:
        ledger.give_back(claim)
    else:
        ledger.leases.let_go(claim)
