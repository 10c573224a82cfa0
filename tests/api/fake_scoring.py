"""A worker in a few lines: the fake model's rule, and one chunk claimed, scored, saved and ended by it."""

from __future__ import annotations

import math
import zlib

from core.results import ChunkResults, Evidence
from store import chunks, jobs, saves


def fake_score(content):
    """The fake model's rule: the first label's probability."""
    return zlib.crc32(content if isinstance(content, bytes) else content.encode()) / 2**32


def score_chunk(database, key, *, owner="scorer", failing=()):
    """Claim, score by the fake model's rule with no query, save and end, as a worker does."""
    with database.begin() as connection:
        claim = chunks.claim(connection, key, owner=owner, lease_seconds=30)
        if claim is None:
            return
        payload = chunks.load(connection, key).payload
    scores = [fake_score(content) for content in payload.contents]
    failed = [claim.first_index + place in failing for place in range(claim.num_items)]
    with database.begin() as connection:
        saves.save(
            connection,
            claim,
            ChunkResults(
                num_items=claim.num_items,
                label_logprobs=[
                    math.nan if fails else math.log(max(p, 1e-9))
                    for score, fails in zip(scores, failed, strict=True)
                    for p in (score, 1 - score)
                ],
                prompt_tokens=[0 if fails else 1 for fails in failed],
                errors=["non_finite_score" if fails else None for fails in failed] if any(failed) else None,
                item_ids=payload.ids,
                evidence=Evidence("1", "float32", "1"),
            ),
            owner=owner,
        )
    with database.begin() as connection:
        jobs.end(connection, key.job_id)
