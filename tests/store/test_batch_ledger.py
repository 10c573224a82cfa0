"""Batches in the ledger: who holds one, what a late holder may still write, and what is counted once."""

from __future__ import annotations

import threading
from dataclasses import replace
from uuid import UUID

import pytest
from openai.types.webhooks import BatchFailedWebhookEvent
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from core.batches import BATCH_MOVES, NO_JOB, OPEN_BATCH_STATES, BatchState, NewBatch, Part, Settled
from core.jobs import JobParameters, NewJob
from store import batch_parts, batch_steps, batches, files, uploads
from store.batch_steps import Overtaken
from store.clients import DEFAULT_CLIENT_ID

NEW = NewBatch(DEFAULT_CLIENT_ID, "/v1/rerank", UUID(int=1))
PART = Part(0, 1, 0, 10, [NO_JOB, NO_JOB, 0], [0, 0, 5], [0, 0, 7], {1: {"status": 400, "body": {"text": "\0é"}}})


@pytest.fixture
def make(database):
    def make(**changes):
        with database.begin() as connection:
            return batches.create(connection, replace(NEW, **changes))

    return make


@pytest.fixture
def claim(database):
    def claim(owner="me"):
        with database.begin() as connection:
            return batch_steps.claim(connection, owner=owner)

    return claim


def let_the_lease_run_out(database):
    with database.begin() as connection:
        connection.execute(text("UPDATE batches SET lease_until = now() - interval '1 s'"))


def test_the_moves_lead_from_open_states_to_ended_ones_and_never_back():
    ended = {BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED}
    assert set(BatchState) - set(OPEN_BATCH_STATES) == ended
    assert {state for moves in BATCH_MOVES.values() for state in moves} == set(BatchState) - {BatchState.VALIDATING}


def test_a_batch_is_claimed_once_and_again_when_the_lease_has_run_out(database, make, claim):
    made = make()
    first = claim()
    assert (first.id, first.epoch, claim("other")) == (made.id, 1, None)
    let_the_lease_run_out(database)
    second = claim("other")
    assert (second.id, second.epoch) == (made.id, 2)
    with database.begin() as connection:
        batch_steps.hold(connection, second)
    with pytest.raises(Overtaken), database.begin() as connection:
        batch_steps.hold(connection, first)
    with database.begin() as connection:
        batch_steps.release(connection, first, seconds=0)
    assert claim() is None, "who was overtaken lets nothing go"


