"""Whether a new job is taken: what is queued against what may be, and how long the surplus takes to drain.

Decisions over numbers that others measured. Sizes are tokens as ``chunks`` estimates them, and bytes of the items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from uuid import UUID

from core.chunks import NewChunk
from core.errors import Refused
from core.settings import Settings

MIN_RETRY_SECONDS = 1
MAX_RETRY_SECONDS = 3_600
UNKNOWN_RATE_RETRY_SECONDS = 60
FULL_RETRY_SECONDS = 10  # Redis drains with the hints, within seconds or not at all
OPEN_JOBS_RETRY_SECONDS = 5  # one of them may end at any time
DISK_RETRY_SECONDS = 300  # a disk is emptied by retention, or by hand


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens and bytes: of what is queued, or of what wants to be."""

    num_tokens: int = 0
    num_bytes: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.num_tokens + other.num_tokens, self.num_bytes + other.num_bytes)

    def __sub__(self, other: Load) -> Load:
        return Load(max(self.num_tokens - other.num_tokens, 0), max(self.num_bytes - other.num_bytes, 0))


NOTHING = Load()


def load_of(chunks: Iterable[NewChunk]) -> Load:
    """That of chunks as they were cut."""
    return sum((Load(chunk.num_tokens_estimate, chunk.num_bytes) for chunk in chunks), NOTHING)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is queued, by model and client."""

    loads: Mapping[tuple[str, UUID], Load]

    def of_client(self, client_id: UUID) -> Load:
        """One client's."""
        return sum((load for (_, client), load in self.loads.items() if client == client_id), NOTHING)

    def of_model(self, model: str) -> Load:
        """One model's."""
        return sum((load for (name, _), load in self.loads.items() if name == model), NOTHING)

    def models(self, client_id: UUID | None) -> set[str]:
        """The models that something is queued for, by one client or by any."""
        return {
            model for (model, client), load in self.loads.items() if client_id in (None, client) and load != NOTHING
        }

    def total(self) -> Load:
        """Everyone's."""
        return sum(self.loads.values(), NOTHING)

    def plus(self, model: str, client_id: UUID, load: Load) -> Backlog:
        """The same with more."""
        key = (model, client_id)
        return Backlog({**self.loads, key: self.loads.get(key, NOTHING) + load})


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """What a client's own row allows it, None or 0: no end of jobs; and how many it has open."""

    max_queued_tokens: int | None = None
    max_open_jobs: int | None = None
    num_open_jobs: int = 0

    def refusal(self) -> Refused | None:
        """Why it can't have one job more."""
        if not self.max_open_jobs or self.num_open_jobs < self.max_open_jobs:
            return None
        detail = (
            f"{self.num_open_jobs:,} jobs of yours are open; at most {self.max_open_jobs:,} may be"
            " (clients.max_open_jobs)"
        )
        return Refused("too_many_open_jobs", detail, status=429, retry_after_seconds=OPEN_JOBS_RETRY_SECONDS)

    def with_another(self) -> OwnLimits:
        """The same with one job more."""
        return replace(self, num_open_jobs=self.num_open_jobs + 1)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may be queued, and the setting that says so. 0: no end."""

    setting: str
    maximum: int

    def surplus(self, num_queued: int, num_new: int) -> int:
        """How much must be scored before the new fits beside it; 0 or less where it fits now."""
        return num_queued + num_new - self.maximum if self.maximum else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The four limits on what is queued."""

    client_tokens: Limit
    client_bytes: Limit
    total_tokens: Limit
    total_bytes: Limit

    @classmethod
    def of(cls, settings: Settings, *, own_max_tokens: int | None = None) -> Limits:
        """Those of a client, whose own row may say how many tokens it may have queued."""
        return cls(
            Limit("RANKMILL_MAX_QUEUED_TOKENS_PER_CLIENT", settings.max_queued_tokens_per_client)
            if own_max_tokens is None
            else Limit("clients.max_queued_tokens", own_max_tokens),
            Limit("RANKMILL_MAX_QUEUED_BYTES_PER_CLIENT", settings.max_queued_bytes_per_client),
            Limit("RANKMILL_MAX_QUEUED_TOKENS_TOTAL", settings.max_queued_tokens_total),
            Limit("RANKMILL_MAX_QUEUED_BYTES_TOTAL", settings.max_queued_bytes_total),
        )


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that a new job would pass. ``num_queued`` and ``num_new`` are in the limit's unit."""

    limit: Limit
    unit: str
    is_of_client: bool
    num_queued: int
    num_new: int
    num_tokens_to_drain: float

    def retry_after_seconds(self, tokens_per_second: float | None) -> int:
        """When the surplus is scored, at the measured rate. A job that never fits is told to wait the longest."""
        if self._never_fits:
            return MAX_RETRY_SECONDS
        if not tokens_per_second:
            return UNKNOWN_RATE_RETRY_SECONDS
        return min(max(ceil(self.num_tokens_to_drain / tokens_per_second), MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)

    def refusal(self, tokens_per_second: float | None) -> Refused:
        """What the client is told."""
        whose = "of yours" if self.is_of_client else "of all clients"
        detail = (
            f"{self.num_queued:,} {self.unit} {whose} are queued, and this job has {self.num_new:,}; at most"
            f" {self.limit.maximum:,} may be queued ({self.limit.setting})"
        )
        if self._never_fits:
            detail += ". This job alone has more: send it in parts, one after another"
        seconds = self.retry_after_seconds(tokens_per_second)
        if self.is_of_client:
            return Refused("backlog_full", detail, status=429, retry_after_seconds=seconds)
        return Refused("total_backlog_full", detail, status=503, retry_after_seconds=seconds)

    @property
    def _never_fits(self) -> bool:
        return self.num_new > self.limit.maximum


def find_excess(
    backlog: Backlog, limits: Limits, client_id: UUID, new: Load, *, arrived: Load = NOTHING
) -> Excess | None:
    """The first limit that the client's job would pass with what is new of it; None where it fits.

    ``arrived`` is what the backlog holds of this job already.
    """
    own, total, job = backlog.of_client(client_id) - arrived, backlog.total() - arrived, arrived + new
    for queued, is_of_client, of_tokens, of_bytes in (
        (own, True, limits.client_tokens, limits.client_bytes),
        (total, False, limits.total_tokens, limits.total_bytes),
    ):
        if (surplus := of_tokens.surplus(queued.num_tokens, job.num_tokens)) > 0:
            return Excess(of_tokens, "tokens", is_of_client, queued.num_tokens, job.num_tokens, surplus)
        if (surplus := of_bytes.surplus(queued.num_bytes, job.num_bytes)) > 0:
            num_tokens = surplus * (queued + job).num_tokens / (queued + job).num_bytes
            return Excess(of_bytes, "bytes", is_of_client, queued.num_bytes, job.num_bytes, num_tokens)
    return None


def redis_refusal(num_used_bytes: int, num_max_bytes: int, max_share: float) -> Refused | None:
    """Why nothing is taken while Redis is nearly full; None where it has room, or no end."""
    if not num_max_bytes or num_used_bytes < max_share * num_max_bytes:
        return None
    detail = (
        f"Redis holds {num_used_bytes:,} of {num_max_bytes:,} bytes, and nothing is taken above"
        f" {max_share:.0%} (RANKMILL_MAX_REDIS_SHARE)"
    )
    return Refused("redis_full", detail, status=503, retry_after_seconds=FULL_RETRY_SECONDS)


def database_refusal(num_bytes: int, num_max_bytes: int) -> Refused | None:
    """Why nothing is taken while the database is too large."""
    if not num_max_bytes or num_bytes < num_max_bytes:
        return None
    detail = f"the database has {num_bytes:,} bytes, and {num_max_bytes:,} are allowed (RANKMILL_MAX_DATABASE_BYTES)"
    return Refused("database_full", detail, status=503, retry_after_seconds=DISK_RETRY_SECONDS)


def disk_refusal(num_free_bytes: float, num_min_free_bytes: int) -> Refused | None:
    """Why nothing is taken while the disk under the database is nearly full."""
    if num_free_bytes >= num_min_free_bytes:
        return None
    detail = (
        f"the disk that holds the ledger has {num_free_bytes:,} bytes free, and {num_min_free_bytes:,} are kept"
        " (RANKMILL_MIN_FREE_DISK_BYTES)"
    )
    return Refused("disk_full", detail, status=503, retry_after_seconds=DISK_RETRY_SECONDS)


def eta_seconds(num_tokens: int, tokens_per_second: float | None) -> float | None:
    """When so many tokens are scored, to one digit after the point; None where no rate is known."""
    return round(num_tokens / tokens_per_second, 1) if tokens_per_second else None
