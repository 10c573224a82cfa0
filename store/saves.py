"""Saves: the results of a claimed chunk, stored once behind a fence, in one statement; the end of its job, where it is all of it."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, text

from core.chunks import Claim
from core.errors import Broken
from core.results import ChunkResults, ItemError
from store import endings, metrics, tally
from store.number_arrays import Integers, Reals

_ITEM_ERRORS = frozenset(ItemError)

# The fence comes first and the insert depends on it. Inputs go with the save, unless something may need them again.
_CLOSE = """
    UPDATE chunks SET state = 'done', lease_owner = NULL, lease_until = NULL
     WHERE job_id = :job_id AND chunk_no = :chunk_no AND state = 'leased' AND epoch = :epoch AND lease_owner = :owner
"""
_STORE = """
    gone AS (
        DELETE FROM chunk_inputs i USING won, jobs j
         WHERE i.job_id = :job_id AND i.chunk_no = :chunk_no AND j.id = won.job_id AND :num_failed = 0
           AND NOT (j.parameters ->> 'keep_inputs')::bool),
    saved AS (
        INSERT INTO results (job_id, chunk_no, first_index, num_items, label_logprobs, label_offsets, prompt_tokens,
                             cached_tokens, tokens_dropped, errors, item_ids, item_indexes, query_nos, num_succeeded,
                             num_failed, prompt_tokens_total, cached_tokens_total, num_low_mass, calibrated, revision,
                             dtype, template_version, engine_version, epoch)
        SELECT won.job_id, won.chunk_no, won.first_index, won.num_items, CAST(:label_logprobs AS real[]),
               CAST(:label_offsets AS int[]), CAST(:prompt_tokens AS int[]), CAST(:cached_tokens AS int[]),
               CAST(:tokens_dropped AS int[]), CAST(:errors AS text[]), CAST(:item_ids AS text[]),
               CAST(:item_indexes AS bigint[]), CAST(:query_nos AS int[]), won.num_items - :num_failed, :num_failed,
               :prompt_tokens_total, :cached_tokens_total, :num_low_mass, :calibrated, :revision, :dtype,
               j.template_version, :engine_version, :epoch
          FROM won JOIN jobs j ON j.id = won.job_id
        RETURNING num_succeeded, num_failed, prompt_tokens_total, cached_tokens_total, num_low_mass)
"""
_WON = "job_id, chunk_no, first_index, num_items"

# It only reads the job: saves of one job would wait for each other.
_SAVE = text(f"WITH won AS ({_CLOSE} RETURNING {_WON}), {_STORE} SELECT FROM saved")

# Where the job ends too, it is locked before its chunk, as everywhere.
_LOCKED = "EXISTS (SELECT FROM jobs WHERE id = :job_id FOR NO KEY UPDATE)"
_SAVE_AND_END = text(f"""
    WITH won AS ({_CLOSE} AND {_LOCKED} RETURNING {_WON}), {_STORE}, {endings.COMPLETED}
    SELECT j.* FROM saved LEFT JOIN completed j ON true
""")  # noqa: S608


def save(connection: Connection, claim: Claim, results: ChunkResults, *, owner: str, and_end: bool = False) -> bool:
    """Store a chunk's results and close it. False: the claim is not ours any more, and nothing was stored.

    ``and_end``: complete the job, too, of which no other chunk is; where it has a webhook, this writes its delivery by a
    second statement.
    """
    if results.num_items != claim.num_items or len(results.prompt_tokens) != claim.num_items:
        raise Broken(f"{results.num_items} results for the {claim.num_items} items of {claim.key}")
    assert claim.is_whole or not and_end, f"{claim.key} is not all of its job"
    evidence = results.evidence
    values = {
        **claim.key._asdict(),
        "epoch": claim.epoch,
        "owner": owner,
        "label_logprobs": Reals(results.label_logprobs),
        "label_offsets": _integers(results.label_offsets),
        "prompt_tokens": Integers(results.prompt_tokens),
        "cached_tokens": _integers(results.cached_tokens),
        "tokens_dropped": _integers(results.tokens_dropped),
        "errors": results.errors,
        "item_ids": results.item_ids,
        "item_indexes": results.item_indexes,
        "query_nos": _integers(results.query_nos),
        "num_failed": results.num_failed,
        "prompt_tokens_total": sum(results.prompt_tokens),
        "cached_tokens_total": sum(results.cached_tokens or ()),
        "num_low_mass": results.num_low_mass,
        "calibrated": results.calibrated,
        "revision": "" if evidence is None else evidence.revision,
        "dtype": "" if evidence is None else evidence.dtype,
        "engine_version": "" if evidence is None else evidence.engine_version,
    }
    if and_end:
        saved = connection.execute(_SAVE_AND_END, values | endings.FREEZE_VALUES).mappings().one_or_none()
    else:
        saved = connection.execute(_SAVE, values).mappings().one_or_none()
    if saved is None:
        tally.add(connection, metrics.STALE_RESULTS)
        return False
    _tally(connection, results)
    if and_end and saved["id"] is not None:
        endings.follow_up(connection, saved)
    return True


def _tally(connection: Connection, results: ChunkResults) -> None:
    num_failed = results.num_failed
    tally.add(connection, metrics.CHUNKS)
    tally.add(connection, metrics.ITEMS.labels("succeeded"), results.num_items - num_failed)
    tally.add(connection, metrics.ITEMS.labels("failed"), num_failed)
    tally.add(connection, metrics.PROMPT_TOKENS, sum(results.prompt_tokens))
    for error, num_items in Counter(filter(None, results.errors or ())).items():
        tally.add(connection, metrics.ITEM_ERRORS.labels(error if error in _ITEM_ERRORS else "other"), num_items)


def _integers(values: list[int] | None) -> Integers | None:
    return None if values is None else Integers(values)
