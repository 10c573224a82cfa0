"""What is too long for the model, in every dialect: cut and named, or refused with the numbers; never cut in silence."""

from __future__ import annotations

import pytest

LONG, HUGE = "x" * 2_000, "y" * 3_000
DOCUMENTS = ["short", LONG, "also short", HUGE]
RERANK = {"query": "q", "documents": DOCUMENTS}
SIMILARITY = {"inputs": {"source_sentence": "q", "sentences": DOCUMENTS}}
NIM = {"query": {"text": "q"}, "passages": [{"text": text} for text in DOCUMENTS]}

CUT = {
    "cohere-v1": ("/v1/rerank", {**RERANK, "return_documents": False}, lambda answer: answer["meta"]["warnings"]),
    "cohere-v2": ("/v2/rerank", RERANK, lambda answer: answer["meta"]["warnings"]),
    "vllm-rerank": ("/rerank", {**RERANK, "truncate_prompt_tokens": -1}, lambda answer: answer["meta"]["warnings"]),
    "infinity": ("/rerank", {**RERANK, "raw_scores": True}, lambda answer: answer["warnings"]),
    "voyage": ("/v1/rerank", {**RERANK, "truncation": True}, lambda answer: answer["warnings"]),
    "vllm-score": (
        "/score",
        {"queries": "q", "documents": DOCUMENTS, "truncate_prompt_tokens": 1_024},
        lambda answer: answer["warnings"],
    ),
    "nim": ("/v1/ranking", {**NIM, "truncate": "END"}, lambda answer: answer["warnings"]),
    "sglang-rerank": (
        "/v1/rerank",
        {**RERANK, "instruct": None},
        lambda answer: [
            f"documents[{each['index']}]: {each['meta_info']['tokens_dropped']}"
            for each in sorted(answer, key=lambda each: each["index"])
            if each["meta_info"]["tokens_dropped"]
        ],
    ),
    "tei": ("/rerank", {"query": "q", "texts": DOCUMENTS}, None),
    "tei-similarity": ("/similarity", SIMILARITY, None),
}
REFUSED = {
    "vllm-rerank": ("/rerank", {**RERANK, "user": "me"}, 400, "documents[1]"),
    "vllm-score": ("/v1/score", {"text_1": "q", "text_2": DOCUMENTS}, 400, "text_2[1]"),
    "vllm-pairs": ("/v1/score", {"data_1": ["q"] * 4, "data_2": DOCUMENTS}, 400, "data_2[1]"),
    "voyage": ("/v1/rerank", {**RERANK, "truncation": False}, 400, "documents[1]"),
    "nim": ("/v1/ranking", NIM, 400, "passages[1]"),
    "tei": ("/rerank", {"query": "q", "texts": DOCUMENTS, "truncate": False}, 422, "texts[1]"),
    "tei-left": (
        "/rerank",
        {"query": "q", "texts": DOCUMENTS, "truncate": False, "truncation_direction": "left"},
        422,
        "texts[1]",
    ),
    "tei-similarity": ("/similarity", {**SIMILARITY, "parameters": {"truncate": False}}, 422, "inputs.sentences[1]"),
    "sglang-score": ("/v1/score", {"query": "q", "items": DOCUMENTS, "label_token_ids": [1, 2]}, 400, "items[1]"),
}


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_is_named(name, post, batcher):
    path, body, warnings = CUT[name]
    answer = post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["rankmill-truncated"] == "1, 3"
    assert sorted(map(len, batcher.prompts))[2:] == [1_024, 1_024]
    if warnings is not None:
        kind = "passages" if name == "nim" else "documents"
        first, second = warnings(answer.json())
        assert first.startswith(f"{kind}[1]: ")
        assert second.startswith(f"{kind}[3]: ")
        num_first, num_second = (int(each.split()[1]) for each in (first, second))
        assert num_second == num_first + len(HUGE) - len(LONG)


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_be_cut_is_refused_with_its_length(name, post, batcher):
    path, body, status, field = REFUSED[name]
    answer = post(path, body)
    assert answer.status_code == status
    assert f"the prompt of {field} has 2," in answer.text
    assert "the model takes 1,024" in answer.text
    assert batcher.prompts == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "q" * 2_000, "documents": ["a"]}),
        ("/rerank", {"query": "q" * 2_000, "texts": ["a"]}),
        ("/score", {"text_1": "q" * 2_000, "text_2": "a", "truncate_prompt_tokens": -1}),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "max_tokens_per_query": 1, "truncate_prompt_tokens": -1}),
    ],
)
def test_a_query_is_never_cut(path, body, post):
    long = len(body.get("query", body.get("text_1"))) > 1
    answer = post(path, body)
    assert (answer.status_code == 200) is not long
    assert ("a prompt with this" in answer.text) is long


def test_a_document_is_cut_to_what_the_body_says_where_a_character_ends(post, batcher):
    answer = post("/v2/rerank", {"query": "q", "documents": ["abcdef", "ab", "aé🐸", "🐸"], "max_tokens_per_doc": 3})
    assert answer.headers["rankmill-truncated"] == "0, 2, 3"
    assert answer.json()["meta"]["warnings"] == [
        "documents[0]: 3 tokens were cut off its end",
        "documents[2]: 4 tokens were cut off its end",
        "documents[3]: 1 tokens were cut off its end",
    ]
    read = [
        bytes(prompt).decode().partition("<Document>: ")[2].partition("<|im_end|>")[0] for prompt in batcher.prompts
    ]
    assert read == ["abc", "ab", "aé", ""]


def test_the_text_that_is_sent_back_is_whole(post):
    answer = post("/v1/rerank", {"query": "q", "documents": [LONG], "max_tokens_per_doc": 3}).json()
    assert answer["results"][0]["document"] == {"text": LONG}


def test_many_cuts_are_counted_once_they_are_too_many_to_name(post):
    answer = post("/v1/rerank", {"query": "q", "documents": ["abcdef"] * 103, "max_tokens_per_doc": 3})
    assert answer.headers["rankmill-truncated"].endswith("98, 99, and 3 more")
    assert len(answer.json()["meta"]["warnings"]) == 101
    assert answer.json()["meta"]["warnings"][-1] == "3 more documents were cut"


def test_nothing_is_named_where_nothing_is_cut(post):
    answer = post("/v1/rerank", {"query": "q", "documents": ["abc"]})
    assert "rankmill-truncated" not in answer.headers
    assert answer.json()["meta"]["warnings"] == []
