"""Checkpoints that would give wrong scores are refused when they are loaded, each with its reason."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, save, save_tokenizer

from worker.engine.checkpoint import load
from worker.engine.options import EngineOptions
from worker.engine.protocol import EngineRefused

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def load_from(folder, **options):
    return load(EngineOptions(model=str(folder), **options), torch.device("cpu"))


def save_other(folder, model):
    model.save_pretrained(folder)
    save_tokenizer(folder)


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_causal_model_loads_in_float32_on_a_cpu_whatever_it_was_saved_in(tmp_path):
    save(tmp_path, CONFIGS["llama"]()).bfloat16().save_pretrained(tmp_path)
    assert load_from(tmp_path).dtype == "float32"
    assert load_from(tmp_path, dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: transformers.LlamaForSequenceClassification(CONFIGS["llama"]()), "LlamaForSequenceClassification"),
        (lambda: transformers.LlamaModel(CONFIGS["llama"]()), "LlamaModel"),
        (lambda: transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=300, **SMALL)), "BertForMaskedLM"),
    ],
)
def test_a_model_of_another_kind_is_refused_by_its_name(tmp_path, make, kind):
    save_other(tmp_path, make())
    with pytest.raises(EngineRefused, match=kind):
        load_from(tmp_path)


def test_an_encoder_decoder_model_is_refused(tmp_path):
    config = transformers.T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    save_other(tmp_path, transformers.T5ForConditionalGeneration(config))
    with pytest.raises(EngineRefused, match="encoder-decoder"):
        load_from(tmp_path)


def test_a_model_that_sees_both_sides_is_refused_even_when_it_calls_itself_causal(tmp_path):
    config = transformers.BertConfig(vocab_size=300, is_decoder=False, **SMALL)
    save_other(tmp_path, transformers.BertLMHeadModel(config))
    with pytest.raises(EngineRefused, match="both sides"):
        load_from(tmp_path)


@pytest.mark.parametrize("lost", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_a_checkpoint_that_lacks_weights_is_refused_rather_than_filled_with_random_ones(tmp_path, lost):
    save(tmp_path, CONFIGS["llama"]())
    change_weights(tmp_path, lambda weights: weights.pop(lost))
    with pytest.raises(EngineRefused, match=re.escape(lost)):
        load_from(tmp_path)


def test_a_head_that_is_tied_to_the_embedding_is_not_missing(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    load_from(tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, value):
    save(tmp_path, CONFIGS["llama"]())
    change_weights(tmp_path, lambda weights: weights["model.norm.weight"].fill_(value))
    with pytest.raises(EngineRefused, match=r"NaN or infinity in model\.norm\.weight"):
        load_from(tmp_path)


@pytest.mark.parametrize("model", ["/nowhere/at-all", "./nowhere"])
def test_a_folder_that_does_not_exist_is_named(model):
    with pytest.raises(EngineRefused, match=re.escape(model)):
        load_from(model)


def test_equal_folders_have_equal_revisions_and_other_weights_another(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        save(tmp_path / name, CONFIGS["gpt2"](), seed=seed)
    revisions = [load_from(tmp_path / name).revision for name in "abc"]
    assert revisions[0] == revisions[1] != revisions[2]


def test_a_models_attention_soft_cap_is_honoured(tmp_path):
    config = CONFIGS["gemma2"]()
    config.attn_logit_softcapping = 0.5
    save(tmp_path, config)
    ids = torch.arange(3, 20)[None]
    capped = load_from(tmp_path).model
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.inference_mode():
        assert torch.allclose(capped(ids).logits, expected(ids).logits, atol=1e-6)
        capped.config.attn_logit_softcapping = None
        for layer in capped.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        assert not torch.allclose(capped(ids).logits, expected(ids).logits, atol=1e-3), "the cap does matter here"
