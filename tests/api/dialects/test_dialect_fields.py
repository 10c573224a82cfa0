"""Every field of every dialect, as ``docs/dialects.md`` lists them: honoured with its effect, or refused by name."""

from __future__ import annotations

import msgspec
import pytest
from dialect_tables import scores, tables, without_names

from api.dialects import infinity, nim, rerank, sglang_rerank, sglang_score, tei, vllm_score, voyage
from api.dialects.generative_scoring import GenerativeScoringRequest

TABLES = tables()
KINDS = {
    "vLLM generative scoring": GenerativeScoringRequest,
    "SGLang score": sglang_score.SGLangScoreRequest,
    "vLLM score": vllm_score.VllmScoreRequest,
    "Rerank": rerank.RerankRequest,
    "SGLang rerank": sglang_rerank.SGLangRerankRequest,
    "Infinity rerank": infinity.InfinityRequest,
    "Voyage rerank": voyage.VoyageRequest,
    "TEI rerank": tei.TEIRequest,
    "TEI similarity": tei.SimilarityRequest,
    "NIM ranking": nim.NIMRequest,
}
ROWS = [(title, row) for title, table in TABLES.items() for row in table.rows]
HONOURED = [(title, row) for title, row in ROWS if row.honoured]
REFUSED = [(title, row) for title, row in ROWS if row.refused]


def names(rows):
    return [f"{title}-{row.field}".replace(" ", "-") for title, row in rows]


def message_of(answer):
    """What an error says, and the field that it names, in any shape; and that the shape is whole."""
    body = answer.json()
    if isinstance(body["error"], str):
        assert set(body) == {"error", "error_type"}
        return body["error"], None
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == answer.status_code
    assert body.get("message", error["message"]) == body.get("detail", error["message"]) == error["message"]
    return error["message"], error["param"]


def test_the_page_has_every_dialect_with_every_field():
    assert TABLES.keys() == KINDS.keys()
    for title, table in TABLES.items():
        fields = {field.name for field in msgspec.structs.fields(KINDS[title])}
        more = {"truncate_prompt_tokens"} if title == "vLLM generative scoring" else set()
        assert [row.field for row in table.rows if row.field not in fields | more] == []
        assert fields | more == {row.field for row in table.rows}
        assert all(row.effect or not row.honoured for row in table.rows)


@pytest.fixture(scope="module")
def kept():
    return {}


@pytest.fixture
def unchanged(post, kept):
    """The answer to a table's own body, asked for once."""

    def unchanged(title):
        if title not in kept:
            answer = post(TABLES[title].path, TABLES[title].body)
            assert answer.status_code == 200, answer.text
            kept[title] = answer.json()
        return kept[title]

    return unchanged


@pytest.mark.parametrize(("title", "row"), HONOURED, ids=names(HONOURED))
def test_what_is_honoured_has_its_effect(title, row, post, unchanged):
    table = TABLES[title]
    base, changed = unchanged(title), []
    for value in row.honoured:
        answer = post(table.path, table.body, **{row.field: value})
        assert answer.status_code == 200, (value, answer.text)
        changed.append(answer.json())
    if row.effect == "scores":
        assert all(scores(title, answer) != scores(title, base) for answer in changed)
    elif row.effect == "answer":
        assert all(without_names(answer) != without_names(base) for answer in changed)
        assert all(scores(title, answer).items() <= scores(title, base).items() for answer in changed)
    else:
        assert [without_names(answer) for answer in changed] == [without_names(base)] * len(changed)


@pytest.mark.parametrize(("title", "row"), REFUSED, ids=names(REFUSED))
def test_what_is_refused_is_named_in_the_shape_of_the_dialect(title, row, post):
    table = TABLES[title]
    for value in row.refused:
        answer = post(table.path, table.body, **{row.field: value})
        assert answer.status_code in ((400, 404, 422) if "generative" in title or "TEI" in title else (400, 404)), (
            value,
            answer.text,
        )
        message, param = message_of(answer)
        assert row.field.removesuffix("s") in f"{message} {param}", (value, message, param)


@pytest.mark.parametrize("title", TABLES)
def test_a_field_that_is_not_listed_is_refused(title, post):
    answer = post(TABLES[title].path, TABLES[title].body, nonsense=1)
    assert answer.status_code == (422 if "generative" in title or "TEI" in title else 400)
    assert "nonsense" in message_of(answer)[0]


@pytest.mark.parametrize("pair", vllm_score.PAIRS, ids="-".join)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_every_pair_of_names_for_two_sides_is_the_same(path, pair, post, unchanged):
    first, second = pair
    answer = post(path, {first: "Is it green? ", second: ["grass", "snow"]})
    assert answer.status_code == 200, answer.text
    assert without_names(answer.json()) == without_names(unchanged("vLLM score"))
    assert f"{second}[1] holds a NUL" in message_of(post(path, {first: "a", second: ["b", "\0"]}))[0]
    assert f"{first}[1] holds a NUL" in message_of(post(path, {first: ["a", "\0"], second: ["b", "c"]}))[0]
