"""A million items, with a fault every few seconds: what the processes hold stays as it is."""

from __future__ import annotations

import os

import pytest
import soak
from stack import Stack

NUM_ITEMS = int(os.environ.get("RANKMILL_SOAK_ITEMS", "1000000"))
FAST = {"RANKMILL_FAKE_DELAY": "5", "RANKMILL_MAX_BATCH_TOKENS": "65536"}


@pytest.mark.chaos
@pytest.mark.timeout(5_400)
def test_a_million_items_with_faults_leave_memory_and_connections_flat(tmp_path, capsys):
    with capsys.disabled(), Stack(tmp_path, **FAST) as stack:
        samples = soak.soak(stack, NUM_ITEMS)
        soak.check_that_nothing_grows(samples)
