from __future__ import annotations

import io

import pytest
from rich.console import Console

from core.jobs import Counts, Usage
from rankmill.backoff import Backoff
from rankmill.downloads import Downloaded
from rankmill.items import ItemFile
from rankmill.job_progress import BEAT_SECONDS, Lines, Step, download_step, job_step, shown, upload_step
from rankmill.replies import Job, Progress
from rankmill.upload import Upload


def job(status, pending, progress):
    return Job(
        id="j",
        status=status,
        model="m",
        counts=Counts(1_000, pending, 1_000 - pending, 0, 0),
        progress=progress,
        usage=Usage(0, 0),
    )


def test_an_upload_tells_its_items_its_bytes_and_its_pace(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text("item\n" * 2_000)
    upload = Upload({}, ItemFile(path))
    list(upload.pieces())
    assert upload_step(upload, 2.0) == Step("uploading", 1.0, "2,000 items, 10.0 kB of 10.0 kB, 1,000 items/s")
    endless = Upload({}, iter(["a"]))
    assert upload_step(endless, 1.0).share is None


@pytest.mark.parametrize(
    ("status", "progress", "step"),
    [
        ("running", Progress(0.4, 250.0, 2.4), Step("scoring", 0.4, "400 of 1,000 items, 250 items/s, 2.4 s left")),
        ("queued", Progress(0.4, None, None, 3), Step("queued", 0.4, "400 of 1,000 items, 3 jobs before it")),
        ("completed", Progress(0.4, 250.0, 0.0), Step("completed", 0.4, "400 of 1,000 items, 250 items/s")),
    ],
)
def test_a_job_tells_what_the_server_knows(status, progress, step):
    assert job_step(job(status, 600, progress)) == step


def test_a_download_tells_its_share_where_results_can_be_counted():
    assert download_step(Downloaded(2_500_000, 499), 1_000, 0.5) == Step("downloading", 0.5, "2.5 MB, 1,000 items/s")
    assert download_step(Downloaded(999, None), 1_000, 0.5) == Step("downloading", None, "999 B")


def test_a_log_gets_a_line_a_beat():
    now, out = 0.0, io.StringIO()
    lines = Lines(Console(file=out), lambda: now)
    for number in range(100):
        now = number * BEAT_SECONDS / 10
        lines(Step("scoring", number / 100, f"[{number}]"))
    assert out.getvalue().splitlines()[:2] == ["scoring: 10%, [10]", "scoring: 20%, [20]"]
    assert len(out.getvalue().splitlines()) == 9


def test_a_terminal_gets_a_bar_and_quiet_gets_nothing():
    for is_quiet, is_written in ((False, True), (True, False)):
        out = io.StringIO()
        with shown(is_quiet=is_quiet, console=Console(file=out, force_terminal=True, width=100)) as show:
            show(Step("scoring", 0.5, "some figures"))
        assert ("some figures" in out.getvalue()) == is_written


def test_pauses_double_up_to_a_bound_and_end_with_the_patience():
    backoff, pauses = Backoff(patience_seconds=100), []
    while (pause := backoff.pause()) is not None:
        pauses.append(pause)
    for number, pause in enumerate(pauses):
        longest = min(0.25 * 2**number, 20)
        assert longest / 2 <= pause <= longest
    assert 60 < sum(pauses) <= 100
    backoff.reset()
    assert backoff.pause() is not None


def test_what_a_server_asks_for_is_never_cut_short():
    assert Backoff().pause(7) == 7
    assert Backoff().pause(61) is None
    assert Backoff(patience_seconds=0).pause() is None