def test_two_claims_at_once_get_two_batches(database, make, claim):
    made, found = {make().id, make().id}, []
    barrier = threading.Barrier(2)

    def run():
        barrier.wait()
        found.append(claim().id)

    threads = [threading.Thread(target=run) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert set(found) == made


def test_a_batch_that_was_let_go_is_due_later(database, make, claim):
    make()
    held = claim()
    with database.begin() as connection:
        batch_steps.release(connection, held, seconds=60)
        batch_steps.renew(connection, held)  # a beat that comes late takes nothing back
    assert claim() is None
    with database.begin() as connection:
        connection.execute(text("UPDATE batches SET due_at = now()"))
    assert claim().epoch == 2


def test_a_cancelled_batch_is_out_of_the_hands_of_who_validates_it_and_its_jobs_are_gone(database, make, claim):
    make()
    held = claim()
    with database.begin() as connection:
        batch_steps.hold(connection, held)
        new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", None, [0, 1]), "none/1", expires_in_seconds=60)
        batch_steps.add_job(connection, held, 0, uploads.begin(connection, new).id)
        batch_parts.add(connection, held, PART)
    with database.begin() as connection:
        assert batches.cancel(connection, held.id, client_id=DEFAULT_CLIENT_ID).state == BatchState.CANCELLED
    with pytest.raises(Overtaken), database.begin() as connection:
        batch_steps.hold(connection, held)
    with database.begin() as connection:
        for table in ("jobs", "batch_jobs", "batch_parts"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0


def test_a_cancel_waits_for_who_holds_the_batch(database, make, claim):
    make()
    held, ended = claim(), threading.Event()

    def cancel():
        with database.begin() as connection:
            batches.cancel(connection, held.id, client_id=DEFAULT_CLIENT_ID)
        ended.set()

    thread = threading.Thread(target=cancel)
    with database.begin() as connection:
        batch_steps.hold(connection, held)
        thread.start()
        assert not ended.wait(0.2)
        batch_steps.start(connection, held, model="fake", num_lines=0)
    thread.join(20)
    with database.begin() as connection:
        assert batches.get(connection, held.id, client_id=None).state == BatchState.CANCELLING


def test_a_part_is_kept_as_it_is_and_counted_once(database, make, claim):
    make()
    held = claim()
    with database.begin() as connection:
        batch_parts.add(connection, held, PART)
        batch_steps.start(connection, held, model="fake", num_lines=3)
        assert batch_parts.next_unsettled(connection, held.id) == PART
    for _ in range(2):
        with database.begin() as connection:
            batch_parts.settle(connection, held, PART, Settled(2, 1, 20, 10))
    with database.begin() as connection:
        found = batches.get(connection, held.id, client_id=None)
        assert (found.num_completed, found.num_failed) == (2, 1)
        assert batch_parts.total(connection, held.id) == Settled(2, 1, 20, 10)
        assert batch_parts.next_unsettled(connection, held.id) is None
    assert list(batch_parts.stream(database, held.id, with_bytes="error_bytes")) == [PART]


def test_ranges_of_a_part_are_those_of_each_job():
    part = replace(PART, job_nos=[0, NO_JOB, 1, 0], first_indexes=[5, 0, 0, 8], nums_items=[3, 0, 4, 2])
    assert part.ranges() == {0: (5, 10), 1: (0, 4)}


def test_an_ended_batch_never_changes_and_its_counts_sum_up(database, make, claim):
    make()
    held = claim()
    with database.begin() as connection:
        batch_steps.end(connection, held, BatchState.CANCELLED)
    for change in ("state = 'completed'", "num_failed = 1", "metadata = '{}'"):
        with pytest.raises(IntegrityError, match="is cancelled"), database.begin() as connection:
            connection.execute(text(f"UPDATE batches SET {change}"))
    make()
    other = claim()
    with database.begin() as connection:
        batch_steps.start(connection, other, model="fake", num_lines=3)
    with pytest.raises(IntegrityError, match="ended_counts"), database.begin() as connection:
        batch_steps.end(connection, other, BatchState.COMPLETED)


def test_one_key_makes_one_batch_until_a_day_is_over(database, make):
    key = {"idempotency_key": "k", "body_sha256": b"1"}
    first = make(**key)
    assert make(**key) is None
    assert make(idempotency_key="k", body_sha256=b"1", client_id=another_client(database)) is not None
    with database.begin() as connection:
        assert batches.find(connection, DEFAULT_CLIENT_ID, "k") == (first, b"1")
        connection.execute(text("UPDATE batches SET created_at = now() - interval '25 hours'"))
    assert make(**key).id != first.id


def another_client(database):
    with database.begin() as connection:
        return connection.execute(text("INSERT INTO clients (name) VALUES ('other') RETURNING id")).scalar_one()


def test_a_webhook_is_written_with_the_end_in_the_form_of_openai(database, make, claim):
    made = make(webhook_url="https://example.com/")
    with database.begin() as connection:
        batch_steps.end(connection, claim(), BatchState.FAILED)
        event, body = connection.execute(text("SELECT event, body FROM deliveries")).one()
    assert event == "batch.failed"
    read = BatchFailedWebhookEvent.model_validate_json(bytes(body), strict=True)
    assert (read.type, read.object, read.data.id) == (event, "event", f"batch_{made.id.hex}")


def test_old_batches_go_with_their_files_and_the_bytes_that_only_they_read(database, make, claim):
    with database.begin() as connection:
        kept, orphan = files.new_id(connection), UUID("01900000-0000-7000-8000-000000000000")
        for file_id in (kept, orphan):
            files.add_piece(connection, file_id, 0, 0, b"x")
    made = make(input_file_id=orphan)
    with database.begin() as connection:
        files.remove_expired(connection)
        assert connection.execute(text("SELECT count(*) FROM file_pieces")).scalar() == 2, "one is read, one is new"
        batch_steps.end(connection, made, BatchState.CANCELLED)
        values = {"client_id": DEFAULT_CLIENT_ID, "purpose": "batch_output", "filename": "a", "num_bytes": 0}
        files.store(connection, {**values, "id": kept, "batch_id": made.id, "expires_in_seconds": 60})
    with database.begin() as connection:
        assert batches.remove_old(connection, retention_days=1) == 0
        connection.execute(text("ALTER TABLE batches DISABLE TRIGGER batches_keep"))
        connection.execute(text("UPDATE batches SET finished_at = now() - interval '2 days'"))
        assert batches.remove_old(connection, retention_days=1) == 1
        assert connection.execute(text("SELECT count(*) FROM files")).scalar() == 0
        files.remove_expired(connection)
        assert connection.execute(text("SELECT file_id FROM file_pieces")).scalars().all() == [kept]
