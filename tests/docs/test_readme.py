"""The commands that our pages tell people to type exist: make targets, `rankmill` commands and their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from click import Command
from typer.core import TyperGroup

from rankmill.cli import app

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/operations.md", "docs/architecture.md", "docs/api.md", "docs/client.md")
FENCE = re.compile(r"^```(?:sh|bash|console)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(?P<body>(?:make|rankmill) [^`\n]+)`")
COMMAND = re.compile(r"(?:^|[\s;&|(])(?:\.venv/bin/)?(?P<tool>make|rankmill) +(?P<rest>[^;&|)#\n]+)", re.MULTILINE)


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    text = (ROOT / page).read_text()
    for body in [
        *(match["body"] for match in FENCE.finditer(text)),
        *(match["body"] for match in INLINE.finditer(text)),
    ]:
        for match in COMMAND.finditer(body.replace("\\\n", " ")):
            yield match["tool"], match["rest"].split()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def rankmill_commands() -> dict[str, Command]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    named = {rest[0] for tool, rest in commands(page) if tool == "make"}
    assert named <= make_targets()


@pytest.mark.parametrize("page", PAGES)
def test_every_rankmill_command_that_a_page_names_exists_with_its_options(page: str) -> None:
    known = rankmill_commands()
    for tool, rest in commands(page):
        if tool == "rankmill":
            assert rest[0] in known, f"rankmill {rest[0]}"
            command = known[rest[0]]
            words = iter(rest[1:])
            while isinstance(command, TyperGroup) and (word := next(words, None)) is not None:
                assert word in command.commands, f"rankmill {' '.join(rest)}"
                command = command.commands[word]
            options = {option for parameter in command.params for option in (*parameter.opts, "--help")}
            named = {word.split("=")[0] for word in rest[1:] if word.startswith("-") and word != "-"}
            assert named <= options, f"rankmill {' '.join(rest)}"


def test_the_readme_names_commands() -> None:
    assert {tool for tool, _ in commands("README.md")} == {"make", "rankmill"}
