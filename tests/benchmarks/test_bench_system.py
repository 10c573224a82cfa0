"""A slice of the benchmark of the whole system, with models that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = str(ROOT / "benchmarks" / "bench_system.py")
SMALL = ["--items", "600", "--alone-items", "600", "--million", "1200", "--beside-items", "4000", "--posts", "5"]
PARTS = ("alone token ids", "alone texts", "tokens", "texts", "idle", "beside", "million")


def rows_of(folder, *arguments):
    command = [sys.executable, BENCHMARK, *SMALL, *arguments, "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-8_000:]
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return {row["part"]: row for row in rows}


@pytest.mark.faults  # minutes on a busy machine
def test_every_part_prints_its_row(tmp_path):
    rows = rows_of(tmp_path, "--engine", "fake")
    assert rows["finished"]["failures"] == 0
    assert set(PARTS) <= set(rows)
    for part in ("alone token ids", "tokens", "texts", "million"):
        assert 0 < rows[part]["busy_share"] <= 1
        assert isinstance(rows[part]["idle_shares"], dict), rows[part]["idle_shares"]
        assert rows[part]["items_per_second"] > 0
    for part, items in (("tokens", 600), ("texts", 600), ("million", 1_200)):
        assert rows[part]["is_complete"]
        assert rows[part]["items"] == rows[part]["results_read"] == items
        assert {"claim", "tokenise", "wait", "save"} <= set(rows[part]["stage_ms"])
    assert "end" in rows["million"]["stage_ms"], "a job of several chunks; of one chunk, the save is the end"
    for part in ("idle", "beside"):
        assert 0 < rows[part]["p50_ms"] <= rows[part]["p95_ms"]
        assert {"to claim", "claim", "wait", "save", "to answer"} <= set(rows[part]["stage_ms"])
    assert rows["alone token ids"]["tokens_per_item"] == pytest.approx(rows["tokens"]["tokens_per_item"], rel=0.01)
    assert rows["alone texts"]["tokens_per_item"] == pytest.approx(rows["texts"]["tokens_per_item"], rel=0.01)
    unknown = [(part, name) for part, row in rows.items() for name, value in row.items() if "unknown" in str(value)]
    assert unknown == []
    assert (tmp_path / "timeline-tokens.svg").read_text().startswith("<svg")


@pytest.mark.faults
def test_a_model_with_weights_is_made_and_served(tmp_path):
    pytest.importorskip("torch")
    rows = rows_of(tmp_path, "--engine", "tiny", "--parts", "alone,tokens")
    assert rows["finished"]["failures"] == 0
    assert rows["tokens"]["items"] == 600
    assert rows["engine ready"]["layout"] == "padded"


@pytest.mark.faults
def test_a_part_for_which_no_time_is_left_is_skipped_and_what_was_measured_stays(tmp_path):
    rows = rows_of(tmp_path, "--engine", "fake", "--parts", "alone,tokens", "--budget-seconds", "0.1")
    assert rows["tokens"]["skipped"]
