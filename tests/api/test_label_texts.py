"""Labels as texts: one token each, their blanks counted, and never a guess. The tokenizer is Qwen3's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import Asking

from api.readers import Reader
from api.requests import Item
from core.templates import Template
from store.tokenizer import ByteTokenizer

YES, SPACE_YES, NO, SPACE_NO = 9693, 9834, 2152, 902
INSIDE_A_LINE = Template("inside", "{item} Answer:", labels=["yes", "no"])
AFTER_A_BREAK = Template("break", "{item}\nAnswer:\n")
AFTER_A_CONTROL_TOKEN = Template("control", "{item}<|im_start|>")


@pytest.fixture(scope="module")
def asking(asking):
    own = [INSIDE_A_LINE, AFTER_A_BREAK, AFTER_A_CONTROL_TOKEN]
    return asking.with_card(templates=[*asking.reader.card.templates, *own])


@pytest.mark.parametrize("template", ["break", "control"])
def test_after_white_space_or_a_control_token_a_label_is_what_it_says(template, asking):
    assert asking.parameters(template=template, labels=["yes", "no"]).label_token_ids == [YES, NO]
    assert asking.parameters(template=template, labels=[" yes", " no"]).label_token_ids == [SPACE_YES, SPACE_NO]


@pytest.mark.parametrize("template", ["none", "topic", "inside"])
def test_inside_a_line_a_label_without_its_blank_is_refused_with_both_candidates(template, asking):
    found = asking.refusal(template=template, labels=[" yes", "no"])
    assert (found.code, found.field) == ("ambiguous_label", "labels[1]")
    assert "'no' (2152) and ' no' (902)" in found.detail
    assert asking.parameters(template=template, labels=[" yes", " no"]).label_token_ids == [SPACE_YES, SPACE_NO]
    assert asking.parameters(template=template, label_token_ids=[YES, NO]).label_token_ids == [YES, NO]


def test_a_label_whose_form_with_a_blank_is_no_token_is_not_ambiguous(asking):
    (digit,), with_blank = asking.reader.label_tokens("7"), asking.reader.label_tokens(" 7")
    assert len(with_blank) == 2
    assert asking.parameters(template="none", labels=["7", " yes"]).label_token_ids == [digit, SPACE_YES]


def test_an_items_own_label_is_as_ambiguous_as_the_jobs(asking):
    found = asking.refusal([Item(text="a", labels=[" yes", "no"])], template="topic")
    assert (found.code, found.field, found.item) == ("ambiguous_label", "items[0].labels[1]", 0)


def test_a_templates_own_labels_are_meant_as_they_stand(asking):
    assert asking.parameters(template="inside").label_token_ids == [YES, NO]
    assert asking.parameters(template="choice", query="q").label_token_ids == [362, 425, 356, 422]


def test_a_label_of_several_tokens_is_refused_with_them_and_with_what_would_be_one(asking):
    found = asking.refusal(query="q", labels=["yes", "Antidisestablishmentarianism"])
    assert (found.code, found.field) == ("label_not_one_token", "labels[1]")
    assert "is 6 tokens of this model" in found.detail
    found = asking.refusal(query="q", labels=["yes", "poetry"])
    assert "with a leading blank, ' poetry', it is one: 31249" in found.detail


def test_the_name_of_a_special_token_is_no_label_and_its_id_is(asking):
    assert asking.fault(query="q", labels=["<|im_end|>", "no"]) == ("label_not_one_token", "labels[0]")
    assert asking.parameters(query="q", label_token_ids=[151_645, NO]).label_token_ids == [151_645, NO]


@pytest.mark.parametrize(
    ("label_id", "is_taken"),
    [(-1, False), (0, True), (151_642, True), (151_643, True), (151_668, True), (151_669, False), (151_935, False)],
)
def test_added_tokens_are_in_the_vocabulary_and_padding_rows_are_not(label_id, is_taken, asking):
    if is_taken:
        assert asking.parameters(query="q", label_token_ids=[1, label_id]).label_token_ids == [1, label_id]
    else:
        assert asking.fault(query="q", label_token_ids=[1, label_id]) == (
            "label_out_of_vocabulary",
            "label_token_ids[1]",
        )


def test_the_order_of_labels_is_kept_and_no_two_are_the_same_token(asking):
    assert asking.parameters(query="q", labels=["no", "yes"]).label_token_ids == [NO, YES]
    assert asking.fault(query="q", labels=["no", "yes", "no"]) == ("duplicate_label", "labels[2]")


def test_a_template_whose_labels_this_model_can_not_say_asks_for_others(asking):
    card = replace(
        asking.reader.card, tokenizer="bytes", vocab_size=256, default_template="choice", default_label_token_ids=None
    )
    found = Asking(Reader(card, ByteTokenizer())).refusal(query="q")
    assert (found.code, found.field) == ("label_not_one_token", "labels")
    assert "the template 'choice' is 2 tokens" in found.detail
