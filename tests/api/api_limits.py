"""The small limits that the tests of the front end run it with."""

from __future__ import annotations

PREFIX = "api-tests:"
MAX_BODY_BYTES = 1 << 20
MAX_ITEM_BYTES = 4_000
MAX_ITEMS = 20_000
