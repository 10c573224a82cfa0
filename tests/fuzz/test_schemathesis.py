"""Whatever is sent to any route, the answer is one that the document has, and nothing of another client's is in it."""

from __future__ import annotations

import os
import sys

import pytest
from fuzzer import Fuzzed, fuzz
from two_clients import two_clients

SEED = int(os.environ.get("FUZZ_SEED", "1"))
NUM_CASES = int(os.environ.get("FUZZ_CASES", "10000"))
PHASES = ("examples", "coverage", "fuzzing", "stateful")


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    with two_clients(tmp_path_factory.mktemp("fuzz")) as clients:
        before = clients.other.everything()
        yield clients
        assert clients.other.everything() == before, "another client's things were changed"


def test_a_few_hundred_requests_are_answered_by_the_document(clients):
    fuzzed = fuzz(clients, seed=SEED, max_examples=4, phases=("examples", "fuzzing", "stateful"))
    fuzzed.check()
    assert fuzzed.num_cases >= 150
    assert fuzzed.num_foreign > 10


@pytest.mark.fuzz
@pytest.mark.timeout(3_600)
def test_ten_thousand_requests_are_answered_by_the_document(clients, capsys):
    fuzzed, seed = Fuzzed(), SEED
    while fuzzed.num_cases < NUM_CASES:
        fuzz(clients, seed=seed, max_examples=40, phases=PHASES, into=fuzzed)
        with capsys.disabled():
            sys.stdout.write(
                f"\nseed {seed}: {fuzzed.num_cases} cases, {fuzzed.num_foreign} of them with another client's id,"
                f" {len(fuzzed.failures)} faults; statuses {dict(sorted(fuzzed.statuses.items()))}\n"
            )
        fuzzed.check()
        seed += 1
