"""Where the servers of a running `rankmill up` answer, for commands that look at them from outside."""

from __future__ import annotations

from contextlib import suppress

from core.errors import NotReady
from core.settings import Settings
from rankmill.embedded import postgres, valkey


def with_running(settings: Settings) -> Settings:
    """The settings, with the servers over the data folder in the place of addresses that are not set."""
    found: dict[str, str] = {}
    with suppress(NotReady):
        if not settings.database_url:
            found["database_url"] = postgres.running_url(settings.data_dir)
    with suppress(NotReady):
        if not settings.redis_url:
            found["redis_url"] = valkey.running_url(settings.data_dir)
    return settings.model_copy(update=found)
