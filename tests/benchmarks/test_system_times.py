"""Notes of a run by hand: the lasting rate, the device's share, and what each of its gaps waited for."""

from __future__ import annotations

import json

import pytest

from benchmarks import system_times
from benchmarks.system_times import NO_CHUNK, Span, Window, WorkerTimes


def batch(number, begin, end, *, prepare, launch, items=100):
    facts = {"number": number, "items": items, "tokens": 1_000, "prepare": prepare, "launch": launch}
    return Span("batch", prepare[0], end, 9, facts | {"device": [begin, end]})


def worker(batches, **spans):
    noted = {kind: [Span(kind, *times, 1, {}) for times in own] for kind, own in spans.items()}
    return WorkerTimes(noted, batches)


@pytest.fixture
def two_batches():
    """The first runs from 0 to 10, the second from 16 to 20: it was sent at 13 and launched at 15."""
    first = batch(0, 0, 10, prepare=[-2, -1], launch=[-1, 0])
    second = batch(1, 16, 20, prepare=[13.5, 14.5], launch=[15, 15.5])
    return worker([first, second], send=[(-3, -2.5), (13, 13.2)], save=[(9, 11)], tokenise=[(10.5, 12)])


def test_a_gap_is_cut_by_what_its_batch_waited_for(two_batches):
    assert list(system_times.gaps(two_batches, Window(0, 20))) == [
        (10, 10.5, "chunks are saved"),
        (10.5, 11, "chunks are tokenised"),
        (11, 12, "chunks are tokenised"),
        (12, 13, NO_CHUNK),
        (13, 13.5, "pipe to the engine"),
        (13.5, 14.5, "engine prepares"),
        (14.5, 15, "engine's launches before it"),
        (15, 16, "engine launches"),
    ]


def test_busy_and_idle_shares_sum_to_one(two_batches):
    window = Window(2, 18)
    idle = system_times.idle_by_cause([two_batches], window)
    assert sum(idle.values()) + system_times.busy_share([two_batches], window) == pytest.approx(1)
    assert next(iter(idle)) == "chunks are tokenised"


def test_batches_that_overlap_are_busy_once():
    overlapping = worker(
        [batch(0, 0, 10, prepare=[0, 0], launch=[0, 0]), batch(1, 5, 12, prepare=[0, 0], launch=[0, 0])],
        send=[(0, 0), (0, 0)],
    )
    assert system_times.busy_share([overlapping], Window(0, 24)) == 0.5
    assert list(system_times.gaps(overlapping, Window(0, 12))) == []


def test_a_busy_share_is_the_mean_over_devices(two_batches):
    idle = worker([])
    assert system_times.busy_share([two_batches, idle], Window(0, 10)) == 0.5


def test_batches_that_nobody_sent_are_no_ground_for_blame(two_batches):
    lost = WorkerTimes({"send": []}, two_batches.batches)
    with pytest.raises(ValueError, match="0 batches were sent; the engine numbered 2"):
        list(system_times.gaps(lost, Window(0, 20)))


def test_the_steady_rate_leaves_out_beginning_and_end():
    slow_start = [(5.0, 10), *((10.0 + second, 100) for second in range(10)), (60.0, 10)]
    window, rate = system_times.steady(slow_start, Window(0, 100))
    assert rate == pytest.approx(100)
    assert window.begin >= 10
    assert window.end <= 19


@pytest.mark.parametrize("points", [[(1.0, 50)], [(1.0, 5), (2.0, 20), (3.0, 25)]], ids=["none", "one"])
def test_too_few_points_have_no_middle(points):
    assert system_times.steady(points, Window(0, 10)) == (Window(0, 10), 5.0)


def test_each_chunk_keeps_the_stages_of_its_thread():
    def span(kind, begin, thread, **facts):
        return Span(kind, begin, begin + 0.5, thread, facts)

    noted = WorkerTimes(
        {
            "claim": [
                span("claim", 0, 1, small=False),
                span("claim", 1, 2, small=True),
                span("claim", 9, 1, small=False),
            ],
            "wait": [span("wait", 2, 2), span("wait", 3, 1)],
            "save": [span("save", 4, 1), span("save", 5, 2)],
        },
        [],
    )
    (bulk,) = system_times.chunks([noted], Window(0, 8), small=False)
    assert {kind: stage.begin for kind, stage in bulk.items()} == {"claim": 0, "wait": 3, "save": 4}
    (small,) = system_times.chunks([noted], Window(0, 8), small=True)
    assert small["save"].begin == 5
    assert system_times.stage_milliseconds([bulk]) == {"claim": 500, "wait": 500, "save": 500}


def test_a_line_that_is_still_being_written_is_not_read(tmp_path):
    whole = json.dumps(["send", 0, 1, 7, {}])
    (tmp_path / "worker-0-11.jsonl").write_text(f"{whole}\n{whole[:9]}")
    (tmp_path / "engine-1-12.jsonl").write_text(json.dumps(batch(0, 0, 1, prepare=[0, 0], launch=[0, 0])) + "\n")
    first, second = system_times.read(tmp_path)
    assert len(first.of("send")) == 1
    assert len(second.batches) == 1
