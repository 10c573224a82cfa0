"""A model that would score wrongly is not served: each fault with its own reason."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from core.builtin_templates import PLAIN
from core.errors import Broken
from core.model_cards import ModelCard
from core.model_catalogue import catalogue
from core.model_entries import KnownAnswer, ModelEntry, parse
from core.settings import Settings
from core.templates import Template
from worker.engine.protocol import EngineInfo, EngineRefused, Scores
from worker.fast_tokenizer import differences
from worker.self_test import examine
from worker.serving import serve

WORDS = ["yes", "no", "right", "wrong", "?", "<s>"]


def tokenizer_json(*, bos=True):
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="?")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    if bos:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 5)])
    return tokenizer.to_str().encode()


def info(**changes):
    card = ModelCard("m", "m", "r", "float32", "padded", 100, len(WORDS), "json", **changes)
    return EngineInfo(card, tokenizer_json(), "padded/1", 1_000, "padded", "cpu")


def entry(**changes):
    known = [KnownAnswer(query="?", better="right", worse="wrong")]
    base = {"name": "m", "source": "m", "labels": ["yes", "no"], "known_answers": known}
    return ModelEntry(**(base | changes))


def settings(**changes):
    return Settings(tokenizer="tokenizers", **changes)


def truthful(batch):
    """Says yes where the prompt holds the word "right"."""
    ends = np.cumsum(batch.lengths_B)
    found = []
    for ids, labels in zip(np.split(batch.token_ids_T, ends[:-1]), batch.label_ids_BL, strict=True):
        yes = 0.9 if 2 in ids and 3 not in ids else 0.1 + 0.01 * len(ids)
        found.append([np.log(yes if label == 0 else 1 - yes) for label in labels])
    return Scores(np.array(found, np.float32), np.zeros(len(found), np.int32))


def test_a_model_that_passes_its_known_answers_is_verified():
    assert examine(serve(info(), entry(), settings()), entry(), truthful).is_verified


def test_a_model_without_known_answers_is_served_unverified():
    assert not examine(serve(info(), None, settings()), None, truthful).is_verified


@pytest.mark.parametrize(
    ("changes", "score", "reason"),
    [
        ({"labels": ["no", "yes"]}, truthful, "known answer failed"),
        ({"templates": {"bad": "TEMPLATE"}, "template": "bad"}, truthful, "known answer failed"),
        ({"margin": 0.9}, truthful, "higher by 0.9"),
        (
            {},
            lambda batch: Scores(np.full(batch.label_ids_BL.shape, -1.0, np.float32), batch.lengths_B),
            "does not read",
        ),
        ({}, lambda batch: Scores(np.full(batch.label_ids_BL.shape, np.nan, np.float32), batch.lengths_B), "NaN"),
    ],
    ids=["swapped labels", "wrong template", "margin", "constant scores", "nan"],
)
def test_a_model_that_answers_wrongly_is_refused(tmp_path, changes, score, reason):
    if "templates" in changes:
        path = tmp_path / "bad.txt"
        path.write_text("wrong {item}\n")
        changes = changes | {"templates": {"bad": str(path)}}
    with pytest.raises(EngineRefused, match=reason):
        examine(serve(info(), entry(**changes), settings()), entry(**changes), score)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": ["yes no", "no"]}, "'yes no' is 2 tokens"),
        ({"labels": ["yes", "yes"]}, "the same token"),
        ({"template": "unknown"}, r"\[m\]: m has no template 'unknown'"),
        ({"templates": {"mine": "/nowhere.txt"}, "template": "mine"}, "mine in /nowhere.txt"),
    ],
)
def test_an_entry_that_does_not_fit_its_model_is_refused_by_name(changes, reason):
    with pytest.raises(EngineRefused, match=reason):
        serve(info(), entry(**changes), settings())


def test_a_template_that_begins_a_text_twice_is_refused():
    twice = Template("twice", "<s><s>{item}", is_chat=True)
    served = serve(info(templates=[*PLAIN, twice]), None, settings())
    with pytest.raises(EngineRefused, match="twice has 2 tokens that begin a text"):
        examine(served, None, truthful)


def test_fastokens_is_refused_for_a_model_that_it_does_not_read_and_left_aside_by_auto():
    assert differences(tokenizer_json())
    with pytest.raises(EngineRefused, match="does not fit this model"):
        serve(info(), None, Settings(tokenizer="fastokens"))
    assert serve(info(), None, Settings()).card.tokenizer == "json"


def test_every_entry_that_we_ship_parses_and_can_be_verified():
    for found in catalogue("").values():
        assert found.is_verifiable
        assert found.template == "qwen3-reranker"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a]\nsource = 1", r"models.toml, \[a\]: Expected `str`, got `int` - at `\$.source`"),
        ("[a]\nsource = 'x'\nmax_token = 3", r"\[a\]: there is no field 'max_token'"),
        ("[a", "is no TOML"),
        ("[a]\nrevision = 'x'", "missing required field `source`"),
    ],
)
def test_a_models_file_with_a_fault_is_refused_by_entry_and_field(text, complaint):
    with pytest.raises(Broken, match=complaint):
        parse(text, file="models.toml")


def test_an_own_file_adds_entries_and_replaces_ours(tmp_path):
    path = tmp_path / "models.toml"
    path.write_text("[mine]\nsource = 'x'\n[qwen3-reranker-4b]\nsource = '/here'\n")
    found = catalogue(str(path))
    assert found["mine"].source == "x"
    assert found["qwen3-reranker-4b"].source == "/here"
    assert "qwen3-reranker-0_6b" in found
    with pytest.raises(Broken, match="RANKMILL_MODELS_FILE can't be read"):
        catalogue(str(tmp_path / "absent.toml"))
