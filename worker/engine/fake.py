"""An engine without a model, for load and fault tests. Anyone can check every one of its scores.

Tokens are UTF-8 bytes; the first label's probability is ``zlib.crc32(bytes) / 2**32``, the others share the rest
equally. On a path, the probability of a target's byte is ``(1 + zlib.crc32(seen) % 255) / 256``, where ``seen`` is the
prompt and the target up to that byte, itself included. The scores depend on every byte, so a swapped order or a lost
byte shows. With the tokenizer of a real model, for the load that it makes, four bytes stand for each of its ids.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

from core.model_cards import ModelCard
from worker.engine.options import EngineOptions
from worker.engine.protocol import (
    NO_LABEL,
    Batch,
    EngineInfo,
    EngineOutOfMemory,
    FloatArray,
    IntArray,
    Launch,
    Scores,
    at_once,
)

MAX_TOKENS = 1 << 20
MAX_BATCH_TOKENS = 1 << 18
VOCAB_SIZE = 256

CRASHES = b"\x01crash"
HANGS = b"\x01hang"
GIVES_NAN = b"\x01nan"
TOO_LARGE_TOGETHER = b"\x01oom"
TOO_LARGE_ALONE = b"\x01OOM"


@dataclass(frozen=True, slots=True)
class FakeTroubles:
    """What goes wrong on purpose, or takes time: planted faults, a delay for every batch, a real ``tokenizer.json``."""

    has_faults: bool = False
    delay_seconds: float = 0.0
    tokenizer_file: str = ""

    @classmethod
    def from_environment(cls) -> FakeTroubles:
        """``RANKMILL_FAKE_FAULTS=1`` obeys planted faults; ``RANKMILL_FAKE_DELAY`` is in milliseconds;
        ``RANKMILL_FAKE_TOKENIZER`` is a file.
        """
        return cls(
            has_faults=os.environ.get("RANKMILL_FAKE_FAULTS", "0") == "1",
            delay_seconds=float(os.environ.get("RANKMILL_FAKE_DELAY", "0")) / 1_000,
            tokenizer_file=os.environ.get("RANKMILL_FAKE_TOKENIZER", ""),
        )


class FakeEngine:
    """Scores by checksum."""

    def __init__(self, options: EngineOptions, troubles: FakeTroubles) -> None:
        tokenizer_json = Path(troubles.tokenizer_file).read_bytes() if troubles.tokenizer_file else None
        self._token = np.dtype(np.uint8 if tokenizer_json is None else np.int32)
        self.info = EngineInfo(
            card=ModelCard(
                name=options.model_name,
                source=options.model,
                revision="1",
                dtype="float32",
                engine="fake",
                max_tokens=options.max_model_tokens or MAX_TOKENS,
                vocab_size=VOCAB_SIZE if tokenizer_json is None else _vocab_size(tokenizer_json),
                tokenizer="bytes" if tokenizer_json is None else "json",
                default_label_token_ids=[0, 1],
                is_verified=True,  # its rule is its definition
            ),
            tokenizer_json=tokenizer_json,
            engine_version="fake/1",
            max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
            layout="padded",
            device="cpu",
        )
        self._troubles = troubles
        self._never = threading.Event()

    def prepare(self, batch: Batch) -> Launch:
        """Nothing is done ahead."""
        return at_once(partial(self.score, batch))

    def score(self, batch: Batch) -> Scores:
        """The rule above, after any trouble that was planted."""
        vocab_size = self.info.card.vocab_size
        assert not len(batch.token_ids_T) or 0 <= batch.token_ids_T.min() <= batch.token_ids_T.max() < vocab_size
        text = memoryview(batch.token_ids_T.astype(self._token).tobytes())
        if self._troubles.has_faults:
            self._obey(text, len(batch.lengths_B))
        if self._troubles.delay_seconds:
            self._never.wait(self._troubles.delay_seconds)
        num_bytes_B = batch.lengths_B * self._token.itemsize
        ends = np.cumsum(num_bytes_B).tolist()
        checksums = [zlib.crc32(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        logprobs_BL = _logprobs(np.array(checksums, np.float64) / 2**32, batch.label_ids_BL)
        for row in np.flatnonzero(batch.is_path_B).tolist():
            target = batch.label_ids_BL[row][batch.label_ids_BL[row] != NO_LABEL]
            seen = text[ends[row] - num_bytes_B[row] : ends[row]]
            logprobs_BL[row] = np.nan
            logprobs_BL[row, : len(target)] = _path_logprobs(bytes(seen), target.astype(self._token))
        if self._troubles.has_faults and GIVES_NAN in bytes(text):
            bad = [GIVES_NAN in bytes(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
            logprobs_BL[bad] = np.nan
        return Scores(logprobs_BL, np.zeros(len(ends), np.int32))

    def _obey(self, text: memoryview, num_sequences: int) -> None:
        whole = bytes(text)
        if CRASHES in whole:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANGS in whole:
            self._never.wait()
        if TOO_LARGE_ALONE in whole or (TOO_LARGE_TOGETHER in whole and num_sequences > 1):
            raise EngineOutOfMemory(f"a batch of {num_sequences} sequences with a planted fault")


def _path_logprobs(seen: bytes, target: npt.NDArray[np.uint8 | np.int32]) -> list[float]:
    whole = seen + target[-1:].tobytes()
    first = len(whole) - (len(target) - 1) * target.itemsize
    ends = range(first, len(whole) + 1, target.itemsize)
    return [math.log((1 + zlib.crc32(whole[:end]) % 255) / 256) for end in ends]


def _vocab_size(tokenizer_json: bytes) -> int:
    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def _logprobs(first_B: npt.NDArray[np.float64], label_ids_BL: IntArray) -> FloatArray:
    is_label_BL = label_ids_BL != NO_LABEL
    num_others_B = np.maximum(is_label_BL.sum(axis=1) - 1, 1)
    probabilities_BL = np.repeat(((1 - first_B) / num_others_B)[:, None], label_ids_BL.shape[1], axis=1)
    probabilities_BL[:, :1] = first_B[:, None]
    with np.errstate(divide="ignore"):  # a probability of 0 has the logarithm -inf, which is right
        logprobs_BL = np.log(probabilities_BL)
    return np.where(is_label_BL, logprobs_BL, np.nan).astype(np.float32)
