"""Whether a job is taken: every limit, its edge, what is said, and when it is worth asking again."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import admission
from core.admission import Backlog, Limits, Load, find_excess
from core.settings import Settings

ME, OTHER = UUID(int=1), UUID(int=2)
MINE, OTHERS = Load(600, 2_000), Load(300, 1_000)
BACKLOG = Backlog({("fake", ME): MINE, ("fake", OTHER): OTHERS, ("words", OTHER): Load(1, 1)})
GB = 10**9


def limits(**changes):
    none = dict.fromkeys(
        (f"max_queued_{unit}_{of}" for unit in ("tokens", "bytes") for of in ("per_client", "total")), 0
    )
    return Limits.of(Settings(**{**none, **changes}))


NEW = Load(100, 400)


def excess(new=NEW, *, arrived=admission.NOTHING, **changes):
    return find_excess(BACKLOG, limits(**changes), ME, new, arrived=arrived)


# setting, the least value that lets 100 tokens and 400 bytes in
EDGES = [
    ("max_queued_tokens_per_client", 700, 429, "backlog_full", "600 tokens of yours are queued, and this job has 100"),
    ("max_queued_bytes_per_client", 2_400, 429, "backlog_full", "2,000 bytes of yours"),
    ("max_queued_tokens_total", 1_001, 503, "total_backlog_full", "901 tokens of all clients"),
    ("max_queued_bytes_total", 3_401, 503, "total_backlog_full", "3,001 bytes of all clients"),
]


@pytest.mark.parametrize(("setting", "least", "status", "code", "words"), EDGES)
def test_a_job_is_taken_up_to_the_limit_and_refused_past_it(setting, least, status, code, words):
    assert excess(**{setting: least}) is None
    refusal = excess(**{setting: least - 1}).refusal(None)
    assert (refusal.status, refusal.code) == (status, code)
    assert words in refusal.detail
    assert f"{least - 1:,}" in refusal.detail
    assert f"RANKMILL_{setting.upper()}" in refusal.detail
    assert refusal.retry_after_seconds == admission.UNKNOWN_RATE_RETRY_SECONDS


def test_zero_is_no_limit():
    assert excess(Load(10**15, 10**18)) is None


def test_a_clients_own_limit_is_told_before_that_of_all():
    found = excess(max_queued_tokens_per_client=650, max_queued_tokens_total=950)
    assert found.is_of_client


def test_a_clients_own_row_replaces_the_setting():
    own = Limits.of(Settings(), own_max_tokens=650)
    assert find_excess(BACKLOG, own, ME, Load(51, 0)).refusal(None).detail.endswith("(clients.max_queued_tokens)")
    assert find_excess(BACKLOG, own, ME, Load(50, 0)) is None


RETRIES = [
    # limit, rate, seconds: the surplus over the rate, within bounds
    ({"max_queued_tokens_per_client": 600}, 10, 10),
    ({"max_queued_tokens_per_client": 600}, 9.9, 11),
    ({"max_queued_tokens_per_client": 699}, 10_000, 1),
    ({"max_queued_tokens_per_client": 600}, 0.001, 3_600),
    ({"max_queued_tokens_per_client": 600}, None, 60),
    ({"max_queued_tokens_per_client": 600}, 0, 60),
    ({"max_queued_bytes_per_client": 2_000}, 10, 12),  # 400 bytes are 117 tokens, by what is queued and comes
    ({"max_queued_tokens_total": 901}, 10, 10),
    ({"max_queued_tokens_per_client": 99}, 1_000, 3_600),  # it never fits
]


@pytest.mark.parametrize(("changes", "rate", "seconds"), RETRIES)
def test_it_is_worth_asking_again_when_the_surplus_has_drained(changes, rate, seconds):
    assert excess(**changes).refusal(rate).retry_after_seconds == seconds


def test_what_has_arrived_of_a_job_is_its_own_and_not_queued_beside_it():
    arrived = Load(500, 1_900)
    assert excess(Load(100, 0), max_queued_tokens_per_client=700, arrived=arrived) is None
    refusal = excess(Load(101, 0), max_queued_tokens_per_client=700, arrived=arrived).refusal(1)
    assert "100 tokens of yours are queued, and this job has 601" in refusal.detail
    assert refusal.retry_after_seconds == 1
    assert (
        excess(Load(101, 0), max_queued_tokens_per_client=600, arrived=arrived).refusal(1).retry_after_seconds == 3_600
    )


def test_a_job_that_never_fits_is_told_so():
    assert "in parts" in excess(max_queued_tokens_per_client=99).refusal(5).detail
    assert "in parts" not in excess(max_queued_tokens_per_client=100).refusal(5).detail


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**12), st.none() | st.floats(0, 1e9, width=32))
def test_what_is_taken_fits_and_what_is_refused_does_not(num_queued, num_new, maximum, rate):
    backlog = Backlog({("fake", ME): Load(num_queued, 0)})
    found = find_excess(backlog, limits(max_queued_tokens_total=maximum), ME, Load(num_new, 0))
    assert (found is None) == (num_queued + num_new <= maximum)
    if found is not None:
        assert 1 <= found.refusal(rate).retry_after_seconds <= 3_600


def test_a_job_of_ten_million_items_and_one_of_five_million_are_taken_by_default():
    ten = Load(10_000_000 * (500 // 4 + 1), 10_000_000 * 500)
    half = Load(ten.num_tokens // 2, ten.num_bytes // 2)
    backlog = Backlog({("fake", ME): ten})
    assert find_excess(backlog, Limits.of(Settings()), ME, half) is None
    with_long_queries = Load(15_000_000 * 2_000 // 4, 0)
    assert find_excess(Backlog({}), Limits.of(Settings()), ME, with_long_queries) is None


def test_more_adds_up_by_model_and_client():
    more = BACKLOG.plus("fake", ME, Load(1, 2)).plus("new", ME, Load(10, 20))
    assert more.of_client(ME) == Load(611, 2_022)
    assert more.of_model("fake") == Load(901, 3_002)
    assert BACKLOG.of_client(ME) == MINE
    assert (more.models(ME), more.models(OTHER), more.models(None)) == (
        {"fake", "new"},
        {"fake", "words"},
        {"fake", "new", "words"},
    )
    assert Backlog({("done", ME): Load()}).models(None) == set()


FULL = [
    (admission.redis_refusal, (90, 100, 0.9), "redis_full", "90 of 100 bytes"),
    (admission.redis_refusal, (89, 100, 0.9), None, None),
    (admission.redis_refusal, (10**9, 0, 0.9), None, None),  # no maxmemory
    (admission.redis_refusal, (101, 100, 1.0), "redis_full", "RANKMILL_MAX_REDIS_SHARE"),
    (admission.database_refusal, (10, 10), "database_full", "RANKMILL_MAX_DATABASE_BYTES"),
    (admission.database_refusal, (9, 10), None, None),
    (admission.database_refusal, (10**15, 0), None, None),
    (admission.disk_refusal, (GB - 1, GB), "disk_full", "RANKMILL_MIN_FREE_DISK_BYTES"),
    (admission.disk_refusal, (GB, GB), None, None),
    (admission.disk_refusal, (0, 0), None, None),
]


@pytest.mark.parametrize(("rule", "values", "code", "words"), FULL)
def test_nothing_is_taken_while_a_part_is_full(rule, values, code, words):
    refusal = rule(*values)
    if code is None:
        assert refusal is None
        return
    assert (refusal.status, refusal.code) == (503, code)
    assert words in refusal.detail
    assert refusal.retry_after_seconds > 0


@pytest.mark.parametrize(
    ("num_tokens", "rate", "seconds"), [(100, 8, 12.5), (0, 8, 0), (100, None, None), (1, 0, None)]
)
def test_an_eta_follows_from_the_rate(num_tokens, rate, seconds):
    assert admission.eta_seconds(num_tokens, rate) == seconds
