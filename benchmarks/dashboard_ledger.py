"""A large job as the ledger has it once its chunks are saved, written by SQL: what a worker would need hours for."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec

from core.jobs import JobParameters
from core.templates import NONE

CHUNK_ITEMS = 1_000
PARTS = 20  # statements that the results are written in

_JOB = """
    INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, is_small, started_at, expires_at)
    VALUES ('00000000-0000-7000-8000-000000000001', 'running', 'fake', %s, %s, %s, false, now() - interval '2 hours',
            now() + interval '1 day') RETURNING id
"""

_CHUNKS = """
    INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate, state, epoch, attempts, hinted_at,
                        lease_owner, lease_until)
    SELECT %(id)s, n, n * 1000::bigint, 1000, 60000, state, 1, 1,
           now() - interval '2 hours' * (1 - n / %(num)s::float8) - interval '3 seconds',
           CASE WHEN state = 'leased' THEN 'worker' END, CASE WHEN state = 'leased' THEN now() + interval '1 hour' END
      FROM (SELECT n, CASE WHEN n < %(done)s THEN 'done' WHEN n < %(done)s + 8 THEN 'leased' ELSE 'pending' END AS state
              FROM generate_series(0, %(num)s - 1) n) c
"""

# Three items of every hundredth chunk failed. Scores are drawn, each item's two labels share what its mass leaves.
_RESULTS = """
    INSERT INTO results (job_id, chunk_no, first_index, num_items, label_logprobs, prompt_tokens, cached_tokens, errors,
                         num_succeeded, num_failed, prompt_tokens_total, cached_tokens_total, num_low_mass, calibrated,
                         revision, dtype, template_version, engine_version, epoch, saved_at)
    SELECT %(id)s, n, n * 1000::bigint, 1000, made.logprobs, made.tokens, made.cached,
           CASE WHEN n %% 100 = 0
                THEN ARRAY['non_finite_score', 'item_too_long', 'empty_prompt'] || array_fill(NULL::text, ARRAY[997]) END,
           1000 - failed, failed, 60 * (1000 - failed), 40 * (1000 - failed), 5, false, '1', 'bfloat16', 'none/1',
           'fake/1', 1, now() - interval '2 hours' * (1 - n / %(num)s::float8)
      FROM (SELECT n, CASE WHEN n %% 100 = 0 THEN 3 ELSE 0 END AS failed
              FROM generate_series(%(start)s, %(end)s - 1) n) c
     CROSS JOIN LATERAL (
           SELECT array_agg(ln(greatest(p.mass * CASE l WHEN 0 THEN p.score ELSE 1 - p.score END, 1e-9))::real
                            ORDER BY i, l) AS logprobs,
                  array_fill(60, ARRAY[1000]) AS tokens, array_fill(40, ARRAY[1000]) AS cached
             FROM (SELECT i, power(random(), 1 + n * 0) AS score, 0.6 + 0.4 * random() AS mass
                     FROM generate_series(1, 1000) i) p
            CROSS JOIN generate_series(0, 1) l) made
"""

_END = """
    UPDATE jobs SET state = 'completed', finished_at = now(), num_cancelled = 0,
           (num_succeeded, num_failed, prompt_tokens, cached_tokens) =
           (SELECT sum(num_succeeded), sum(num_failed), sum(prompt_tokens_total), sum(cached_tokens_total)
              FROM results WHERE job_id = %(id)s) WHERE id = %(id)s
"""

_COLUMNS = (
    "first_index, num_items, label_logprobs, prompt_tokens, cached_tokens, errors, num_succeeded, num_failed,"
    " prompt_tokens_total, cached_tokens_total, num_low_mass, calibrated, revision, dtype, template_version,"
    " engine_version, epoch"
)


def write_large(connection, num_items, *, is_open):
    """A job of so many items with its chunks and results; half of it is done where it is open. Its id."""
    parameters = json.dumps(msgspec.to_builtins(JobParameters("fake", "q ", [0, 1])))
    (job_id,) = connection.execute(_JOB, (parameters, NONE.version, num_items)).fetchone()
    num_chunks = num_items // CHUNK_ITEMS
    num_done = num_chunks // 2 if is_open else num_chunks
    values = {"id": job_id, "num": num_chunks, "done": num_done}
    connection.execute(_CHUNKS, values)
    borders = [num_done * part // PARTS for part in range(PARTS + 1)]
    for start, end in pairwise(borders):
        connection.execute(_RESULTS, {**values, "start": start, "end": end})
    if not is_open:
        connection.execute(_END, values)
    return job_id


def save_another(connection, job_id, number):
    """One more saved chunk of the open job: a copy of its first one."""
    connection.execute(
        f"INSERT INTO results (job_id, chunk_no, {_COLUMNS}) SELECT job_id, %s, {_COLUMNS} FROM results"  # noqa: S608
        " WHERE job_id = %s AND chunk_no = 1",
        (1_000_000 + number, job_id),
    )
