"""The assertions of scenarios tell the values that they compared."""

from __future__ import annotations

import pytest

PARTS = ("chaos", "failpoint", "job", "operation", "postgres", "process", "redis", "unflushed", "webhook", "worker")

pytest.register_assert_rewrite("accounts", "chaos", "load", "soak", "stack", *(f"{part}_scenarios" for part in PARTS))
