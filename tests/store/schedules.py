"""Random schedules: whatever clients, workers, the scheduler and death may do to the ledger, in any order.

One thread plays every actor against real Postgres. What happens at the same time is played by one transaction that stays
open while the others go on; who meets its locks gives up, as one that died would. Time passes in the database: leases,
deadlines and hints are made old instead of waited for. What the ledger must hold after each step is what it said to the
actors: a claim that was given, a save that was won.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from psycopg.errors import LockNotAvailable
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from core.chunks import ChunkKey, Claim, NewItem, cut
from core.errors import Refused
from core.jobs import JobParameters, NewJob
from core.results import ChunkResults, Evidence
from core.states import TERMINAL_JOB_STATES, JobState
from store import chunks, jobs, retries, sweeps, uploads, windows
from store.clients import DEFAULT_CLIENT_ID

CLIENT = {"client_id": DEFAULT_CLIENT_ID}
LEASE_SECONDS = 600
OLD = "now() - interval '1 day'"
CHUNK_ITEMS = 2

stays_open = st.sampled_from([False, False, False, True])
owners = st.sampled_from(["a", "b"])
chunk_numbers = st.integers(0, 3)  # some of them are of no chunk


@dataclass(slots=True)
class Lease:
    owner: str
    epoch: int
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A claim and whose it is. It stays in play after its save and its end: what comes late must change nothing."""

    claim: Claim
    owner: str


def new_items(indexes):
    return [NewItem(f"item {index}", id=f"id-{index}", index=index) for index in indexes]


def results_of(claim, num_failed):
    """Results whose tokens tell which items they are of."""
    errors = ["non_finite_score"] * num_failed + [None] * (claim.num_items - num_failed)
    return ChunkResults(
        num_items=claim.num_items,
        label_logprobs=[-0.5, -1.25] * claim.num_items,
        prompt_tokens=[claim.first_index + place + 1 for place in range(claim.num_items)],
        errors=errors if num_failed else None,
        evidence=Evidence("r", "float32", "1"),
    )


