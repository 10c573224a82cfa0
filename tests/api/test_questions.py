"""What a job asks: its template, the instruction in it, and the labels or targets that may follow. The tokenizer is Qwen3's."""

from __future__ import annotations

import pytest

from api.requests import Item
from core.builtin_templates import CHOICE, QUERY_LIKELIHOOD, QWEN3_RERANKER, TOPIC
from core.templates import NONE, NONE_ITEM_FIRST, Template

YES, NO = 9693, 2152
FIXED_TARGET = Template("fixed", "{item}\n", target=" Ann")


@pytest.fixture(scope="module")
def asking(asking):
    return asking.with_card(templates=[*asking.reader.card.templates, FIXED_TARGET])


def test_a_job_that_names_nothing_gets_the_models_template_instruction_and_labels(asking):
    job = asking.job(query="q")
    assert job.parameters.template == QWEN3_RERANKER
    assert job.parameters.instruction == QWEN3_RERANKER.instruction
    assert job.parameters.label_token_ids == [YES, NO]
    assert job.template_version == QWEN3_RERANKER.version


def test_an_instruction_of_ones_own_takes_the_place_of_the_templates(asking):
    assert asking.parameters(query="q", instruction="Find spam.").instruction == "Find spam."
    assert asking.parameters(query="q", instruction="").instruction == ""
    assert asking.fault(query="q", instruction="x" * 100_001) == ("out_of_range", "instruction")
    assert asking.fault(query="q", instruction="\0") == ("nul_character", "instruction")


@pytest.mark.parametrize("template", [NONE, TOPIC, CHOICE])
def test_an_instruction_is_refused_where_there_is_no_place_for_it(template, asking):
    assert asking.fault(template=template.name, instruction="x") == ("conflicting_fields", "instruction")


def test_a_template_is_one_of_the_models(asking):
    found = asking.refusal(template="judge")
    assert (found.code, found.field) == ("unknown_template", "template")
    assert "it has choice, fixed, none, query-likelihood, qwen3-reranker, topic" in found.detail


def test_the_item_can_come_first_only_where_nothing_says_another_order(asking):
    assert asking.parameters(template="none", item_first=True, label_token_ids=[1, 2]).template == NONE_ITEM_FIRST
    assert asking.fault(item_first=True, query="q") == ("conflicting_fields", "item_first")
    assert asking.fault(template="topic", item_first=True) == ("conflicting_fields", "item_first")


def test_a_query_is_given_where_a_template_needs_one_and_nowhere_else(asking):
    assert asking.fault() == ("query_required", "query")
    assert asking.refusal([Item(text="a", query="q"), "b"]).item == 1
    asking.job([Item(text="a", query="q")])
    assert asking.fault(template="topic", query="q", labels=[" a", " b"]) == ("conflicting_fields", "query")
    own = [Item(text="a", query="q")]
    assert asking.fault(own, template="topic", labels=[" a", " b"]) == ("conflicting_fields", "items[0].query")


def test_token_ids_go_with_no_template(asking):
    asking.job([[1]], template="none", query=[2], label_token_ids=[1, 2])
    assert asking.fault([[1]], query="q") == ("text_required", "items[0]")
    assert asking.fault([Item(token_ids=[1], query="q")]) == ("text_required", "items[0]")
    assert asking.fault(query=[1]) == ("text_required", "query")
    assert asking.fault([Item(text="a", query=[1])]) == ("text_required", "items[0].query")


@pytest.mark.parametrize("template", ["none", "topic", "query-likelihood"])
def test_the_models_own_labels_are_not_those_of_another_template(template, asking):
    assert asking.fault(template=template) == ("labels_required", "labels")


def test_a_target_labels_or_the_templates_own_target_are_asked_for(asking):
    one = asking.parameters(query="q", method="likelihood", target="Yes, it is.")
    assert (one.target, one.labels, one.label_token_ids, one.normalize) == ("Yes, it is.", None, [], "mean")
    several = asking.parameters(query="q", method="likelihood", labels=["Yes, it is.", "No"], normalize="sum")
    assert (several.target, several.labels, several.normalize) == (None, ["Yes, it is.", "No"], "sum")
    own = asking.parameters(query="q", method="likelihood", template="query-likelihood")
    assert (own.target, own.labels, own.template) == (None, None, QUERY_LIKELIHOOD)
    assert asking.parameters(method="likelihood", template="fixed").target == " Ann"
    assert asking.parameters(query="q", method="likelihood", template="choice").labels == [" A", " B", " C", " D"]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"method": "likelihood", "template": "none"}, "target_required", "target"),
        ({"method": "likelihood", "template": "query-likelihood"}, "query_required", "query"),
        ({"query": "q", "method": "likelihood", "label_token_ids": [1, 2]}, "conflicting_fields", "label_token_ids"),
        ({"query": "q", "method": "likelihood", "target": "a", "labels": ["a", "b"]}, "conflicting_fields", "target"),
        ({"query": "q", "method": "likelihood", "target": "a", "apply_softmax": False}, "conflicting_fields", "apply_softmax"),
        ({"query": "q", "method": "likelihood", "target": ""}, "empty_target", "target"),
        ({"query": "q", "method": "likelihood", "target": "\0"}, "nul_character", "target"),
        ({"query": "q", "method": "likelihood", "target": "x" * 100_001}, "out_of_range", "target"),
        ({"query": "q", "method": "likelihood", "labels": ["a"]}, "label_count", "labels"),
        ({"query": "q", "method": "likelihood", "labels": ["a", "b", "a"]}, "duplicate_label", "labels[2]"),
        ({"query": "q", "method": "likelihood", "labels": ["a", ""]}, "empty_target", "labels[1]"),
        ({"query": "q", "target": "a"}, "conflicting_fields", "target"),
        ({"query": "q", "normalize": "mean"}, "conflicting_fields", "normalize"),
        ({"query": "q", "method": "likelihood", "template": "fixed"}, "conflicting_fields", "query"),
        ({"query": "q", "calibrate": True, "apply_softmax": False}, "conflicting_fields", "apply_softmax"),
        ({"template": "none", "calibrate": True, "label_token_ids": [1, 2]}, "empty_prompt", "calibrate"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(fields, code, field, asking):
    assert asking.fault(**fields) == (code, field)


def test_items_have_no_labels_of_their_own_where_texts_are_compared(asking):
    for name, own in (("labels", {"labels": ["a", "b"]}), ("label_token_ids", {"label_token_ids": [1, 2]})):
        items = ["a", Item(text="b", **own)]
        found = asking.fault(items, query="q", method="likelihood", target="x")
        assert found == ("conflicting_fields", f"items[1].{name}")


def test_calibrated_and_deterministic_are_kept(asking):
    assert asking.parameters(query="q", calibrate=True).calibrate
    assert asking.parameters(query="q", deterministic=True).deterministic
    assert asking.parameters(template="topic", labels=[" a", " b"], calibrate=True).calibrate


def test_a_model_that_was_not_checked_gives_its_jobs_a_warning(asking):
    (warning,) = asking.job(query="q").warnings
    assert warning.startswith("unverified_model: ")
    assert asking.with_card(is_verified=True).job(query="q").warnings == []
