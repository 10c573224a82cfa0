"""One line of a batch's file: what makes it one, whatever its body asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api import strict_json, texts
from api.problems import printable
from core.errors import Refused

MAX_ID_CHARACTERS = 512
MAX_MESSAGE_CHARACTERS = 500
_FIELDS = {"custom_id": str, "method": str, "url": str, "body": dict}
_KINDS = {str: "text", dict: "an object"}


class LineFault(Exception):  # noqa: N818 - what is wrong with a file, and no error of ours
    """Why a line is none of a batch's. One such line fails the batch; ``code`` is one of docs/batches.md."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def to_error(self, line: int | None) -> dict[str, Any]:
        """As a batch shows it."""
        message = printable(self.message)[:MAX_MESSAGE_CHARACTERS].replace("\0", "\\0")
        param = None if self.param is None else printable(self.param).replace("\0", "\\0")
        return {"code": self.code, "line": line, "message": message, "param": param}


@dataclass(frozen=True, slots=True)
class AskedLine:
    """A line that is one: its own id, and the body for the route."""

    custom_id: str
    body: dict[str, Any]


def read(data: bytes, endpoint: str) -> AskedLine:
    """The line. Raises LineFault."""
    try:
        value = strict_json.parse(data.rstrip(b"\r"))
    except Refused as error:
        message = error.detail.replace("the body", "the line")
        raise LineFault("invalid_json_line", message, error.field) from None
    if not isinstance(value, dict):
        raise LineFault("invalid_json_line", "the line is not a JSON object")
    for name, kind in _FIELDS.items():
        if value.get(name) is None:
            raise LineFault("missing_required_parameter", f"{name} is required", name)
        if not isinstance(value[name], kind):
            raise LineFault("invalid_type", f"{name} must be {_KINDS[kind]}", name)
    if unknown := value.keys() - _FIELDS.keys():
        name = min(unknown)
        raise LineFault("unknown_parameter", f"there is no {name!r} in a line; there are: {', '.join(_FIELDS)}", name)
    _check_id(value["custom_id"])
    if value["method"] != "POST":
        raise LineFault("invalid_method", f"method must be 'POST', not {value['method']!r}", "method")
    if value["url"] != endpoint:
        message = f"expected the url {endpoint!r}, which is the batch's endpoint, and got {value['url']!r}"
        raise LineFault("url_mismatch", message, "url")
    return AskedLine(value["custom_id"], value["body"])


def _check_id(custom_id: str) -> None:
    if not 1 <= len(custom_id) <= MAX_ID_CHARACTERS:
        message = f"custom_id has {len(custom_id):,} characters; 1 to {MAX_ID_CHARACTERS} are possible"
        raise LineFault("invalid_custom_id", message, "custom_id")
    try:
        texts.check(custom_id, "custom_id")
    except Refused as error:
        raise LineFault("invalid_custom_id", error.detail, "custom_id") from None
