"""A form's fields (multipart/form-data, RFC 7578) from a stream of pieces, in memory that does not grow with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from core.errors import Refused

MAX_FIELDS = 32
MAX_HEADER_BYTES = 8_192
MAX_TEXT_BYTES = 4_096

_BOUNDARY = re.compile(r"""^multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))""", re.IGNORECASE)
_PARAMETER = re.compile(r"""[;\s](name|filename\*?)=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form. Its ``contents`` are there until the next one is asked for."""

    name: str
    filename: str | None
    contents: Iterator[bytes]

    def text(self) -> str:
        """The whole of a short field. Raises Refused for one that is long, or no text."""
        value = bytearray()
        for piece in self.contents:
            value += piece
            if len(value) > MAX_TEXT_BYTES:
                raise Refused("out_of_range", f"{self.name} has more than {MAX_TEXT_BYTES:,} bytes", field=self.name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Refused("wrong_type", f"{self.name} must be text in UTF-8", field=self.name) from None


def boundary_of(content_type: str) -> bytes:
    """What separates the fields. Raises Refused (415) for what is no form with files."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise Refused(
            "unsupported_media_type",
            f"Content-Type {content_type[:100]!r} is not supported; a file comes as multipart/form-data with a boundary",
            status=415,
            field="Content-Type",
        )
    return (found[1] or found[2]).encode("latin-1", "replace")


class Form:
    """Iterates over the fields. Raises Refused (400) where the body is no such form, or ends early."""

    def __init__(self, pieces: Iterable[bytes], boundary: bytes) -> None:
        self._pieces = iter(pieces)
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first delimiter may be the first thing there is

    def __iter__(self) -> Iterator[Field]:
        _skip(self._until(self._delimiter))
        for _ in range(MAX_FIELDS):
            if self._opens_no_field():
                return
            contents = self._until(self._delimiter)
            yield self._field(contents)
            _skip(contents)
        raise Refused("invalid_multipart", f"the form has more than {MAX_FIELDS} fields", status=400)

    def _opens_no_field(self) -> bool:
        """Whether the delimiter at hand was the last; else what follows it is a field's head."""
        while len(self._buffer) < len(b"--"):
            self._fill()
        if self._buffer.startswith(b"--"):
            _skip(self._pieces)  # what follows is to be ignored, and read, so that the connection can be used again
            return True
        return False

    def _field(self, contents: Iterator[bytes]) -> Field:
        head = bytearray()
        for piece in self._until(b"\r\n\r\n"):
            head += piece
            if len(head) > MAX_HEADER_BYTES:
                raise Refused("invalid_multipart", "a field of the form has too long a head", status=400)
        for line in head.decode("utf-8", "replace").split("\r\n"):
            key, _, value = line.partition(":")
            if key.strip().lower() == "content-disposition":
                found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(value)}
                if "name" in found:
                    return Field(_unescaped(found["name"]), _filename(found), contents)
        raise Refused("invalid_multipart", "a field of the form has no name", status=400)

    def _until(self, end: bytes) -> Iterator[bytes]:
        """What comes before ``end``, which is taken too."""
        keep = len(end) - 1  # may be its beginning
        while (at := self._buffer.find(end)) < 0:
            if len(self._buffer) > keep:
                piece = bytes(self._buffer[:-keep])
                del self._buffer[:-keep]
                yield piece
            self._fill()
        piece = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        if piece:
            yield piece

    def _fill(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise Refused("invalid_multipart", "the form ends before its last boundary", status=400)
        self._buffer += piece


def _filename(found: dict[str, str]) -> str | None:
    if "filename*" in found:
        return unquote(found["filename*"].rpartition("'")[2])
    return None if "filename" not in found else _unescaped(found["filename"])


def _unescaped(text: str) -> str:
    """As browsers and httpx escape a name: quotes and line ends by percent, or quotes by backslash."""
    return re.sub(r"\\(.)", r"\1", text).replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _skip(pieces: Iterator[bytes]) -> None:
    for _ in pieces:
        pass
