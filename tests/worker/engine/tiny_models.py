"""Tiny causal language models of many families, random but seeded, saved as checkpoints with a tokenizer of their own."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 300  # of the tokenizer
NUM_ROWS = 320  # of the embedding, padded as real ones are

_COMMON = {
    "vocab_size": NUM_ROWS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # answers far from flat, so that an error shows
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8}
CONFIGS = {
    "qwen3": lambda: transformers.Qwen3Config(**_GROUPED, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**_GROUPED),
    "gemma2": lambda: transformers.Gemma2Config(**_GROUPED, sliding_window=8, final_logit_softcapping=3.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_GROUPED, sliding_window=8, pad_token_id=0),
    "cohere": lambda: transformers.CohereConfig(**_GROUPED, logit_scale=0.25),
    "granite": lambda: transformers.GraniteConfig(**_GROUPED, logits_scaling=4.0),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**_COMMON),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=NUM_ROWS, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.3
    ),
}


def save(folder, config, *, seed=0, **tokenizer_options):
    """Save a random model of this configuration, with a byte-level tokenizer, and return it."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, **tokenizer_options)
    return model


def save_tokenizer(folder, **options):
    """Save a tokenizer of 300 ids: the bytes, and words beyond."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = alphabet + [f"<{number}>" for number in range(VOCAB_SIZE - len(alphabet))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)
