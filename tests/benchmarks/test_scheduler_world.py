"""The real decisions under a simulated clock: shares follow weights, and nobody small waits behind the large."""

from __future__ import annotations

import pytest

from benchmarks.scheduler_world import NUM_GIANTS, TOKENS_PER_ITEM, World
from core.turns import MOST_AGING


@pytest.mark.parametrize("seed", [1, 2])
def test_in_the_long_run_every_client_has_its_share_within_five_percent(seed):
    world = World(num_workers=8, num_clients=6, kind="shares", seed=seed)
    world.run(600)
    by_weight = [client.tokens_done / client.weight for client in world.clients.values()]
    mean = sum(by_weight) / len(by_weight)
    assert all(abs(share / mean - 1) < 0.05 for share in by_weight)
    assert world.jain() > 0.999


@pytest.mark.parametrize("seed", [1, 2])
def test_no_small_client_starves_beside_giants(seed):
    world = World(num_workers=20, num_clients=60, kind="giants", seed=seed)
    world.run(180)
    small = list(world.clients.values())[NUM_GIANTS:]
    assert all(client.tokens_done for client in small)
    assert len(world.waits) >= len(small)
    largest_tokens = 1_000 * TOKENS_PER_ITEM
    round_tokens = largest_tokens * sum(MOST_AGING * client.weight for client in world.clients.values())
    assert max(world.waits) < round_tokens / sum(worker.tokens_per_second for worker in world.workers.values()), (
        "a chunk is told to a worker within a turn of everyone"
    )


def test_workers_are_never_idle_while_chunks_wait_and_hold_no_more_than_their_windows():
    world = World(num_workers=8, num_clients=30, kind="shares", seed=3)
    world.run(60)
    for worker in world.workers.values():
        assert worker.free_at > world.now
        assert 2 <= worker.num_held <= 12
    assert world.max_deficit_chunks < 4 * 5, "aging times weight"
