"""How a command ends: one clear line on standard error, and a status that scripts can rely on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn

import typer
from pydantic import ValidationError

from core.errors import Broken, NotReady, Refused
from core.settings import Settings


class Exit(IntEnum):
    """The exit statuses of every command."""

    OK = 0
    FAILED = 1  # the job did not complete, or something of ours broke
    USAGE = 2  # what was asked can't be done: an option, a file, a setting, or the server refused the request
    UNREACHABLE = 3  # the server is away


@contextmanager
def reported(*, hint: str = "") -> Iterator[None]:
    """Turn errors into their line and status. ``hint`` follows where the server can't be reached."""
    try:
        yield
    except Refused as error:
        _end(Exit.USAGE, sentence(error))
    except NotReady as error:
        _end(Exit.UNREACHABLE, f"{error}. {hint}" if hint else str(error))
    except Broken as error:
        _end(Exit.FAILED, str(error))
    except KeyboardInterrupt:
        _end(Exit.FAILED, "interrupted")
    except BrokenPipeError:  # whoever read our output has enough
        sys.stderr.close()
        raise SystemExit(Exit.FAILED) from None


def sentence(error: Refused) -> str:
    """What was refused, why, and where the fault lies."""
    places = [f"{name} {value}" for name, value in (("line", error.line), ("item", error.item)) if value is not None]
    where = f" ({', '.join(places)})" if places else ""
    return f"{error.detail}{where} [{error.code}]"


def settings_from(**values: Any) -> Settings:
    """The settings of this process; ``values`` that are not None stand before the environment."""
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        faults = [f"RANKMILL_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors()]
        _end(Exit.USAGE, "; ".join(faults))


def _end(status: Exit, message: str) -> NoReturn:
    typer.echo(f"rankmill: {message}", err=True)
    raise typer.Exit(status)
