"""What the ledger has said to those who act on it, and what must be found in it at any time because of that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import text

from core.chunks import ChunkKey
from core.states import TERMINAL_JOB_STATES, JobState
from store import jobs
from store.clients import DEFAULT_CLIENT_ID

# All that is known of each chunk, and of results that have none.
CHUNKS = text("""
    SELECT job_id, chunk_no, c.state, c.epoch AS claims, c.attempts, c.lease_owner, c.hinted_at, i.chunk_no AS input,
           r.epoch, r.prompt_tokens_total, r.num_failed
      FROM chunks c FULL JOIN results r USING (job_id, chunk_no) LEFT JOIN chunk_inputs i USING (job_id, chunk_no)
""")
EVENTS = text("SELECT job_id, event FROM deliveries ORDER BY job_id")
ITEMS = text("SELECT job_id, index, error IS NULL FROM result_items")


@dataclass(slots=True)
class Lease:
    """Living, or over and not yet anybody else's."""

    owner: str
    epoch: int
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """A save that was won."""

    epoch: int
    num_tokens: int
    num_failed: int


class Promises:
    """Grows with every answer that an actor gets; a transaction that rolled back gave none."""

    def __init__(self):
        self.chunks = {}  # by job: the item indexes of each of its chunks
        self.leases, self.saved, self.num_claims = {}, {}, Counter()  # by chunk
        self.seen, self.ended = {}, {}  # jobs as they were last seen, and as they were when they ended
        self.webhooks, self.keeps_inputs = {}, {}  # by job

    def add(self, job_id, new_chunks, *, url=None, keeps_inputs=False):
        self.webhooks[job_id], self.keeps_inputs[job_id] = url, keeps_inputs
        self.chunks[job_id] = []
        self.grow(job_id, new_chunks)

    def grow(self, job_id, new_chunks):
        self.chunks[job_id] += [list(chunk.payload.indexes) for chunk in new_chunks]

    def drop_leases(self, job_id):
        self.leases = {key: lease for key, lease in self.leases.items() if key.job_id != job_id}

    def delete(self, job_id):
        del self.chunks[job_id], self.ended[job_id]
        self.saved = {key: saved for key, saved in self.saved.items() if key.job_id != job_id}

    def is_state(self, job_id, *states):
        return job_id in self.seen and self.seen[job_id].state in states

    def is_free(self, key):
        """Whether a claim gets the chunk."""
        is_there = self.is_state(key.job_id, JobState.QUEUED, JobState.RUNNING) and key in self.keys(key.job_id)
        return is_there and key not in self.saved and (key not in self.leases or self.leases[key].is_over)

    def is_held(self, claim, owner):
        """Whether a save wins: the lease may be over, but is nobody else's yet."""
        lease = self.leases.get(claim.key)
        return lease is not None and (lease.owner, lease.epoch) == (owner, claim.epoch)

    def is_finished(self, job_id):
        return self.is_state(job_id, JobState.RUNNING) and all(key in self.saved for key in self.keys(job_id))

    def keys(self, job_id):
        return [ChunkKey(job_id, number) for number in range(len(self.chunks[job_id]))]

    def unscored(self, job_id):
        """The indexes of the items that have no score, of an ended job."""
        unscored = []
        for key in self.keys(job_id) if job_id in self.chunks else ():
            indexes = self.chunks[job_id][key.chunk_no]
            unscored += indexes[: self.saved[key].num_failed] if key in self.saved else indexes
        return unscored

    def check(self, connection):
        """Compare all of it with what is there."""
        page = jobs.list_page(connection, client_id=DEFAULT_CLIENT_ID, limit=1_000, before=None)
        rows = {ChunkKey(row.job_id, row.chunk_no): row for row in connection.execute(CHUNKS)}
        self.seen = {job.id: job for job in page}
        found = {
            key: Saved(row.epoch, row.prompt_tokens_total, row.num_failed) for key, row in rows.items() if row.epoch
        }
        assert found == self.saved, "one results row for each save that was won, and no other"
        assert {key for key, row in rows.items() if row.state == "done"} == self.saved.keys()
        leased = {key: (row.lease_owner, row.claims) for key, row in rows.items() if row.state == "leased"}
        assert leased == {key: (lease.owner, lease.epoch) for key, lease in self.leases.items()}
        assert all(row.claims == row.attempts == self.num_claims[key] for key, row in rows.items())
        assert self.seen.keys() == self.chunks.keys()
        for key, row in rows.items():
            is_kept = key not in self.saved or self.saved[key].num_failed > 0 or self.keeps_inputs[key.job_id]
            assert (row.input is not None) == is_kept, "inputs stay as long as somebody may need them"
        for job in page:
            self._check_job(job, [row.state for key, row in rows.items() if key.job_id == job.id])
        expected = sorted((job_id, f"job.{job.state}") for job_id, job in self.ended.items() if self.webhooks[job_id])
        assert list(map(tuple, connection.execute(EVENTS))) == expected, "one delivery for each job that has ended"
        return rows

    def _check_job(self, job, states):
        saved = [self.saved[key] for key in self.keys(job.id) if key in self.saved]
        num_saved = sum(len(self.chunks[job.id][key.chunk_no]) for key in self.keys(job.id) if key in self.saved)
        num_failed, counts = sum(each.num_failed for each in saved), job.counts
        assert counts.total == sum(map(len, self.chunks[job.id]))
        assert counts.total == counts.pending + counts.succeeded + counts.failed + counts.cancelled
        assert (counts.succeeded, counts.failed) == (num_saved - num_failed, num_failed)
        assert job.usage.prompt_tokens == sum(each.num_tokens for each in saved), "billed once"
        if job.state in TERMINAL_JOB_STATES:
            assert counts.pending == 0
            assert not {"pending", "leased"} & set(states), "an ended job has no open chunk"
            assert job.state != JobState.COMPLETED or set(states) == {"done"}
            assert self.ended.setdefault(job.id, job) == job, "an ended job never changes"
        else:
            assert job.id not in self.ended
            assert "dropped" not in states

    def check_items(self, connection):
        """Every job has ended, and each item of a completed one has one result."""
        assert self.ended.keys() == self.chunks.keys(), "every job has ended"
        results = Counter(map(tuple, connection.execute(ITEMS)))
        assert set(results.values()) <= {1}, "one result an item"
        for job_id, job in self.ended.items():
            if job.state == JobState.COMPLETED:
                own = {index: is_scored for (id_, index, is_scored) in results if id_ == job_id}
                assert sorted(own) == [index for chunk in self.chunks[job_id] for index in chunk]
                assert sum(own.values()) == job.counts.succeeded
