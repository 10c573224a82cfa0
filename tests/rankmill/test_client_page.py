"""Everything that docs/client.md shows runs, in its order."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zstandard

from rankmill import Client

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
ADDRESS = "http://127.0.0.1:8000"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f'{{"text": "item {number}"}}\n' for number in range(3_000))
    Path("items.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    Path("items.csv.gz").write_bytes(gzip.compress(b"id,text\na,first\nb,second\n"))
    Path("items.txt").write_text("first\nsecond\n")
    return tmp_path


def test_the_python_of_the_page_runs(server_url, files, capsys):
    names = {"__name__": "page"}
    for block in blocks("python"):
        exec(block.replace(ADDRESS, server_url), names)
    names["client"].close()
    printed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in printed[:3]} == {"0", "1", "2"}
    assert printed[3].startswith("completed 100000 ")
    assert printed[4].startswith("0 ")
    assert printed[-1] == "invalid_lines 1 100"
    assert len((files / "scores.csv").read_text().splitlines()) == 100_001
    assert (files / "scores.parquet").read_bytes().endswith(b"PAR1")


def test_the_shell_of_the_page_runs(server_url, files):
    with Client(server_url) as client:
        job = client.wait(client.submit(items=["a"]).id)
    environment = {
        **os.environ,
        "RANKMILL_API_PORT": str(urlsplit(server_url).port),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for block in blocks("sh"):
        done = subprocess.run(
            ["sh", "-e", "-c", block.replace("JOB", job.id)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (files / "scores.csv").read_text().startswith("index,id,score")
