"""JSON, strictly: UTF-8, no repeated keys, no NaN, and a place in the text for every fault.

Lone surrogates are let through: the checks on texts refuse them with the field that holds them.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from core.errors import Refused


def parse(body: bytes) -> Any:
    """The value that a JSON text stands for. Raises Refused (400) with the position of the fault."""
    try:
        return _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise _invalid(
            f"{error.msg} at character {error.pos} (line {error.lineno}, column {error.colno})", line=error.lineno
        ) from None
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except ValueError as error:  # int() refuses to read thousands of digits
        raise _invalid(f"it holds a number that is too long: {error}") from None


def _invalid(fault: str, *, line: int | None = None) -> Refused:
    return Refused("invalid_json", f"the body is not valid JSON: {fault}", status=400, line=line)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = [key for key, _ in pairs]
    repeated = next(key for key in keys if keys.count(key) > 1)
    raise Refused(
        "duplicate_key", f"the key {repeated!r} appears more than once in one object", status=400, field=repeated
    )


def _no_constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
