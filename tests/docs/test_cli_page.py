"""docs/cli.md names every command with its options, every exit status, and what it says of JSON and completion holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from click import Command
from typer.core import TyperGroup

from rankmill.cli import app
from rankmill.exits import Exit

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
HEADING = re.compile(r"^### `rankmill (?P<words>[^`]+)`$", re.MULTILINE)
OF_A_SERVER = {"--server", "--url", "--api-key"}  # said once, for all
PRINT_NO_DATA = {  # or are no commands that find something
    *("up", "demo", "api", "scheduler", "worker", "deliverer", "migrate", "results", "keys revoke", "clients delete")
}


def commands(found: Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Command]]:
    if isinstance(found, TyperGroup):
        for name, command in found.commands.items():
            yield from commands(command, (*path, name))
    else:
        yield " ".join(path), found


COMMANDS = dict(commands(typer.main.get_command(app)))  # type: ignore[arg-type]


def sections() -> dict[str, str]:
    """The part of the page about each command."""
    found = {}
    headings = list(HEADING.finditer(PAGE))
    for heading, after in zip(headings, [*headings[1:], None], strict=True):
        name = " ".join(word for word in heading["words"].split() if not word.strip("[]").isupper())
        found[name] = PAGE[heading.end() : after.start() if after else len(PAGE)]
    return found


def options(command: Command) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {option for option in found if option.startswith("-")} - {"--help"}


def test_every_command_is_on_the_page_and_no_other() -> None:
    assert sorted(sections()) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_described_with_every_option(name: str) -> None:
    section, taken = sections()[name], options(COMMANDS[name])
    rows = re.findall(r"^\| ((?:`--?[\w-]+`(?:, )?)+) \|", section, re.MULTILINE)
    described = {option for row in rows for option in re.findall(r"`([^`]+)`", row)}
    assert described == taken - OF_A_SERVER
    assert ("[a server](#the-server)" in section) == (taken >= OF_A_SERVER)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints_can_be_had_as_json(name: str) -> None:
    assert ("--json" in options(COMMANDS[name])) == (name not in PRINT_NO_DATA)


def test_every_exit_status_is_on_the_page() -> None:
    rows = re.findall(r"^\| (\d) \| `(\w+)` \| .+ \|$", PAGE, re.MULTILINE)
    assert rows == [(str(int(status)), status.name) for status in Exit]


def completion(**variables: str) -> str:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", "rankmill"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_a_shell_is_printed(shell: str) -> None:
    assert "_RANKMILL_COMPLETE" in completion(_RANKMILL_COMPLETE=f"source_{shell}")


def test_commands_and_options_are_completed() -> None:
    ask = {"_RANKMILL_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "rankmill rer"}
    assert completion(**ask).split() == ["rerank"]
    ask |= {"COMP_CWORD": "2", "COMP_WORDS": "rankmill top --on"}
    assert completion(**ask).split() == ["--once"]
