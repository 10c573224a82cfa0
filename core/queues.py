"""The names of what travels over Redis. Messages carry ids; receivers assume they run twice, late, or never."""

from __future__ import annotations

from typing import Literal

SCORE_CHUNK = "rankmill.score_chunk"  # task: (job_id: str, chunk_no: int)
DELIVER = "rankmill.deliver"  # task: (delivery_id: str)
DELIVER_QUEUE = "rankmill.deliver"
HINTS_MARK = "rankmill.hints"  # a key, there for as long as Redis holds the hints it was sent
ENDED_CHANNEL = "rankmill.ended"  # published with a job's id once the transaction that ends it has committed


def bulk_queue(owner: str) -> str:
    """The queue of one worker process: the scheduler keeps a window of hints in it."""
    return f"rankmill.bulk.{owner}"


def lane_of(queue: str) -> Literal["small", "bulk", "delivery"]:
    """What kind of hint lies in a queue."""
    if queue == DELIVER_QUEUE:
        return "delivery"
    return "bulk" if queue.startswith(bulk_queue("")) else "small"


def small_queue(model: str) -> str:
    """The queue that all workers of a model share, for small jobs."""
    return f"rankmill.small.{model}"
