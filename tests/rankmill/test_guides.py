"""The README and the guides, run as a reader would: every block of a page in one folder, in order, against a stack that runs.

Commands that start something (``rankmill up``, ``make``, ``pip``) are the fixtures' business. A ``text`` block behind
a block is what that prints; its words are compared, its numbers are not: they differ a little between chips.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rankmill.background import running_up
from rankmill.demo import model_file

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTS = re.compile(r"^(\.venv/bin/)?(rankmill up|make|pip) ?.*$", re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d,.e-]*")
SMALLER = {"1_000_000": "200"}
README = ROOT / "README.md"
WITH_A_REAL_MODEL = ("README", "first-ranking", "classify", "judge", "million-documents")
WITH_ANY_MODEL = ("team",)
NOT_RUN = ("throughput", "kubernetes")  # no block of theirs is a command against a stack


END = "== the end of a block =="
SHELL = ["bash", "-euo", "pipefail"]
PYTHON = [
    *(sys.executable, "-c"),
    f"import ast\nnames = {{}}\nwhile True:\n    exec(ast.literal_eval(input()), names)\n    print({END!r}, flush=True)",
]


@dataclass(frozen=True)
class Stack:
    url: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """That of a reader whose shell knows the commands, and whose stack has a port of its own."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RANKMILL_API_PORT": str(urlsplit(self.url).port),
            "RANKMILL_DATA_DIR": str(self.folder),
            "COLUMNS": "120",
        }


class Session:
    """A shell, or a Python, that is told block after block."""

    def __init__(self, command: list[str], stack: Stack, folder: Path) -> None:
        self._errors = folder.parent / f"{Path(command[0]).name}.errors"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=stack.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, block: str) -> str:
        """What the block prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        is_shell = self._process.args[0] == SHELL[0]
        self._process.stdin.write(f"{block}\necho '{END}'\n" if is_shell else f"{block!r}\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.rstrip().endswith(END):  # what was printed last may have no end of line
                return "".join([*printed, line.replace(END, "").rstrip()])
            printed.append(line)
        raise AssertionError(f"{block}\n{''.join(printed)}{self._errors.read_text()}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def real_stack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    with running_up(folder, model=str(model_file()), environment={"OMP_WAIT_POLICY": "PASSIVE"}) as (url, _):
        yield Stack(url, folder)


@pytest.fixture
def fake_stack(tmp_path):
    with running_up(tmp_path / "stack", model="fake") as (url, _):
        yield Stack(url, tmp_path / "stack")


def blocks_of(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    blocks = []
    for language, block in BLOCK.findall((README if page == "README" else GUIDES / f"{page}.md").read_text()):
        small = reduce(lambda text, pair: text.replace(*pair), SMALLER.items(), block)
        blocks.append((language, STARTS.sub("", small)))
    return blocks


def play(page: str, stack: Stack, folder: Path) -> None:
    """Run all of a page."""
    sessions = {"sh": Session(SHELL, stack, folder), "python": Session(PYTHON, stack, folder)}
    printed = ""
    try:
        for language, block in blocks_of(page):
            if language == "text":
                assert words(block) == words(printed), f"{page}.md shows\n{block}\nand it prints\n{printed}"
            else:
                printed = sessions[language].run(block.replace("http://127.0.0.1:8000", stack.url))
    finally:
        for session in sessions.values():
            session.close()


def words(text: str) -> list[str]:
    return NUMBER.sub("#", text).split()


@pytest.mark.parametrize("page", WITH_A_REAL_MODEL)
def test_a_guide_does_what_it_says_with_a_real_model(page, real_stack, tmp_path):
    folder = tmp_path / "reader"
    folder.mkdir()
    play(page, real_stack, folder)


@pytest.mark.parametrize("page", WITH_ANY_MODEL)
def test_a_guide_does_what_it_says(page, fake_stack, tmp_path):
    folder = tmp_path / "reader"
    folder.mkdir()
    play(page, fake_stack, folder)


def test_every_guide_is_run_or_says_why_not():
    assert {path.stem for path in GUIDES.glob("*.md")} == {*WITH_A_REAL_MODEL, *WITH_ANY_MODEL, *NOT_RUN} - {"README"}
