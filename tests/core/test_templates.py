"""Templates: slots are filled once, seams part, and what is no slot is refused by its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.builtin_templates import PLAIN, QWEN3_RERANKER
from core.errors import Refused
from core.templates import NONE, NONE_ITEM_FIRST, Slot, Template, fill, sections

anything = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


def test_a_template_is_words_slots_and_seams():
    assert sections("a {query}{|}b{{{item}}}") == [["a ", Slot("query")], ["b{", Slot("item"), "}"]]


@given(query=anything, item=anything, instruction=anything)
def test_what_looks_like_a_slot_inside_a_value_stays_as_it_is(query, item, instruction):
    (section,) = sections("<{instruction}>{query}|{item}")
    values = {"query": query, "item": item, "instruction": instruction}
    assert fill(section, values) == f"<{instruction}>{query}|{item}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{query}", "has the slot {item}"),
        ("", "has the slot {item}"),
        ("{item} {document}", "'{document}' at character 7"),
        ("{item} {", "'{' at character 7"),
        ("{item} }", "'}' at character 7"),
        ("{item}{}", "'{}' at character 6"),
    ],
)
def test_a_template_that_cannot_be_meant_is_refused_by_its_place(text, complaint):
    with pytest.raises(Refused) as refused:
        sections(text)
    assert complaint in refused.value.detail


@pytest.mark.parametrize("template", [*PLAIN, NONE_ITEM_FIRST, QWEN3_RERANKER], ids=lambda template: template.text[:20])
def test_every_template_that_we_ship_parses(template):
    assert sections(template.text)


def test_a_version_changes_with_everything_that_changes_a_prompt():
    base = Template("t", "{item}")
    others = [Template("t", "{item} "), Template("t", "{item}", instruction="x"), Template("t", "{item}", is_chat=True)]
    assert len({template.version for template in (base, *others)}) == 4
    assert Template("t", "{item}", labels=["a", "b"]).version == base.version, "labels are stored with the job"
    assert NONE.version != NONE_ITEM_FIRST.version