class Schedules(RuleBasedStateMachine):
    all_jobs, receiving, claims = Bundle("all_jobs"), Bundle("receiving"), Bundle("claims")

    def __init__(self, database, connection, other):
        super().__init__()
        self.database, self.connection, self.other = database, connection, other
        self.opened = None  # the transaction that stays open, and what its commit means
        self.chunks = {}  # by job: the indexes of the items of each chunk
        self.leases, self.saved, self.ended = {}, {}, {}  # living leases and saves by chunk; ended jobs as they were
        self.seen, self.webhooks, self.num_claims = {}, {}, Counter()
        with connection.begin():
            connection.execute(text("DELETE FROM results"))
            connection.execute(text("DELETE FROM jobs"))

    def do(self, action, effect=lambda _: None, *, leaves_open=False):
        """Act in one transaction; ``effect`` takes its value once it commits. None where a lock was in the way."""
        if leaves_open and self.opened is None:
            transaction = self.other.begin()
            value = action(self.other)
            self.opened = transaction, partial(effect, value)
            return value
        try:
            with self.connection.begin():
                value = action(self.connection)
        except OperationalError as error:
            assert isinstance(error.orig, LockNotAvailable), error
            assert self.opened is not None, "nobody else holds a lock"
            return None
        effect(value)
        return value

    def execute(self, statement, **parameters):
        return self.do(lambda connection: connection.execute(text(statement), parameters).rowcount)

    @rule(is_committed=st.booleans())
    def close_the_open_transaction(self, is_committed):
        if self.opened is None:
            return
        (transaction, effect), self.opened = self.opened, None
        transaction.commit() if is_committed else transaction.rollback()
        if is_committed:
            effect()

    # Clients

    @rule(
        target=all_jobs, num_items=st.integers(1, 6), keep_inputs=st.booleans(), url=st.sampled_from([None, "http://x"])
    )
    def submit(self, num_items, keep_inputs, url):
        new_chunks = list(cut(new_items(range(num_items)), max_items=CHUNK_ITEMS))
        made = self.do(lambda c: jobs.create(c, self._new(keep_inputs, url), new_chunks, small_lane_cap=2))
        return self._add(made.job.id, url, new_chunks)

    @rule(targets=(all_jobs, receiving), keep_inputs=st.booleans(), url=st.sampled_from([None, "http://x"]))
    def begin_upload(self, keep_inputs, url):
        return self._add(self.do(lambda c: uploads.begin(c, self._new(keep_inputs, url))).id, url, [])

    @rule(job_id=receiving, num_items=st.integers(1, 3))
    def upload_a_piece(self, job_id, num_items):
        have = self.chunks.get(job_id, [])
        num_before = sum(map(len, have))
        piece = [
            replace(chunk, chunk_no=chunk.chunk_no + len(have), first_index=chunk.first_index + num_before)
            for chunk in cut(new_items(range(num_before, num_before + num_items)), max_items=CHUNK_ITEMS)
        ]
        self._upload(job_id, lambda c: uploads.add(c, job_id, piece), lambda _: self._grow(job_id, piece))

    @rule(job_id=receiving)
    def end_the_upload(self, job_id):
        if self.chunks.get(job_id):  # the front end refuses a body without items
            self._upload(job_id, lambda c: uploads.finish(c, job_id))

    @rule(job_id=receiving)
    def break_the_upload(self, job_id):
        if self.is_state(job_id, JobState.RECEIVING):
            error = {"code": "upload_incomplete"}
            self.do(lambda c: uploads.fail(c, job_id, error), lambda _: self.chunks.update({job_id: []}))

    @rule(job_id=all_jobs, leaves_open=stays_open)
    def cancel(self, job_id, leaves_open):
        job = self.do(lambda c: jobs.cancel(c, job_id, **CLIENT), lambda _: self._drop(job_id), leaves_open=leaves_open)
        assert job is None or job.state == (self.ended[job_id].state if job_id in self.ended else JobState.CANCELLED)

    @rule(job_id=all_jobs)
    def delete(self, job_id):
        try:
            is_gone = self.do(lambda c: jobs.delete(c, job_id, **CLIENT))
        except Refused:
            assert job_id not in self.ended
            return
        assert is_gone is None or is_gone == (job_id in self.ended)
        if is_gone:
            del self.chunks[job_id], self.ended[job_id]
            self.saved = {key: saved for key, saved in self.saved.items() if key.job_id != job_id}

    @rule(target=all_jobs, job_id=all_jobs)
    def retry(self, job_id):
        """What a retry does, and which items it finds: those that failed, and those of chunks that were dropped."""
        job, expected = self.ended.get(job_id), self._unscored(job_id)
        if job is None or not expected or self.do(lambda c: (retries.find(c, job),)) != (None,):
            return multiple()
        self.do(lambda c: retries.check_inputs(c, job))
        items = list(retries.unscored_items(self.database, job))
        assert [item.index for item in items] == expected
        new = self.do(lambda c: uploads.begin(c, self._new(False, None), retry_of=job_id))
        new_chunks = list(cut(items, max_items=CHUNK_ITEMS))
        self.do(lambda c: uploads.add(c, new.id, new_chunks))
        self.do(lambda c: uploads.finish(c, new.id))
        return self._add(new.id, None, new_chunks)

    # Workers

    @rule(target=claims, job_id=all_jobs, chunk_no=chunk_numbers, owner=owners, leaves_open=stays_open)
    def claim(self, job_id, chunk_no, owner, leaves_open):
        """A hint arrives: the first, a second, a late one, or one for nothing. A rollback is a claim lost in a crash."""
        key = ChunkKey(job_id, chunk_no)
        is_free = self.is_state(job_id, JobState.QUEUED, JobState.RUNNING) and chunk_no < len(self.chunks[job_id])
        is_free = is_free and key not in self.saved and (key not in self.leases or self.leases[key].is_over)
        was_open = self.opened

        def claimed(found):
            if found is not None:
                self.leases[key] = Lease(owner, found.epoch)
                self.num_claims[key] += 1

        found = self.do(
            lambda c: chunks.claim(c, key, owner=owner, lease_seconds=LEASE_SECONDS), claimed, leaves_open=leaves_open
        )
        assert (found is not None) == is_free or (found is None and was_open), (found, is_free)
        return multiple() if found is None else Held(found, owner)

    @rule(held=claims, num_failed=st.sampled_from([0, 0, 1]), and_end=st.booleans(), leaves_open=stays_open)
    def save(self, held, num_failed, and_end, leaves_open):
        claim, is_ours = held.claim, self.is_ours(held)

        def won(is_saved):
            if is_saved:
                self.saved[claim.key] = (claim.epoch, sum(results_of(claim, 0).prompt_tokens), num_failed)
                del self.leases[claim.key]

        results = results_of(claim, num_failed)
        is_saved = self.do(lambda c: chunks.save(c, claim, results, owner=held.owner), won, leaves_open=leaves_open)
        assert is_saved in (None, is_ours), "a save wins while the lease is its own, and only then"
        if is_saved and and_end:
            self.end(claim.key.job_id, False)

    @rule(job_id=all_jobs, leaves_open=stays_open)
    def end(self, job_id, leaves_open):
        is_over = self.is_state(job_id, JobState.RUNNING) and self.is_all_saved(job_id)
        assert self.do(lambda c: jobs.end(c, job_id), leaves_open=leaves_open) in (None, is_over)

    @rule(held=claims)
    def renew(self, held):
        def renewed(keys):
            for key in keys:
                self.leases[key].is_over = False

        expected = {held.claim.key} if self.is_ours(held) else set()
        mine = {"owner": held.owner, "lease_seconds": LEASE_SECONDS}
        assert self.do(lambda c: chunks.renew(c, [held.claim], **mine), renewed) in (None, expected)

    @rule(held=claims)
    def give_back(self, held):
        is_ours = self.is_ours(held)
        num_released = self.do(
            lambda c: chunks.release(c, [held.claim], owner=held.owner),
            lambda num: self.leases.pop(held.claim.key) if num else None,
        )
        assert num_released in (None, int(is_ours))

    @rule(_held=consumes(claims))
    def crash(self, _held):
        """Nobody remembers this claim any more."""

    # Time and the scheduler

    @rule(held=claims)
    def let_a_lease_run_out(self, held):
        job_id, chunk_no = held.claim.key
        where = "job_id = :job_id AND chunk_no = :chunk_no AND state = 'leased'"
        if self.execute(f"UPDATE chunks SET lease_until = {OLD} WHERE {where}", job_id=job_id, chunk_no=chunk_no):
            self.leases[held.claim.key].is_over = True

    @rule(job_id=all_jobs, column=st.sampled_from(["expires_at", "touched_at"]))
    def let_a_deadline_pass(self, job_id, column):
        if job_id not in self.ended:
            self.execute(f"UPDATE jobs SET {column} = {OLD} WHERE id = :job_id", job_id=job_id)

    @rule(job_id=all_jobs, chunk_no=chunk_numbers, owner=owners)
    def hint(self, job_id, chunk_no, owner):
        self.do(lambda c: windows.mark_hinted(c, {owner: [ChunkKey(job_id, chunk_no)]}))

    @rule()
    def lose_all_hints(self):
        self.execute(f"UPDATE chunks SET hinted_at = {OLD} WHERE state = 'pending' AND hinted_at IS NOT NULL")

    @rule()
    def sweep(self):
        self.do(sweeps.reopen_expired_leases)
        leased = self._leased()
        self.leases = {key: lease for key, lease in self.leases.items() if key in leased or not lease.is_over}
        self.do(partial(sweeps.forget_lost_hints, hint_ttl_seconds=60))
        self.do(sweeps.end_finished)
        for job_id in self.do(sweeps.expire_overdue) or ():
            self._drop(job_id)
        for job_id in self.do(partial(sweeps.fail_silent_uploads, receiving_timeout_seconds=60)) or ():
            self.chunks[job_id] = []

    # What must hold

    @invariant()
    def promises_are_kept(self):
        self.seen = {job.id: job for job in self.do(lambda c: jobs.list_page(c, **CLIENT, limit=1_000, before=None))}
        found = self._rows("chunks", "state, epoch, attempts")
        results = self._rows("results", "epoch, prompt_tokens_total, num_failed")
        events = self._read("SELECT job_id, event FROM deliveries ORDER BY 1")
        assert results == self.saved, "one results row for each save that was won, and no other"
        assert {key for key, (state, *_) in found.items() if state == "done"} == self.saved.keys()
        assert self._leased() == {key: (lease.owner, lease.epoch) for key, lease in self.leases.items()}
        assert all(epoch == attempts == self.num_claims[key] for key, (_, epoch, attempts) in found.items())
        assert self.seen.keys() == self.chunks.keys()
        for job in self.seen.values():
            self._check(job, [state for key, (state, *_) in found.items() if key.job_id == job.id])
        expected = sorted((id_, f"job.{job.state}") for id_, job in self.ended.items() if self.webhooks[id_])
        assert events == expected, "one delivery for each job that has ended"

    def _check(self, job, states):
        saved = [(key, saved) for key, saved in self.saved.items() if key.job_id == job.id]
        num_saved, num_failed = (
            sum(len(self.chunks[job.id][key.chunk_no]) for key, _ in saved),
            sum(failed for _, (_, _, failed) in saved),
        )
        counts = job.counts
        assert counts.total == sum(map(len, self.chunks[job.id]))
        assert counts.total == counts.pending + counts.succeeded + counts.failed + counts.cancelled
        assert (counts.succeeded, counts.failed) == (num_saved - num_failed, num_failed)
        assert job.usage.prompt_tokens == sum(tokens for _, (_, tokens, _) in saved), "billed once"
        if job.state in TERMINAL_JOB_STATES:
            assert counts.pending == 0
            assert not {"pending", "leased"} & set(states), "an ended job has no open chunk"
            assert job.state != JobState.COMPLETED or set(states) == {"done"}
            assert self.ended.setdefault(job.id, job) == job, "an ended job never changes"
        else:
            assert job.id not in self.ended
            assert "dropped" not in states

    def teardown(self):
        """Whatever state the schedule left: with a worker that lives and a scheduler that sweeps, every job ends."""
        try:
            self.close_the_open_transaction(True)
            self.execute(f"UPDATE chunks SET lease_until = {OLD} WHERE state = 'leased'")
            for lease in self.leases.values():
                lease.is_over = True
            self.execute(f"UPDATE jobs SET touched_at = {OLD} WHERE state = 'receiving'")
            self.lose_all_hints()
            self.sweep()
            self.promises_are_kept()
            for key, (state, hinted_at) in self._rows("chunks", "state, hinted_at").items():
                if state == "pending" and hinted_at is None:  # what the scheduler would hint now
                    held = self.claim(*key, "a", False)
                    self.promises_are_kept()
                    self.save(held, 0, True, False)
            self.promises_are_kept()
            assert self.ended.keys() == self.chunks.keys(), "every job has ended"
            self._check_items()
        finally:
            if self.opened is not None:
                self.opened[0].rollback()
            self.connection.rollback()

    def _check_items(self):
        results = Counter(self._read("SELECT job_id, index, error IS NULL FROM result_items"))
        for job_id, job in self.ended.items():
            if job.state == JobState.COMPLETED:
                own = {index: scored for (id_, index, scored) in results if id_ == job_id}
                assert sorted(own) == [index for chunk in self.chunks[job_id] for index in chunk]
                assert sum(own.values()) == job.counts.succeeded
        assert set(results.values()) <= {1}, "one result an item"

    # What was said to the actors

    def is_state(self, job_id, *states):
        return job_id in self.seen and self.seen[job_id].state in states

    def is_ours(self, held):
        lease = self.leases.get(held.claim.key)
        return lease is not None and (lease.owner, lease.epoch) == (held.owner, held.claim.epoch)

    def is_all_saved(self, job_id):
        return all(ChunkKey(job_id, number) in self.saved for number in range(len(self.chunks[job_id])))

    def _unscored(self, job_id):
        """The indexes of the items that have no score, of an ended job."""
        unscored = []
        for number, indexes in enumerate(self.chunks.get(job_id, ())):
            _, _, num_failed = self.saved.get(ChunkKey(job_id, number), (0, 0, len(indexes)))
            unscored += indexes[:num_failed]
        return unscored

    def _new(self, keep_inputs, url):
        parameters = JobParameters(model="fake", query="q", label_token_ids=[0, 1], keep_inputs=keep_inputs)
        return NewJob(parameters=parameters, template_version="none/1", webhook_url=url, **CLIENT)

    def _add(self, job_id, url, new_chunks):
        self.chunks[job_id], self.webhooks[job_id] = [], url
        self._grow(job_id, new_chunks)
        return job_id

    def _grow(self, job_id, new_chunks):
        self.chunks[job_id] += [list(chunk.payload.indexes) for chunk in new_chunks]

    def _upload(self, job_id, action, effect=lambda _: None):
        is_receiving = self.is_state(job_id, JobState.RECEIVING)
        try:
            self.do(action, effect)
        except Refused:
            assert not is_receiving
        else:
            assert is_receiving or self.opened is not None

    def _drop(self, job_id):
        self.leases = {key: lease for key, lease in self.leases.items() if key.job_id != job_id}

    def _rows(self, table, columns):
        return {ChunkKey(*row[:2]): row[2:] for row in self._read(f"SELECT job_id, chunk_no, {columns} FROM {table}")}

    def _read(self, query):
        return self.do(lambda c: [tuple(row) for row in c.execute(text(query))])

    def _leased(self):
        rows = self._rows("chunks", "state, lease_owner, epoch")
        return {key: (owner, epoch) for key, (state, owner, epoch) in rows.items() if state == "leased"}
