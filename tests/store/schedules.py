"""Random schedules: whatever clients, workers, the scheduler and death may do to the ledger, in any order.

One thread plays every actor against real Postgres. What happens at the same time is played by one transaction that stays
open while the others go on; who meets its locks gives up, as one that died would. Time passes in the database: leases,
deadlines and hints are made old instead of waited for. What the ledger must hold after each step is what it said to the
actors: a claim that was given, a save that was won.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from promises import Lease, Promises, Saved
from psycopg.errors import LockNotAvailable
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from core.chunks import ChunkKey, Claim, NewItem, cut
from core.errors import Refused
from core.jobs import JobParameters, NewJob
from core.results import ChunkResults, Evidence
from core.states import JobState
from store import chunks, jobs, retries, saves, sweeps, uploads, windows
from store.clients import DEFAULT_CLIENT_ID

CLIENT = {"client_id": DEFAULT_CLIENT_ID}
LEASE_SECONDS = 600
LEASED = text("SELECT job_id, chunk_no FROM chunks WHERE state = 'leased'")
OLD = "now() - interval '1 day'"
CHUNK_ITEMS = 2
AFTER_A_STALL = ("save", "save and end", "renew", "give back", "nothing")
AFTER_A_SAVE = ("end", "end", "nothing", "cancel")  # what a worker does, its death, and what may come between

stays_open = st.sampled_from([False, False, False, True])
owners = st.sampled_from(["a", "a", "a", "b"])  # the same one again is who can take an old claim for its new one
chunk_numbers = st.sampled_from([0, 0, 0, 1, 1, 2, 3])  # some of them are of no chunk


@dataclass(frozen=True, slots=True)
class Held:
    """A claim and whose it is. It stays in play after its save and its end: what comes late must change nothing."""

    claim: Claim
    owner: str


def new_items(indexes):
    return [NewItem(f"item {index}", id=f"id-{index}", index=index) for index in indexes]


def results_of(claim, num_failed, indexes=None):
    """Results whose tokens tell which items they are of; ``indexes`` are those that the items had in another job."""
    errors = ["non_finite_score"] * num_failed + [None] * (claim.num_items - num_failed)
    return ChunkResults(
        num_items=claim.num_items,
        label_logprobs=[-0.5, -1.25] * claim.num_items,
        prompt_tokens=[claim.first_index + place + 1 for place in range(claim.num_items)],
        errors=errors if num_failed else None,
        item_indexes=indexes,
        evidence=Evidence("r", "float32", "1"),
    )


def bundled(*found):
    return multiple(*(held for held in found if held is not None))


class Schedules(RuleBasedStateMachine):
    all_jobs, receiving, claims = Bundle("all_jobs"), Bundle("receiving"), Bundle("claims")

    def __init__(self, database, connection, other):
        super().__init__()
        self.database, self.connection, self.other = database, connection, other
        self.opened = None  # the transaction that stays open, and what its commit means
        self.told = Promises()
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
            if self.opened is None or not isinstance(error.orig, LockNotAvailable):
                raise
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

    @initialize(target=all_jobs)
    def begin_with_a_job(self):
        return self.submit(num_items=5, keep_inputs=False, url="http://x")

    @initialize(target=claims, owner=owners, num_chunks=st.sampled_from([1, 2]))
    def begin_with_all_chunks_of_a_job_claimed(self, owner, num_chunks):
        job_id = self.submit(num_items=num_chunks * CHUNK_ITEMS, keep_inputs=False, url=None)
        self.promises_are_kept()
        return bundled(*(self._claim(job_id, number, owner) for number in range(num_chunks)))

    # Clients

    @rule(
        target=all_jobs, num_items=st.integers(1, 6), keep_inputs=st.booleans(), url=st.sampled_from([None, "http://x"])
    )
    def submit(self, num_items, keep_inputs, url):
        new_chunks = list(cut(new_items(range(num_items)), max_items=CHUNK_ITEMS))
        made = self.do(lambda c: jobs.create(c, self._new(keep_inputs, url), new_chunks, small_lane_cap=2))
        self.told.add(made.job.id, new_chunks, url=url, keeps_inputs=keep_inputs)
        return made.job.id

    @rule(targets=(all_jobs, receiving), keep_inputs=st.booleans(), url=st.sampled_from([None, "http://x"]))
    def begin_upload(self, keep_inputs, url):
        job = self.do(lambda c: uploads.begin(c, self._new(keep_inputs, url)))
        self.told.add(job.id, [], url=url, keeps_inputs=keep_inputs)
        return job.id

    @rule(target=claims, job_id=receiving, num_items=st.integers(1, 3), is_hinted=st.booleans())
    def upload_a_piece(self, job_id, num_items, is_hinted):
        """And perhaps a stray hint for a chunk that nobody may claim yet."""
        have = self.told.chunks.get(job_id, [])
        num_before = sum(map(len, have))
        piece = [
            replace(chunk, chunk_no=chunk.chunk_no + len(have), first_index=chunk.first_index + num_before)
            for chunk in cut(new_items(range(num_before, num_before + num_items)), max_items=CHUNK_ITEMS)
        ]
        self._upload(job_id, lambda c: uploads.add(c, job_id, piece), lambda _: self.told.grow(job_id, piece))
        return bundled(self._claim(job_id, 0, "a") if is_hinted else None)

    @rule(job_id=receiving)
    def end_the_upload(self, job_id):
        if self.told.chunks.get(job_id):  # the front end refuses a body without items
            self._upload(job_id, lambda c: uploads.finish(c, job_id))

    @rule(job_id=receiving)
    def break_the_upload(self, job_id):
        if self.told.is_state(job_id, JobState.RECEIVING):
            error = {"code": "upload_incomplete"}
            self.do(lambda c: uploads.fail(c, job_id, error), lambda _: self.told.chunks.update({job_id: []}))

    @rule(job_id=all_jobs, leaves_open=stays_open)
    def cancel(self, job_id, leaves_open):
        job = self.do(
            lambda c: jobs.cancel(c, job_id, **CLIENT), lambda _: self.told.drop_leases(job_id), leaves_open=leaves_open
        )
        assert job is None or job.state == (
            self.told.ended[job_id].state if job_id in self.told.ended else JobState.CANCELLED
        )

    @rule(job_id=all_jobs)
    def delete(self, job_id):
        try:
            is_gone = self.do(lambda c: jobs.delete(c, job_id, **CLIENT))
        except Refused:
            assert job_id not in self.told.ended
            return
        assert is_gone is None or is_gone == (job_id in self.told.ended)
        if is_gone:
            self.told.delete(job_id)

    @rule(target=all_jobs, job_id=all_jobs)
    def retry(self, job_id):
        """What a retry does, and which items it finds: those that failed, and those of chunks that were dropped."""
        job, expected = self.told.ended.get(job_id), self.told.unscored(job_id)
        if job is None or not expected or self.do(lambda c: (retries.find(c, job),)) != (None,):
            return multiple()
        self.do(lambda c: retries.check_inputs(c, job))
        items = list(retries.unscored_items(self.database, job))
        assert [item.index for item in items] == expected
        new = self.do(lambda c: uploads.begin(c, self._new(keep_inputs=False), retry_of=job_id))
        new_chunks = list(cut(items, max_items=CHUNK_ITEMS))
        self.do(lambda c: uploads.add(c, new.id, new_chunks))
        self.do(lambda c: uploads.finish(c, new.id))
        self.told.add(new.id, new_chunks)
        return new.id

    # Workers

    @rule(target=claims, job_id=all_jobs, chunk_no=chunk_numbers, owner=owners, leaves_open=stays_open)
    def claim(self, job_id, chunk_no, owner, leaves_open):
        """A hint arrives: the first, a second, a late one, or one for nothing. A rollback is a claim lost in a crash."""
        return bundled(self._claim(job_id, chunk_no, owner, leaves_open=leaves_open))

    def _claim(self, job_id, chunk_no, owner, *, leaves_open=False):
        key = ChunkKey(job_id, chunk_no)
        is_free = self.told.is_free(key)
        was_open = self.opened

        def claimed(found):
            if found is not None:
                self.told.leases[key] = Lease(owner, found.epoch)
                self.told.num_claims[key] += 1

        found = self.do(
            lambda c: chunks.claim(c, key, owner=owner, lease_seconds=LEASE_SECONDS), claimed, leaves_open=leaves_open
        )
        assert (found is not None) == is_free or (found is None and was_open), (found, is_free)
        return None if found is None else Held(found, owner)

    @rule(target=claims, job_id=all_jobs, chunk_no=chunk_numbers)
    def lose_a_claim_in_a_crash(self, job_id, chunk_no):
        """A claim does not wait for the disk: Postgres may forget it, and give its epoch to another; the first goes on."""
        if self.opened is not None:
            return multiple()
        lost = self._claim(job_id, chunk_no, "a", leaves_open=True)
        self.close_the_open_transaction(is_committed=False)
        again = self._claim(job_id, chunk_no, "b")
        if lost is not None:
            self.save(lost, num_failed=0, then="nothing", leaves_open=False)
        return bundled(lost, again)

    @rule(target=claims, held=claims, owner=owners, then=st.sampled_from(AFTER_A_STALL))
    def stall(self, held, owner, then):
        """The lease runs out, a hint comes again, and whoever stalled goes on where it was."""
        self.let_a_lease_run_out(held)
        again = self._claim(*held.claim.key, owner)
        if then in ("save", "save and end"):
            self.save(held, num_failed=0, then="nothing" if then == "save" else "end", leaves_open=False)
        elif then != "nothing":
            (self.renew if then == "renew" else self.give_back)(held)
        return bundled(again)

    @rule(
        held=claims, num_failed=st.sampled_from([0, 0, 1]), then=st.sampled_from(AFTER_A_SAVE), leaves_open=stays_open
    )
    def save(self, held, num_failed, then, leaves_open):
        claim, is_ours = held.claim, self.told.is_held(held.claim, held.owner)

        def won(is_saved):
            if is_saved:
                self.told.saved[claim.key] = Saved(claim.epoch, sum(results_of(claim, 0).prompt_tokens), num_failed)
                del self.told.leases[claim.key]

        own = self.told.chunks.get(claim.key.job_id, [])  # empty where the job was deleted
        results = results_of(claim, num_failed, own[claim.key.chunk_no] if own else None)
        and_end = then == "end" and claim.is_whole
        is_saved = self.do(
            lambda c: saves.save(c, claim, results, owner=held.owner, and_end=and_end), won, leaves_open=leaves_open
        )
        assert is_saved in (None, is_ours), "a save wins while the lease is its own, and only then"
        if is_saved and then != "nothing" and not and_end:
            (self.end if then == "end" else self.cancel)(claim.key.job_id, leaves_open=False)

    @rule(job_id=all_jobs, leaves_open=stays_open)
    def end(self, job_id, leaves_open):
        is_finished = self.told.is_finished(job_id)
        assert self.do(lambda c: jobs.end(c, job_id), leaves_open=leaves_open) in (None, is_finished)

    @rule(held=claims)
    def renew(self, held):
        def renewed(keys):
            for key in keys:
                self.told.leases[key].is_over = False

        expected = {held.claim.key} if self.told.is_held(held.claim, held.owner) else set()
        mine = {"owner": held.owner, "lease_seconds": LEASE_SECONDS}
        assert self.do(lambda c: chunks.renew(c, [held.claim], **mine), renewed) in (None, expected)

    @rule(held=claims)
    def give_back(self, held):
        is_ours = self.told.is_held(held.claim, held.owner)
        num_released = self.do(
            lambda c: chunks.release(c, [held.claim], owner=held.owner),
            lambda num: self.told.leases.pop(held.claim.key) if num else None,
        )
        assert num_released in (None, int(is_ours))

    # Time and the scheduler

    @rule(held=claims)
    def let_a_lease_run_out(self, held):
        job_id, chunk_no = held.claim.key
        where = "job_id = :job_id AND chunk_no = :chunk_no AND state = 'leased'"
        if self.execute(f"UPDATE chunks SET lease_until = {OLD} WHERE {where}", job_id=job_id, chunk_no=chunk_no):
            self.told.leases[held.claim.key].is_over = True

    @rule(job_id=all_jobs, column=st.sampled_from(["expires_at", "touched_at"]), is_past=st.sampled_from([False, True]))
    def let_time_pass(self, job_id, column, is_past):
        """Every hint is old now, and perhaps a deadline of the job has passed."""
        self.execute(f"UPDATE chunks SET hinted_at = {OLD} WHERE state = 'pending' AND hinted_at IS NOT NULL")
        if is_past and job_id not in self.told.ended:
            self.execute(f"UPDATE jobs SET {column} = {OLD} WHERE id = :job_id", job_id=job_id)

    @rule(job_id=all_jobs, chunk_no=chunk_numbers, owner=owners)
    def hint(self, job_id, chunk_no, owner):
        self.do(lambda c: windows.mark_hinted(c, {owner: [ChunkKey(job_id, chunk_no)]}))

    @rule()
    def sweep(self):
        self.do(sweeps.reopen_expired_leases)
        leased = {ChunkKey(*row) for row in self.do(lambda c: c.execute(LEASED).all())}
        self.told.leases = {key: held for key, held in self.told.leases.items() if key in leased or not held.is_over}
        self.do(partial(sweeps.forget_lost_hints, hint_ttl_seconds=60))
        self.do(sweeps.end_finished)
        for job_id in self.do(sweeps.expire_overdue) or ():
            self.told.drop_leases(job_id)
        for job_id in self.do(partial(sweeps.fail_silent_uploads, receiving_timeout_seconds=60)) or ():
            self.told.chunks[job_id] = []

    # What must hold

    @invariant()
    def promises_are_kept(self):
        self.do(self.told.check)

    def teardown(self):
        """Whatever the schedule left: with a worker that saves and a scheduler that sweeps, every job ends, and can go."""
        try:
            self.close_the_open_transaction(is_committed=True)
            self.execute(f"UPDATE chunks SET lease_until = {OLD} WHERE state = 'leased'")
            for lease in self.told.leases.values():
                lease.is_over = True
            self.execute(f"UPDATE jobs SET touched_at = {OLD} WHERE state = 'receiving'")
            self.execute(f"UPDATE chunks SET hinted_at = {OLD} WHERE state = 'pending' AND hinted_at IS NOT NULL")
            self.sweep()
            for key, row in self.do(self.told.check).items():
                if row.state == "pending" and row.hinted_at is None:  # what the scheduler would hint now
                    held = self._claim(*key, "a")
                    self.promises_are_kept()
                    if held is not None:  # else its job never ends, which is found below
                        self.save(held, num_failed=0, then="nothing", leaves_open=False)
            self.sweep()
            self.promises_are_kept()
            self.do(self.told.check_items)
            for job_id in list(self.told.ended):
                self.delete(job_id)
            self.promises_are_kept()
        finally:
            if self.opened is not None:
                self.opened[0].rollback()
            self.connection.rollback()

    def _new(self, keep_inputs, url=None):
        parameters = JobParameters(model="fake", query="q", label_token_ids=[0, 1], keep_inputs=keep_inputs)
        return NewJob(parameters=parameters, template_version="none/1", webhook_url=url, **CLIENT)

    def _upload(self, job_id, action, effect=lambda _: None):
        is_receiving = self.told.is_state(job_id, JobState.RECEIVING)
        try:
            self.do(action, effect)
        except Refused:
            assert not is_receiving
        else:
            assert is_receiving or self.opened is not None
