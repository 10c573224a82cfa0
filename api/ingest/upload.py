"""One upload as the thread that reads it sees it: the job's object, then its items, then the end or the break."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from api import faults, idempotency, strict_json
from api.dry_runs import DryRun, DryRunAnswer
from api.idempotency import Hashed
from api.ingest.blocks import Blocks
from api.ingest.item_ids import ItemIds
from api.ingest.line_errors import LineErrors
from api.ingest.lines import Lines
from api.ingest.opening import opened
from api.ingest.parsing import relative
from api.ingest.query_numbers import QueryNumbers
from api.ingest.reading import LineReader
from api.ingest.room import Room
from api.ingest.storing import store
from api.process import Process
from api.requests import JobRequest
from api.submissions import Limits, Opening, to_opening
from api.submit import choose_reader
from core import chunks
from core.chunks import NewChunk
from core.errors import RankmillError, Refused
from core.jobs import Job, NewJob
from store import metrics, uploads
from store.idempotency import Claim

LINE_FACTOR = 4  # bytes of a line for each that an item may have: escapes, ids, a query
NO_ROOM = (429, 503)
_CUT = ("body_incomplete", "upload_incomplete")
_NOTHING_STORED = ("invalid_lines", "no_items")

log = structlog.get_logger()


class Upload:
    """``job`` is set once the job's object was read and stored."""

    def __init__(
        self, process: Process, client_id: UUID, blocks: Blocks, encoding: str, claim: Claim | None = None
    ) -> None:
        settings = process.settings
        self._process = process
        self._client_id = client_id
        self._max_items = settings.max_items
        self._claim = claim
        pieces: Iterable[bytes] = opened(blocks, encoding, max_bytes=settings.max_upload_bytes)
        self._hashed = Hashed(pieces if claim is not None else ())
        self._lines = Lines(
            pieces if claim is None else self._hashed, max_line_bytes=LINE_FACTOR * settings.max_item_bytes + 65_536
        )
        self.job: Job | None = None

    def run(self) -> Job | DryRunAnswer:
        """The job, queued now or by the same body before. Raises what broke it off; the job has failed, or is gone, by then."""
        return idempotency.once(self._process.database, self._claim, self._hashed.digest, self._read)

    def touch(self) -> None:
        """Say in the ledger that bytes still arrive."""
        if self.job is not None:
            with self._process.database.begin() as connection:
                uploads.touch(connection, self.job.id)

    def _read(self) -> Job | DryRunAnswer:
        lines = iter(self._lines)
        with ItemIds() as ids:
            opening, request = self._open(next(lines, b""), ids)
            reader = LineReader(opening.items, ids, max_items=self._max_items, is_skipping=request.on_invalid == "skip")
            numbered = ((self._lines.number, line) for line in lines)
            cut = chunks.cut(reader.read_all(numbered), query_bytes=opening.query_bytes)
            if request.dry_run:
                dry_run = DryRun(opening.job, opening.reader)
                dry_run.add(cut)
                return dry_run.answer(self._process, self._client_id, warnings=reader.errors.warnings())
            return self._store(opening.job, cut, reader.errors)

    def _store(self, new: NewJob, cut: Iterable[NewChunk], errors: LineErrors) -> Job:
        process, room = self._process, Room(self._process.admission, new)
        room.check()
        with process.database.begin("api.upload_begin") as connection:
            self.job = uploads.begin(connection, new, claim=self._claim)
        try:
            store(cut, partial(room.append, process.database, self.job.id))
            with process.database.begin("api.upload_end") as connection:
                body_sha256 = None if self._claim is None else self._hashed.digest()
                return uploads.finish(connection, self.job.id, warnings=errors.warnings(), body_sha256=body_sha256)
        except BaseException as error:
            self._break_off(self.job, error)
            raise

    def _open(self, line: bytes, ids: ItemIds) -> tuple[Opening, JobRequest]:
        """What the first line asks for. Raises Refused with its number."""
        try:
            request = _to_request(strict_json.parse(line))
            opening = to_opening(
                request,
                reader=choose_reader(self._process, request.model),
                client_id=self._client_id,
                limits=Limits.of(self._process.settings),
                ids=ids,
                queries=QueryNumbers(),
            )
        except Refused as error:
            located = relative(error, 0)
            located.line = self._lines.number or 1
            raise located from None
        return opening, request

    def _break_off(self, job: Job, error: BaseException) -> None:
        """Leave nothing of a body that is refused, and a failed job of one that broke."""
        code = error.code if isinstance(error, Refused) else "not_ready"
        reason = "cut" if code in _CUT else "refused" if isinstance(error, Refused) else "ours"
        metrics.UPLOADS_BROKEN.labels(reason).inc()
        log.info("an upload broke off", job_id=str(job.id), reason=reason, code=code)
        if isinstance(error, Refused) and error.status in NO_ROOM:
            error.line = max(self._lines.number, 1)
        try:
            with self._process.database.begin("api.upload_break") as connection:
                if code in _NOTHING_STORED:
                    uploads.discard(connection, job.id)
                else:
                    uploads.fail(connection, job.id, self._reason(code, error))
        except RankmillError as trouble:  # the sweep of silent uploads will fail it
            log.warning("a broken upload was not failed", job_id=str(job.id), reason=str(trouble))

    def _reason(self, cause: str, error: BaseException) -> dict[str, Any]:
        detail = error.detail if isinstance(error, Refused) else "a part of ours was away, or broke"
        return {"code": "upload_incomplete", "detail": detail, "line": max(self._lines.number, 1), "cause": cause}


def _to_request(value: Any) -> JobRequest:
    """The job in a parsed line, with no item yet."""
    if not isinstance(value, dict):
        return faults.to_request(value, JobRequest)
    if "items" in value:
        raise Refused("unknown_field", "items stand in the lines after the first, each in its own", field="items")
    return faults.to_request({**value, "items": []}, JobRequest)
