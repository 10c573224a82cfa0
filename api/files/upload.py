"""Receiving a file: its form is read by a thread as it arrives, and what lies in Postgres is whole or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import structlog
from starlette.requests import Request

from api import encodings, texts
from api.files import expiry
from api.files.multipart import Field, Form, boundary_of
from api.ingest.blocks import Blocks
from api.ingest.opening import opened
from api.process import Process
from core.errors import NotReady, RankmillError, Refused
from store import files
from store.files import PIECE_BYTES, File

MAX_FILENAME_CHARACTERS = 512
FORM_BYTES = 65_536  # of a form besides its file
BUSY_RETRY_SECONDS = 5
_EXPIRY = ("expires_after[anchor]", "expires_after[seconds]")

log = structlog.get_logger()


async def receive(process: Process, request: Request, client_id: UUID) -> File:
    """The file, stored. Raises Refused, with nothing left of it."""
    encoding = encodings.check(request.headers.get("content-encoding", ""))
    boundary = boundary_of(request.headers.get("content-type", ""))
    max_bytes = process.settings.max_file_bytes
    if int(request.headers.get("content-length", 0)) > max_bytes + FORM_BYTES:  # the server has checked the number
        raise too_large(max_bytes)
    if process.uploads.locked():
        detail = f"this server reads {process.settings.max_uploads} uploads already"
        raise Refused("too_many_uploads", detail, status=503, retry_after_seconds=BUSY_RETRY_SECONDS)
    async with process.uploads:
        loop = asyncio.get_running_loop()
        blocks = Blocks(loop)
        pieces = opened(
            blocks, "gzip" if encoding == "x-gzip" else encoding, max_bytes=max_bytes + FORM_BYTES + len(boundary)
        )
        upload = Upload(process, client_id, Form(pieces, boundary))
        timeout_seconds = process.settings.receiving_timeout_seconds
        feeder = asyncio.create_task(blocks.feed(request, timeout_seconds=timeout_seconds))
        watcher = asyncio.create_task(_close_when_stopping(process, blocks))
        try:
            return await asyncio.shield(loop.run_in_executor(process.threads, upload.run))
        except asyncio.CancelledError:
            blocks.close(NotReady("this server stops"))  # the thread cleans up by itself
            raise
        except Refused:
            request.state.breaks_off = not blocks.has_ended
            raise
        finally:
            watcher.cancel()
            feeder.cancel()


def too_large(max_bytes: int) -> Refused:
    """The refusal of a file that is larger than it may be."""
    detail = f"the file is larger than {max_bytes:,} bytes (RANKMILL_MAX_FILE_BYTES); send it as several"
    return Refused("file_too_large", detail, status=413, field="file")


class Upload:
    """One file as the thread that reads it sees it."""

    def __init__(self, process: Process, client_id: UUID, form: Form) -> None:
        self._process = process
        self._client_id = client_id
        self._form = form
        self._texts: dict[str, str] = {}
        self._filename: str | None = None
        self._num_bytes = 0

    def run(self) -> File:
        """Read the form and store its file."""
        database = self._process.database
        refusal = self._process.admission.disk_refusal()
        if refusal is not None:
            raise refusal
        with database.begin() as connection:
            file_id = files.new_id(connection)
        try:
            return self._read(file_id)
        except BaseException:
            with suppress(RankmillError), database.begin() as connection:  # else the sweep finds the pieces a day later
                files.discard(connection, file_id)
            raise

    def _read(self, file_id: UUID) -> File:
        for field in self._form:
            if field.name == "file":
                self._take(file_id, field)
            elif field.name == "purpose" or field.name in _EXPIRY:
                self._texts[field.name] = field.text()
            else:
                detail = f"there is no field {field.name!r}; there are: file, purpose, expires_after"
                raise Refused("unknown_field", detail, field=field.name)
        expires_in_seconds = self._check()
        with self._process.database.begin() as connection:
            return files.store(
                connection,
                {
                    "id": file_id,
                    "client_id": self._client_id,
                    "purpose": "batch",
                    "filename": self._filename,
                    "num_bytes": self._num_bytes,
                    "expires_in_seconds": expires_in_seconds,
                },
            )

    def _take(self, file_id: UUID, field: Field) -> None:
        if self._filename is not None:
            raise Refused("conflicting_fields", "the form has two files: send them one by one", field="file")
        self._filename = field.filename or "upload"
        for piece_no, piece in enumerate(_equal_pieces(field.contents)):
            self._num_bytes += len(piece)
            if self._num_bytes > self._process.settings.max_file_bytes:
                raise too_large(self._process.settings.max_file_bytes)
            with self._process.database.begin() as connection:
                files.add_piece(connection, file_id, piece_no, piece_no * PIECE_BYTES, piece)

    def _check(self) -> int:
        """What the form says beside its file; in how many seconds the file expires."""
        if self._filename is None:
            raise Refused("missing_field", "file is required", field="file")
        texts.check(self._filename, "file")
        if len(self._filename) > MAX_FILENAME_CHARACTERS:
            detail = f"the file's name has {len(self._filename):,} characters; {MAX_FILENAME_CHARACTERS} are possible"
            raise Refused("out_of_range", detail, field="file")
        purpose = self._texts.get("purpose")
        if purpose is None:
            raise Refused("missing_field", "purpose is required", field="purpose")
        if purpose != "batch":
            raise Refused("invalid_purpose", f"purpose must be 'batch', not {purpose[:64]!r}", field="purpose")
        if not self._num_bytes:
            raise Refused("empty_file", "the file is empty", status=400, field="file")
        kept = self._process.settings.retention_days * expiry.DAY_SECONDS
        anchor, seconds = (self._texts.get(name) for name in _EXPIRY)
        if anchor is None and seconds is None:
            return kept
        return min(expiry.check(anchor, seconds, "expires_after"), kept)


def _equal_pieces(contents: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of the same size, but for the last."""
    joined = bytearray()
    for piece in contents:
        joined += piece
        while len(joined) >= PIECE_BYTES:
            yield bytes(joined[:PIECE_BYTES])
            del joined[:PIECE_BYTES]
    if joined:
        yield bytes(joined)


async def _close_when_stopping(process: Process, blocks: Blocks) -> None:
    stopping = asyncio.Event()
    process.waiting.add(stopping)
    try:
        await stopping.wait()
        blocks.close(NotReady("this server stops"))
    finally:
        process.waiting.discard(stopping)
