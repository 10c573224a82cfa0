"""The ledger as a worker uses it: one transaction a stage, none open while the engine works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from uuid import UUID

import structlog

from core.chunks import ChunkKey, Claim
from core.errors import NotReady
from core.results import ChunkResults
from store import chunks, failpoints, jobs, metrics, saves
from store.database import Database
from worker.leases import Leases
from worker.meter import Meter
from worker.patience import keep_trying, pauses

log = structlog.get_logger()


@dataclass(frozen=True)
class Ledger:
    """Shared by a worker's threads. ``announce`` tells whoever waits that a job has ended; it may fail."""

    database: Database
    owner: str
    lease_seconds: float
    announce: Callable[[UUID], None]
    leases: Leases = field(default_factory=Leases)
    stopping: Event = field(default_factory=Event)
    meter: Meter = field(default_factory=Meter)

    def claim(self, key: ChunkKey) -> Claim | None:
        """The chunk, ours until the lease ends, or None: done, dropped, somebody else's, or never heard of.

        While Postgres is away, wait for it: the hint that asks for this claim would not come again for a minute.
        Raises its NotReady when the process is to stop first.
        """
        taken = self.take(key)
        return None if taken is None else taken[0]

    def take(self, key: ChunkKey) -> tuple[Claim, chunks.PackedChunk] | None:
        """Claim a chunk, and read what it holds, in one statement. None and NotReady as ``claim`` says."""
        taken = keep_trying(lambda: self._take(key), what="claim", stopping=self.stopping)
        if taken is not None:
            self.leases.hold(taken[0])
        return taken

    def save(self, claim: Claim, results: ChunkResults) -> bool:
        """Save and let go; False where the chunk is somebody else's, or over. While Postgres is away, wait for it.

        A job that is this chunk alone ends with it; of any other job nothing but ``end`` finds the end.

        A refused chunk may be nobody's: its claim was lost in a crash of Postgres, or its lease ran out. The work is
        still good then, and is saved under a new claim. A connection that breaks during COMMIT leaves us ignorant: a
        refusal after a broken try counts as saved, since the end that follows is harmless.
        """
        is_saved, was_broken = self._save_while_ours(claim, results)
        if not is_saved and (again := self.claim(claim.key)) is not None:
            is_saved, _ = self._save_while_ours(again, results)
        return is_saved or was_broken

    def end(self, job_id: UUID) -> None:
        """End the job if this was its last chunk. What fails here is done by the scheduler's sweep."""
        try:
            with self.database.begin("worker.end") as connection:
                is_ended = jobs.end(connection, job_id)
        except NotReady as error:
            log.warning("end is left to the sweep", job_id=str(job_id), reason=str(error))
            return
        if is_ended:
            self._tell_end(job_id)

    def give_back(self, *claims: Claim) -> None:
        """Let go, and make the chunks pending at once. What fails here waits until its lease runs out."""
        ours = [claim for claim in claims if self.leases.let_go(claim)]
        if not ours:
            return
        try:
            with self.database.begin("worker.release") as connection:
                chunks.release(connection, ours, owner=self.owner)
        except NotReady as error:
            log.warning("leases are left to run out", num_leases=len(ours), reason=str(error))

    def _take(self, key: ChunkKey) -> tuple[Claim, chunks.PackedChunk] | None:
        with self.database.autocommit("worker.claim") as connection:
            return chunks.take(connection, key, owner=self.owner, lease_seconds=self.lease_seconds)

    def _save_while_ours(self, claim: Claim, results: ChunkResults) -> tuple[bool, bool]:
        """Whether it is saved, and whether any try broke."""
        writes_delivery = claim.is_whole and claim.has_webhook  # any other save is one statement
        begin = self.database.begin if writes_delivery else self.database.autocommit
        for num_broken, pause in enumerate(pauses()):
            if not self.leases.is_ours(claim):
                return False, num_broken > 0
            try:
                with begin("worker.save") as connection:
                    is_saved = saves.save(connection, claim, results, owner=self.owner, and_end=claim.is_whole)
            except NotReady as error:
                metrics.RETRIES.labels("save").inc()
                log.warning("save waits", job_id=str(claim.key.job_id), chunk_no=claim.key.chunk_no, reason=str(error))
                self.leases.wait_while_ours(claim, seconds=pause)
            else:
                self.leases.let_go(claim)
                if is_saved and claim.is_whole:
                    self._tell_end(claim.key.job_id)
                if not is_saved:
                    log.warning("stale save refused", job_id=str(claim.key.job_id), chunk_no=claim.key.chunk_no)
                return is_saved, num_broken > 0
        raise AssertionError("pauses never end")

    def _tell_end(self, job_id: UUID) -> None:
        try:
            failpoints.hit("worker.announce", "before")
            self.announce(job_id)
            failpoints.hit("worker.announce", "after")
        except Exception as error:  # noqa: BLE001 - whoever waits polls too; a job that has ended stays ended
            log.warning("announcement failed", job_id=str(job_id), reason=str(error))
        log.info("job completed", job_id=str(job_id))  # last: somebody waits for the announcement
