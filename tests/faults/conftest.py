"""The assertions of scenarios tell the values that they compared."""

from __future__ import annotations

import pytest

PARTS = ("job", "postgres", "process", "redis", "webhook", "worker")

pytest.register_assert_rewrite("load", "stack", *(f"{part}_scenarios" for part in PARTS))
