"""The packed engine on tiny real models, on a CPU: the same scores as one prompt at a time, whatever they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from label_kernels import AttentionPlan, reference
from tiny_models import _COMMON, _GROUPED, CONFIGS, NUM_ROWS, save

from worker.batches import plan_packed
from worker.engine.checkpoint import load
from worker.engine.child import load as load_engine
from worker.engine.options import EngineOptions
from worker.engine.packed import PackedEngine, load_packed
from worker.engine.packed_model import PackedModel, pack
from worker.engine.padded_pass import twin_of
from worker.engine.process import EngineProcess
from worker.engine.protocol import NO_LABEL, EngineOutOfMemory, EngineRefused, Prompts
from worker.piece import Request

TOLERANCE = 1e-5
_planned = reference.planned_prefix_attention
_TWO_KV = {**_COMMON, "num_key_value_heads": 2}
FAMILIES = {
    **CONFIGS,
    "qwen2": lambda: transformers.Qwen2Config(**_TWO_KV),
    "mistral": lambda: transformers.MistralConfig(**_GROUPED, sliding_window=8),
    "gemma2": lambda: transformers.Gemma2Config(
        **_GROUPED, sliding_window=8, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "phi3": lambda: transformers.Phi3Config(**_GROUPED, pad_token_id=0, eos_token_id=1),
    "olmo2": lambda: transformers.Olmo2Config(**_TWO_KV),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_GROUPED, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
    ),
}


def options_of(folder, **options):
    return EngineOptions(model=str(folder), model_name="tiny", device="cpu", torch_threads=1, **options)


def engine_of(folder, **options):
    engine = load_packed(options_of(folder, engine="packed", **options), lambda: None)
    assert isinstance(engine, PackedEngine), engine
    return engine


def ids(generator, count):
    return generator.integers(0, 300, count).astype(np.int32)


def prompts_of(kind):
    """Prompts, and for each its labels and whether they are a path."""
    generator = np.random.default_rng(0)
    lengths = [1, 40, 3, 5, 21, 34, 2, 17, 9, 60]
    if kind == "apart":
        prompts = [ids(generator, length) for length in lengths]
    else:
        template, queries = ids(generator, 40), [ids(generator, 20) for _ in range(3)]
        prompts = [
            np.concatenate([template, queries[nth % 3], ids(generator, length)]) for nth, length in enumerate(lengths)
        ]
        prompts += [template, prompts[0], np.concatenate([prompts[1], ids(generator, 30)]), ids(generator, 33)]
    labels = [ids(generator, 1 + nth % 4) for nth in range(len(prompts))]
    is_path = [kind == "paths" and nth % 2 == 0 for nth in range(len(prompts))]
    whole = [
        np.concatenate([prompt, own[:-1]]) if path else prompt
        for prompt, own, path in zip(prompts, labels, is_path, strict=True)
    ]
    return whole, labels, is_path


@torch.inference_mode()
def plain(model, prompts, labels, is_path):
    """One forward a prompt, nothing of ours in it."""
    model.set_attn_implementation("eager")
    rows = []
    for prompt, own, path in zip(prompts, labels, is_path, strict=True):
        ids = torch.from_numpy(prompt.astype(np.int64))[None].to(model.device)
        logprobs = model(ids).logits[0].float().log_softmax(-1)
        positions = range(-len(own), 0) if path else [-1] * len(own)
        rows.append([logprobs[position, label].item() for position, label in zip(positions, own.tolist(), strict=True)])
    return rows


def request_of(prompts, labels, is_path):
    label_ids = np.full((len(prompts), max(map(len, labels))), NO_LABEL, np.int32)
    for row, own in enumerate(labels):
        label_ids[row, : len(own)] = own
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    return Request(0, Prompts(np.concatenate(prompts), lengths, label_ids, np.array(is_path)))


def score(engine, request, order):
    """The scores of these rows of the request, in batches as the pool plans them; and tokens not computed, of all."""
    piece = request.piece().pick(order)
    batches = plan_packed(piece.tokens(), engine.info.max_batch_tokens)
    logprobs, num_cached = request.label_logprobs, 0
    for places in batches:
        part = piece.pick(places)
        scores = engine.score(part.batch("packed"))
        logprobs[part.rows] = np.nan
        logprobs[part.rows, : scores.label_logprobs_BL.shape[1]] = scores.label_logprobs_BL
        num_cached += int(scores.cached_tokens_B.sum())
    return num_cached


def check(request, expected):
    for row, own in enumerate(expected):
        assert np.abs(request.label_logprobs[row, : len(own)] - own).max() <= TOLERANCE
        assert np.isnan(request.label_logprobs[row, len(own) :]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_one_prompt_at_a_time_under_any_sharing(tmp_path, family):
    model = save(tmp_path, FAMILIES[family]())
    engine = engine_of(tmp_path)
    for kind in ("apart", "shared", "paths"):
        prompts, labels, is_path = prompts_of(kind)
        expected = plain(model, prompts, labels, is_path)
        assert np.ptp([own[0] for own in expected]) > 0.1  # the prompts do matter
        request = request_of(prompts, labels, is_path)
        for seed in range(2):
            num_cached = score(engine, request, np.random.default_rng(seed).permutation(len(prompts)))
            check(request, expected)
        assert (num_cached > 400) == (kind != "apart")


def test_a_batch_in_any_order_is_scored_right_if_it_shares_less(tmp_path):
    model = save(tmp_path, CONFIGS["qwen3"]())
    engine = engine_of(tmp_path)
    prompts, labels, is_path = prompts_of("paths")
    request = request_of(prompts, labels, is_path)
    for seed in range(5):
        piece = request.piece().pick(np.random.default_rng(seed).permutation(len(prompts)))
        request.label_logprobs[piece.rows] = engine.score(piece.batch("packed")).label_logprobs_BL
        check(request, plain(model, prompts, labels, is_path))


def test_a_batch_far_beyond_the_budget_is_scored_in_parts(tmp_path):
    model = save(tmp_path, CONFIGS["llama"]())
    engine = engine_of(tmp_path, max_batch_tokens=64)
    prompts, labels, is_path = prompts_of("paths")
    request = request_of(prompts, labels, is_path)
    piece = request.piece()
    request.label_logprobs[:] = engine.score(piece.batch("packed")).label_logprobs_BL
    check(request, plain(model, prompts, labels, is_path))


def test_a_prefix_is_paid_for_once_and_counted_as_cached_for_the_others(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    prefix = np.arange(100, dtype=np.int32)
    prompts = [np.append(prefix, np.int32(end)) for end in (1, 2, 3)]
    request = request_of(prompts, [np.array([1, 2])] * 3, [False] * 3)
    scores = engine_of(tmp_path).score(request.piece().batch("packed"))
    assert scores.cached_tokens_B.tolist() == [0, 100, 100]


def test_only_scored_tokens_pass_the_last_layer_whole(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    engine = engine_of(tmp_path)
    seen = []
    engine._model._layers[-1].mlp.down_proj.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[1]))
    prompts, labels, is_path = prompts_of("shared")
    engine.score(request_of(prompts, labels, is_path).piece().batch("packed"))
    assert seen[-1] == 16  # as many as 14 are filled up to


@torch.library.custom_op("tests::planned_attention", mutates_args=())
def _opaque(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: list[torch.Tensor],
    tile_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    plan = AttentionPlan(*plan, tile_rows)
    return _planned(query, key, value, plan, scale=scale, window=window, softcap=softcap)


@_opaque.register_fake
def _(query, *_):
    return torch.empty_like(query)


def opaque_attention(query, key, value, plan, *, scale, window, softcap, sinks):
    """The reference as a compiler sees the kernel: one operation."""
    assert sinks is None
    return _opaque(query, key, value, list(plan[:4]), plan.tile_rows, scale, window, softcap)


WRITING = {  # layers that change tensors where they are
    "olmo, clipped": lambda: transformers.OlmoConfig(**_COMMON, clip_qkv=0.02),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **_GROUPED, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt2", *WRITING])
def test_layers_that_a_compiler_traces_give_the_same_scores_and_are_traced_once_a_kind(tmp_path, family, monkeypatch):
    model = save(tmp_path, (FAMILIES | WRITING)[family]())
    monkeypatch.setattr("worker.engine.packed_model.compiled", lambda traced, _: traced)  # guarded all the same
    monkeypatch.setattr("worker.engine.packed_attention.reference.planned_prefix_attention", opaque_attention)
    torch._dynamo.reset()
    engine = engine_of(tmp_path)
    engine._model.compile()
    counts = []
    for kind in ("apart", "shared", "paths", "apart"):
        prompts, labels, is_path = prompts_of(kind)
        request = request_of(prompts, labels, is_path)
        score(engine, request, np.arange(len(prompts)))
        check(request, plain(model, prompts, labels, is_path))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[-1] == counts[1], counts


def test_the_model_whose_attention_was_taken_leaves_its_twin_as_it_was(tmp_path):
    model = save(tmp_path, CONFIGS["gemma3"]())
    loaded = load(options_of(tmp_path), torch.device("cpu")).model
    twin = twin_of(loaded)
    assert isinstance(pack(loaded), PackedModel)
    prompt = torch.arange(30)[None]
    with torch.inference_mode():
        assert torch.equal(twin(prompt).logits, model(prompt).logits)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: transformers.BloomConfig(vocab_size=NUM_ROWS, hidden_size=32, n_layer=2, n_head=4), "no positions"),
        (
            lambda: transformers.FalconConfig(
                vocab_size=NUM_ROWS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
            ),
            "attends 0 times",
        ),
        (lambda: transformers.StableLmConfig(**_TWO_KV), "hand no keyword arguments"),
        (lambda: transformers.DeepseekV3Config(**_COMMON, num_key_value_heads=4), "unlike shapes"),
        (
            lambda: transformers.LlamaConfig(
                **_GROUPED, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
            ),
            "longest prompt",
        ),
    ],
)
def test_models_that_do_something_else_are_not_packed_and_the_reason_is_named(config, reason):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config()).float().eval()
    before = model.config._attn_implementation
    assert reason in pack(model)
    assert model.config._attn_implementation == before


def test_a_window_that_is_only_in_the_mask_is_noticed():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES["mistral"]()).float().eval()

    class WithoutWindow:
        sliding_window = None
        __getattr__ = model.config.__getattribute__

    for layer in model.model.layers:
        layer.self_attn.config = WithoutWindow()
    assert "window of 8" in pack(model)


def test_logits_changed_in_a_way_that_the_config_does_not_say_are_noticed():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]()).float().eval()
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: 1.5 * logits)
    assert "unlike its own" in pack(model)


def test_a_model_that_can_not_be_packed_is_refused_where_packed_is_asked_for(tmp_path):
    save(tmp_path, transformers.StableLmConfig(**_TWO_KV))
    with pytest.raises(EngineRefused, match="hand no keyword arguments"):
        load_engine(options_of(tmp_path, engine="packed"), lambda: None)


def test_on_a_cpu_the_padded_engine_is_chosen_unless_packed_is_asked_for(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    for engine, layout in (("auto", "padded"), ("padded", "padded"), ("packed", "packed")):
        assert load_engine(options_of(tmp_path, engine=engine), lambda: None).info.layout == layout


def test_memory_that_a_cpu_does_not_have_is_named(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    engine = engine_of(tmp_path)
    engine._model._layers[0].register_forward_hook(lambda *_: torch.empty(1 << 50))
    prompts, labels, is_path = prompts_of("apart")
    with pytest.raises(EngineOutOfMemory):
        engine.score(request_of(prompts, labels, is_path).piece().batch("packed"))


def test_an_engine_process_packs_two_batches_at_a_time(tmp_path):
    model = save(tmp_path, CONFIGS["qwen3"]())
    process = EngineProcess(options_of(tmp_path, engine="packed"), start_timeout_seconds=100, hang_seconds=30)
    process.start()
    try:
        assert process.wait_ready(100).layout == "packed"
        prompts, labels, is_path = prompts_of("paths")
        request = request_of(prompts, labels, is_path)
        score(process, request, np.arange(len(prompts)))
    finally:
        process.stop()
    check(request, plain(model, prompts, labels, is_path))
