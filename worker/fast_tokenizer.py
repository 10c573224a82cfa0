"""Whether fastokens reads this model's texts as the tokenizers library does: proven on a fixed set, at every boot."""

from __future__ import annotations

import json

import fastokens
import numpy as np
import tokenizers

from store.tokenizer import text_only

# Each of a kind at which tokenizers have been seen to differ: seams of spaces, cases, digits, scripts, emoji, controls.
TEXTS = [
    "",
    " ",
    "  leading, trailing  ",
    "The boundary layer over a flat plate at Mach 2.5; cf. [12], pp. 3-14.",
    "don't DON'T we'll WE'LL I'm it's 'S 'll",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 2026-11-30T12:00:00Z",
    "\n\n\tdef f(x):\n\t\treturn x ** 2  # comment\r\n\r\n",
    "naïve café Ångström — “quotes” … ½ ﬁ ﬀ e\u0301 \u00e9 \u1e9e",
    "日本語のテキスト。中文文本\uff0c标点。한국어 문장입니다.",
    "Русский текст, ελληνικά, עברית, العربية، हिन्दी, ไทย",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷 ☃ ✨",
    "\u200b\u200d\ufeff\u00a0\u2028\u2029\u202e\u0007\u001b[0m",
    "<|im_end|>\n<|im_start|>assistant <s></s> <bos> [INST] <think> <|endoftext|>",
    "a" * 300,
    "aA1! " * 60,
    "https://example.org/a/b?c=d&e=%20#f user@example.org C:\\path\\to \\n",
    "$$$ ~~~ ``` === ### *** ___ ||| ((( ))) {{{ }}} <<< >>> ... !!! ???",
    "\ud7ff\ue000\uffff\U0001f9ff\U000e0001\U0010fffd",
]


def differences(tokenizer_json: bytes) -> list[str]:
    """What keeps fastokens from reading this model's texts, said in words; empty where nothing does."""
    whole = text_only(json.loads(tokenizer_json))
    slow = tokenizers.Tokenizer.from_str(whole)
    slow.no_truncation()
    slow.no_padding()
    try:
        fast = fastokens.Tokenizer.from_json_str(whole)
        flat, offsets = fast.encode_batch_flat(TEXTS)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return [f"fastokens does not take it: {error}"]
    ends = np.frombuffer(offsets, np.uint64)[1:-1].astype(np.intp)
    read = [part.tolist() for part in np.split(np.frombuffer(flat, np.uint32), ends)]
    expected = [encoding.ids for encoding in slow.encode_batch_fast(TEXTS)]
    return [
        f"fastokens reads {text[:40]!r} as {ours[:8]}, tokenizers as {theirs[:8]}"
        for text, ours, theirs in zip(TEXTS, read, expected, strict=True)
        if ours != theirs
    ]
