"""Spans of a worker and a deliverer, into an exporter in memory: real ledger, real batcher, engine in this process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import wait_until
from receiver import Receiver
from recorded_spans import recording
from scoring_path import InThisProcess
from sqlalchemy import text

from core import arrivals, spans
from core.arrivals import Arrival
from core.results import Evidence
from store.tokenizer import ByteTokenizer
from worker.batcher import Batcher
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import EngineDied
from worker.score_chunk import Scorer, run_chunk

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-1] + "0"
SECRET_TEXT = "a text that no span may hold"


@pytest.fixture
def exporter():
    with recording() as exporter:
        yield exporter


@pytest.fixture
def submit_for(submit):
    """Post a job as a request of this caller does; returns the keys of its chunks."""

    def post(caller, *arguments, **fields):
        arrival = Arrival(caller, time.time_ns())
        token = arrivals.current.set(arrival)
        try:
            return submit(*arguments, **fields)
        finally:
            arrivals.current.reset(token)
            arrival.end(202)

    return post


@pytest.fixture
def held():
    """Set: batches run. Clear: the first waits, and others meet behind it."""
    event = threading.Event()
    event.set()
    yield event
    event.set()


@pytest.fixture
def engine(held):
    return InThisProcess(FakeEngine(EngineOptions(), FakeTroubles()), trouble=lambda _batch: held.wait(60))


@pytest.fixture
def scorer(engine):
    batcher = Batcher(engine)
    yield Scorer(batcher, ByteTokenizer(), Evidence("1", "float32", "fake/1"), 1_000, 100)
    batcher.stop()


def named(exporter, begin):
    return [span for span in exporter.get_finished_spans() if span.name.startswith(begin)]


def linked(span):
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def address(span):
    return span.context.trace_id, span.context.span_id


def everything(exporter):
    return "".join(span.to_json() for span in exporter.get_finished_spans())


def stored(database, key):
    with database.begin() as connection:
        query = text("SELECT parameters ->> 'traceparent' FROM jobs WHERE id = :job_id")
        return connection.execute(query, {"job_id": key.job_id}).scalar_one()


def test_a_chunk_is_linked_to_its_submit_and_has_a_trace_of_its_own(exporter, submit_for, scorer, make_ledger):
    for key in submit_for(CALLER, ["a", "b", SECRET_TEXT], chunk_items=2):
        run_chunk(key, make_ledger(), scorer)
    (submit,) = named(exporter, "submit")
    chunks = named(exporter, "score chunk fake")
    assert f"{submit.context.trace_id:032x}" == spans.trace_id_of(CALLER)
    assert f"{submit.parent.span_id:016x}" == CALLER[36:52]
    assert [linked(chunk) for chunk in chunks] == [[address(submit)]] * 2
    assert all(chunk.parent is None for chunk in chunks)
    assert len({span.context.trace_id for span in (submit, *chunks)}) == 3
    assert {chunk.attributes["messaging.operation.type"] for chunk in chunks} == {"process"}
    assert [chunk.attributes["messaging.batch.message_count"] for chunk in chunks] == [2, 1]
    assert [chunk.attributes["rankmill.chunk.no"] for chunk in chunks] == [0, 1]
    assert submit.attributes["rankmill.job.id"] == chunks[0].attributes["rankmill.job.id"]


def test_a_save_is_a_part_of_its_chunk(exporter, submit_for, scorer, make_ledger):
    (key,) = submit_for(CALLER, ["a"])
    run_chunk(key, make_ledger(), scorer)
    (save,), (chunk,) = named(exporter, "save chunk"), named(exporter, "score chunk")
    assert (save.context.trace_id, save.parent.span_id) == address(chunk)
    assert save.attributes["messaging.operation.type"] == "settle"


def test_a_batch_of_two_jobs_is_linked_to_a_chunk_of_each(exporter, submit_for, scorer, engine, held, make_ledger):
    keys = [key for letter in "wxyz" for key in submit_for(CALLER, [letter] * 3)]
    held.clear()
    with ThreadPoolExecutor(len(keys)) as threads:  # one batch runs, one lies ready: the others meet in the next
        running = [threads.submit(run_chunk, key, make_ledger(str(key)), scorer) for key in keys]
        wait_until(lambda: len(scorer.batcher._pool._open) == len(keys), seconds=60)
        held.set()
        for each in running:
            each.result(60)
    chunks = {address(span): span for span in named(exporter, "score chunk")}
    batches = named(exporter, "score batch fake")
    assert sum(batch.attributes["messaging.batch.message_count"] for batch in batches) == 12
    assert {place for batch in batches for place in linked(batch)} == chunks.keys()
    both = max(batches, key=lambda batch: len(batch.links))
    jobs = {chunks[place].attributes["rankmill.job.id"] for place in linked(both)}
    assert len(jobs) == len(both.links) >= 2
    assert both.attributes["rankmill.batch.chunks"] == len(both.links)
    assert both.parent is None


def test_the_links_of_a_span_are_bounded_before_anybody_copies_them(exporter, monkeypatch):
    handed = []
    start = spans.recorder().start
    monkeypatch.setattr(
        spans.recorder(), "start", lambda *named, links: (handed.extend(links), start(*named, links=links))[1]
    )
    with spans.linked("score batch", "CONSUMER", [f"{CALLER[:36]}{number:016x}-01" for number in range(1, 999)], {}):
        pass
    (span,) = exporter.get_finished_spans()
    assert len(span.links) == len(handed) == spans.MAX_LINKS


def test_what_fails_says_the_kind_of_failure_and_no_message(exporter, submit_for, scorer, engine, make_ledger):
    def die(_batch):
        engine.trouble = lambda _batch: None
        raise EngineDied(SECRET_TEXT, was_running=True)

    engine.trouble = die
    (key,) = submit_for(CALLER, ["a", "b"])
    run_chunk(key, make_ledger(), scorer)
    failed = [span for span in exporter.get_finished_spans() if not span.status.is_ok]
    assert [(span.name, span.attributes["error.type"]) for span in failed] == [("score batch fake", "EngineDied")]
    assert failed[0].status.description is None
    assert not failed[0].events


def test_an_attempt_to_call_back_is_linked_to_the_submit_of_its_job(
    exporter, submit_for, scorer, make_ledger, deliverer, database
):
    with Receiver(200).serving() as url:
        (key,) = submit_for(CALLER, ["a"], webhook_url=url)
        run_chunk(key, make_ledger(), scorer)
        with database.begin() as connection:
            query = text("SELECT id FROM deliveries WHERE job_id = :job_id")
            delivery_id = connection.execute(query, {"job_id": key.job_id}).scalar_one()
        deliverer.deliver(delivery_id)
        (span,), (submit,) = named(exporter, "deliver webhook"), named(exporter, "submit")
        assert linked(span) == [address(submit)]
        assert span.attributes["messaging.message.id"].startswith("msg_")
        assert url not in everything(exporter)


def test_no_span_holds_a_text(exporter, submit_for, scorer, make_ledger):
    (key,) = submit_for(CALLER, [SECRET_TEXT], query=SECRET_TEXT)
    run_chunk(key, make_ledger(), scorer)
    assert len(exporter.get_finished_spans()) == 4
    assert SECRET_TEXT not in everything(exporter)


def test_a_job_whose_caller_does_not_sample_leaves_no_span(exporter, submit_for, scorer, make_ledger, read_job):
    (key,) = submit_for(UNSAMPLED, ["a"])
    run_chunk(key, make_ledger(), scorer)
    assert read_job(key.job_id).counts.succeeded == 1
    assert exporter.get_finished_spans() == ()


def test_what_a_submit_was_drawn_for_is_recorded_whatever_the_share(monkeypatch, submit_for, scorer, make_ledger):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    with recording() as exporter:
        for caller in (CALLER, ""):
            (key,) = submit_for(caller, ["a"])
            run_chunk(key, make_ledger(), scorer)
    assert len(named(exporter, "submit")) == len(named(exporter, "score chunk")) == 1


def test_without_a_recorder_the_callers_span_is_stored_all_the_same(submit_for, database):
    (key,) = submit_for(CALLER, ["a"])
    assert stored(database, key) == CALLER
    (key,) = submit_for("", ["a"])
    assert stored(database, key) is None


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (CALLER, CALLER),
        (f" {CALLER} ", CALLER),
        (CALLER.replace("00-", "01-", 1) + "-more", CALLER),
        ("", ""),
        ("00-abc", ""),
        (CALLER + "-more", ""),
        (CALLER.replace("00-", "ff-", 1), ""),
        (CALLER.upper(), ""),
        ("00-" + "0" * 32 + CALLER[35:], ""),
        (CALLER[:36] + "0" * 16 + "-01", ""),
    ],
)
def test_a_traceparent_is_read_as_the_recommendation_says(header, name):
    assert spans.to_traceparent(header) == name
