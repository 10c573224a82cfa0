"""Ids and headers, whatever they hold: read as what they are, or refused with a reason."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from api.etags import is_known
from api.idempotency import HEADER, claim_of
from api.job_ids import to_job_id
from api.keyring import _id_of, _key_in
from api.preferences import MAX_WAIT_SECONDS, wait_seconds
from core.errors import Refused
from core.keys import is_key, new_key

CLIENT = UUID(int=1)
HEADERS = st.binary(max_size=300).map(lambda raw: raw.decode("latin-1"))  # as a server hands them on
TAGS = st.text(st.characters(codec="latin-1", exclude_characters='",* ', exclude_categories=["Cc"]), max_size=30)


@given(st.uuids())
def test_an_id_is_read_in_its_usual_form_in_any_case_and_in_no_other(job_id):
    assert to_job_id(str(job_id)) == to_job_id(str(job_id).upper()) == job_id
    for other in (job_id.hex, f"{{{job_id}}}", job_id.urn, f" {job_id}", f"{job_id}\n", str(job_id)[:-1], f"{job_id}0"):
        assert to_job_id(other) is None


@given(st.text())
def test_no_other_text_is_an_id(text):
    found = to_job_id(text)
    assert found is None or str(found) == text.lower()


@given(HEADERS)
def test_any_prefer_header_is_a_wait_of_up_to_a_minute(prefer):
    assert 0 <= wait_seconds(prefer) <= MAX_WAIT_SECONDS


@given(st.integers(0, 10**9 - 1), st.lists(TAGS.filter(lambda text: "wait" not in text.lower())), st.booleans())
def test_a_wait_is_found_among_other_preferences(seconds, others, is_last):
    wait = f" wait={seconds} ; x=y"
    assert wait_seconds(",".join([*others, wait] if is_last else [wait, *others])) == min(seconds, MAX_WAIT_SECONDS)


@given(TAGS, st.lists(TAGS), st.booleans())
def test_a_tag_is_known_if_it_is_listed(tag, others, is_weak):
    tag, listed = f'"{tag}"', [f'"{other}"' for other in others]
    assert is_known(tag, "*")
    assert is_known(tag, " , ".join([*listed, ("W/" if is_weak else "") + tag]))
    assert is_known(tag, ",".join(listed)) == (tag in listed)


@given(HEADERS, HEADERS)
def test_any_if_none_match_is_an_answer(tag, header):
    assert is_known(f'"{tag}"', header) in (True, False)


def request_with(*values):
    headers = [(HEADER.lower().encode(), value) for value in values]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers})


@given(st.binary(max_size=300))
def test_an_idempotency_key_is_printable_ascii_or_refused(value):
    if 0 < len(value) <= 255 and all(0x20 <= byte <= 0x7E for byte in value):
        claim = claim_of(request_with(value), CLIENT)
        assert (claim.client_id, claim.key) == (CLIENT, value.decode())
        return
    with pytest.raises(Refused) as refused:
        claim_of(request_with(value), CLIENT)
    assert (refused.value.status, refused.value.code) == (400, "invalid_idempotency_key")


@given(st.lists(st.binary(min_size=1, max_size=10), min_size=2))
def test_two_idempotency_keys_are_none(values):
    with pytest.raises(Refused):
        claim_of(request_with(*values), CLIENT)
    assert claim_of(request_with(), CLIENT) is None


@given(HEADERS)
def test_any_authorization_is_a_key_or_none_and_is_kept_as_a_hash(header):
    key = _key_in(header)
    assert not is_key(key) or header.lower().startswith("bearer ")
    assert len(_id_of(header)) == 32


@given(st.sampled_from(["Bearer", "bearer", "BEARER"]), st.integers(1, 4))
def test_a_key_is_found_behind_its_scheme(scheme, num_blanks):
    key = new_key()
    assert _key_in(f"{scheme}{' ' * num_blanks}{key} ") == key
    assert _key_in(f"Basic {key}") == ""
    assert not is_key(_key_in(f"{scheme} {key}, {key}"))
