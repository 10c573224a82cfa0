"""Whether there is room for a new job, by measures that are kept for a moment. Any thread may ask.

Nothing is measured while nobody asks. Between two measures what this front end takes is added to the last one; what its
siblings take in that second is not seen, so that a limit may be passed by what they take in it.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from uuid import UUID

import redis
import structlog
from redis import Redis

from api.kept import Kept
from core import admission
from core.admission import NOTHING, Backlog, Excess, Limits, Load, OwnLimits
from core.errors import Broken, Refused
from core.settings import Settings
from store import backlog, rates
from store.database import Database

BACKLOG_SECONDS = 1
REDIS_SECONDS = 2
DISK_SECONDS = 5

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Queued:
    """What is queued, and the limits of clients' own."""

    backlog: Backlog
    own_limits: dict[UUID, OwnLimits]


class Admission:
    """The rules of ``core.admission`` over this process' measures."""

    def __init__(self, settings: Settings, database: Database, client: Redis) -> None:
        if settings.ledger_dir and not Path(settings.ledger_dir).is_dir():
            raise Broken(f"RANKMILL_LEDGER_DIR is no folder of this machine: {settings.ledger_dir}")
        self._settings = settings
        self._database = database
        self._redis = client
        self._lock = Lock()  # of what is queued: looked at and added to in one step
        self._queued = Kept(self._measure, BACKLOG_SECONDS)
        self._redis_memory = Kept(self._look_at_redis, REDIS_SECONDS)
        self._database_bytes = Kept(self._look_at_database, DISK_SECONDS)
        self._free_bytes = Kept(self._look_at_disk, DISK_SECONDS)

    def admit(self, client_id: UUID, model: str, new: Load, *, arrived: Load | None = None) -> None:
        """Count the new load of a job as queued. Raises Refused where there is no room for it, and counts nothing then.

        ``arrived`` is what was admitted of a job that has begun: that one fills the disk, but not Redis, and is open.
        """
        refusal = self.disk_refusal() if arrived is not None else self._redis_refusal() or self.disk_refusal()
        if refusal is not None:
            raise refusal
        with self._lock:
            own = self._own(client_id)
            if arrived is None and (refusal := own.refusal()) is not None:
                raise refusal
            excess = self._excess(client_id, new, arrived or NOTHING)
            if excess is None:
                queued = self._queued.get()
                limits = {**queued.own_limits, client_id: own.with_another()} if arrived is None else queued.own_limits
                self._queued.put(Queued(queued.backlog.plus(model, client_id, new), limits))
                return
        raise self._refusal_of(excess, client_id)

    def refusal(self, client_id: UUID, new: Load) -> Refused | None:
        """Why a job would not be taken now. Counts nothing."""
        if (refusal := self._redis_refusal() or self.disk_refusal()) is not None:
            return refusal
        with self._lock:
            if (refusal := self._own(client_id).refusal()) is not None:
                return refusal
            excess = self._excess(client_id, new, NOTHING)
        return None if excess is None else self._refusal_of(excess, client_id)

    def disk_refusal(self) -> Refused | None:
        """Why nothing more is stored, of anybody."""
        settings = self._settings
        return admission.database_refusal(
            self._database_bytes.get(), settings.max_database_bytes
        ) or admission.disk_refusal(self._free_bytes.get(), settings.min_free_disk_bytes)

    def num_tokens_ahead(self, model: str) -> int:
        """What is queued for the model."""
        with self._lock:
            return self._queued.get().backlog.of_model(model).num_tokens

    def tokens_per_second(self, model: str) -> float | None:
        """The rate that the model's workers report now; None where they report none."""
        with self._database.begin() as connection:
            return rates.tokens_per_second(connection, model)

    def _own(self, client_id: UUID) -> OwnLimits:
        return self._queued.get().own_limits.get(client_id, OwnLimits())

    def _excess(self, client_id: UUID, new: Load, arrived: Load) -> Excess | None:
        queued = self._queued.get()
        limits = Limits.of(self._settings, own_max_tokens=self._own(client_id).max_queued_tokens)
        return admission.find_excess(queued.backlog, limits, client_id, new, arrived=arrived)

    def _refusal_of(self, excess: Excess, client_id: UUID) -> Refused:
        """What is queued drains at the rates of all the models that it is queued for."""
        with self._lock:
            models = self._queued.get().backlog.models(client_id if excess.is_of_client else None)
        known = [rate for model in sorted(models) if (rate := self.tokens_per_second(model)) is not None]
        return excess.refusal(sum(known) if known else None)

    def _redis_refusal(self) -> Refused | None:
        return admission.redis_refusal(*self._redis_memory.get(), self._settings.max_redis_share)

    def _measure(self) -> Queued:
        with self._database.autocommit() as connection:
            return Queued(backlog.backlog(connection), backlog.own_limits(connection))

    def _look_at_redis(self) -> tuple[int, int]:
        """What it holds, and its maxmemory: 0 where it has none, or where it is away. Jobs are taken without it."""
        try:
            found = self._redis.info("memory")
        except redis.RedisError as error:
            log.warning("Redis does not say how full it is", reason=str(error))
            return 0, 0
        return int(found["used_memory"]), int(found.get("maxmemory", 0))

    def _look_at_database(self) -> int:
        if not self._settings.max_database_bytes:
            return 0
        with self._database.begin() as connection:
            return backlog.database_bytes(connection)

    def _look_at_disk(self) -> float:
        """Bytes free on the ledger's disk; endless where that is not ours to see."""
        folder = self._settings.ledger_dir
        return shutil.disk_usage(folder).free if folder else math.inf
