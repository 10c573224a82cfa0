"""How a command ends: one clear line on standard error, and a status that scripts can rely on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from http import HTTPStatus
from typing import Any, NoReturn

import typer
from pydantic import ValidationError

from core.errors import Broken, NotCompleted, NotReady, Refused
from core.settings import Settings


class Exit(IntEnum):
    """The exit statuses of every command. ``docs/cli.md`` has the same table; a test compares them."""

    OK = 0
    FAILED = 1  # something of ours broke, or the command was interrupted
    USAGE = 2  # what was asked can't be done: an option, a file, a setting, or the server refused the request
    UNREACHABLE = 3  # the server, or what it needs, is away or too busy: the same command may work later
    NOT_COMPLETED = 4  # the job that was waited for failed, expired or was cancelled
    ITEMS_FAILED = 5  # the job completed, but some of its items have no score, and --strict was given


@contextmanager
def reported(*, hint: str = "") -> Iterator[None]:
    """Turn errors into their line and status. ``hint`` follows where the server can't be reached."""
    try:
        yield
    except Refused as error:
        is_busy = error.status == HTTPStatus.TOO_MANY_REQUESTS
        _end(Exit.UNREACHABLE if is_busy else Exit.USAGE, sentence(error) + _remedy(error))
    except NotReady as error:
        _end(Exit.UNREACHABLE, f"{error}. {hint}" if hint else str(error))
    except NotCompleted as error:
        _end(Exit.NOT_COMPLETED, str(error))
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


def _remedy(error: Refused) -> str:
    """What the caller can do, where it is always the same."""
    match error.status:
        case HTTPStatus.UNAUTHORIZED:
            return ": set RANKMILL_API_KEY to a key; `rankmill keys create` makes one where Postgres is"
        case HTTPStatus.FORBIDDEN:
            return ": an admin's key may (`rankmill keys create --admin`)"
        case HTTPStatus.TOO_MANY_REQUESTS if error.retry_after_seconds:
            return f": try again in {error.retry_after_seconds} s"
        case _:
            return ""


def _end(status: Exit, message: str) -> NoReturn:
    typer.echo(f"rankmill: {message}", err=True)
    raise typer.Exit(status)
