"""The room that a job takes while its chunks arrive: asked for at each commit, for nobody knows its size before."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from api.admission import Admission
from core.admission import NOTHING, load_of
from core.chunks import NewChunk
from core.jobs import NewJob
from store import uploads
from store.database import Database


class Room:
    """One job's. What breaks off in the middle is counted as queued for a second more."""

    def __init__(self, admission: Admission, job: NewJob) -> None:
        self._admission = admission
        self._client_id, self._model = job.client_id, job.parameters.model
        self._arrived = NOTHING

    def check(self) -> None:
        """Raises Refused where not even the beginning has room."""
        self._admission.admit(self._client_id, self._model, NOTHING)

    def append(self, database: Database, job_id: UUID, chunks: Sequence[NewChunk]) -> None:
        """Commit chunks of the job. Raises Refused, with nothing of them stored, where there is no room for them."""
        new = load_of(chunks)
        self._admission.admit(self._client_id, self._model, new, arrived=self._arrived)
        self._arrived += new
        uploads.append(database, job_id, chunks)
