"""Time each kernel against plain torch and against its floor on one GPU; needs torch, triton and numpy alone.

    PYTHONPATH=kernels python3 benchmarks/bench_kernels.py [--only labels|products]

Device time between two CUDA events, the cache flushed before each run, median of 25; an empty kernel takes
2.8 us so measured on an H200. A floor is the larger of bytes over the copy rate and operations over the rate of a large
bfloat16 product, both measured first. Products and what surrounds them (``product_lines``) are also timed one after another for two
seconds, "lasting", because a chip at its power limit is slower. Ends in a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict

import numpy as np
import product_lines
import torch
import triton
import workloads
from kernel_times import DEVICE, NUM_RUNS, Line, ceilings, device_ms
from label_kernels import gather_label_logprobs, label_logprobs, plan_attention, prefix_attention, reference
from label_kernels.tuned import tuned_for
from torch.nn.attention.varlen import varlen_attn

VOCABULARY, HIDDEN = workloads.VOCABULARY, 1024  # Qwen3-0.6B's head
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 16, 8, 128  # and its attention


def planning_ms(groups: list[workloads.Group]) -> float:
    """Return the median time on the host to plan the workload's first batch, its copy to the GPU included."""
    lengths, parents = map(np.asarray, workloads.first_batch(groups))
    times = []
    for _ in range(NUM_RUNS):
        begin = time.perf_counter()
        plan_attention(
            lengths, parents, num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, device=DEVICE
        )
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def gather_line(num_rows: int, flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """Existing logits in bfloat16, rows padded to 151,936."""
    logits_BV = torch.randn(num_rows, 151936, device=DEVICE).bfloat16()[:, :VOCABULARY]
    ids_BL = torch.tensor(workloads.LABEL_IDS, device=DEVICE).repeat(num_rows, 1)

    def plain() -> torch.Tensor:
        return logits_BV.log_softmax(-1).gather(1, ids_BL)

    truth = reference.gather_label_logprobs(logits_BV, ids_BL)
    return Line(
        f"gather_label_logprobs, {num_rows} rows",
        device_ms(lambda: gather_label_logprobs(logits_BV, ids_BL), flush),
        device_ms(plain, flush),
        2 * num_rows * VOCABULARY / rates[0],
        (gather_label_logprobs(logits_BV, ids_BL) - truth).abs().max().item(),
        (plain() - truth).abs().max().item(),
    )


def head_line(num_rows: int, weight_VD: torch.Tensor, flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """Hidden states to label log-probabilities."""
    hidden_BD = torch.randn(num_rows, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    ids_BL = torch.tensor(workloads.LABEL_IDS, device=DEVICE).repeat(num_rows, 1)

    def plain() -> torch.Tensor:
        return (hidden_BD @ weight_VD.T).float().log_softmax(-1).gather(1, ids_BL)

    weight_float_VD = weight_VD.float()
    truth = torch.cat(
        [
            reference.label_logprobs(rows.float(), weight_float_VD, ids)
            for rows, ids in zip(hidden_BD.split(512), ids_BL.split(512), strict=True)
        ]
    )
    num_bytes = 2 * (VOCABULARY + num_rows) * HIDDEN
    return Line(
        f"label_logprobs, {num_rows} rows",
        device_ms(lambda: label_logprobs(hidden_BD, weight_VD, ids_BL), flush),
        device_ms(plain, flush),
        max(num_bytes / rates[0], 2 * num_rows * VOCABULARY * HIDDEN / rates[1]),
        (label_logprobs(hidden_BD, weight_VD, ids_BL) - truth).abs().max().item(),
        (plain() - truth).abs().max().item(),
    )


def attention_line(name: str, groups: list[workloads.Group], flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """One layer of the workload's first 65,536-token batch, against FlashAttention over copied keys."""
    lengths, parents = workloads.first_batch(groups)
    num_tokens = sum(lengths)
    query, key, value = (
        torch.randn(num_tokens, heads, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
        for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    )
    scale = HEAD_DIM**-0.5
    plan = plan_attention(
        lengths, parents, num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, device=DEVICE
    )

    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    places = [torch.arange(int(start), int(start) + length) for start, length in zip(starts, lengths, strict=True)]
    chains = [
        torch.cat([places[parent], own]) if parent >= 0 else own for own, parent in zip(places, parents, strict=True)
    ]
    copied = torch.cat(chains).to(DEVICE)
    ends_of_rows, ends_of_keys = (
        torch.tensor([0, *map(len, parts)], device=DEVICE).cumsum(0).int() for parts in (places, chains)
    )
    longest_rows, longest_keys = max(map(len, places)), max(map(len, chains))

    def plain() -> torch.Tensor:
        out = varlen_attn(
            query,
            key[copied],
            value[copied],
            ends_of_rows,
            ends_of_keys,
            longest_rows,
            longest_keys,
            scale=scale,
            window_size=(-1, 0),
        )
        assert isinstance(out, torch.Tensor)
        return out

    num_pairs = sum(
        len(own) * (len(chain) - len(own)) + len(own) * (len(own) + 1) // 2
        for own, chain in zip(places, chains, strict=True)
    )
    num_bytes = 2 * num_tokens * HEAD_DIM * 2 * (NUM_HEADS + NUM_KV_HEADS)
    truth = reference.planned_prefix_attention(query.float(), key.float(), value.float(), plan, scale=scale)
    return Line(
        f"prefix_attention, {name}, {num_tokens} tokens",
        device_ms(lambda: prefix_attention(query, key, value, plan, scale=scale), flush),
        device_ms(plain, flush),
        max(num_bytes / rates[0], 4 * num_pairs * NUM_HEADS * HEAD_DIM / rates[1]),
        (prefix_attention(query, key, value, plan, scale=scale) - truth).abs().max().item(),
        (plain() - truth).abs().max().item(),
    )


def main() -> int:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=["labels", "products"])
    only = parser.parse_args().only
    torch.manual_seed(0)
    flush = torch.empty(2**28, device=DEVICE)
    rates = ceilings(flush)
    lines: list[Line] = []
    if only != "products":
        weight_VD = torch.randn(VOCABULARY, HIDDEN, device=DEVICE, dtype=torch.bfloat16) * 0.03
        lines += [gather_line(num_rows, flush, rates) for num_rows in (16, 256, 4096)]
        lines += [head_line(num_rows, weight_VD, flush, rates) for num_rows in (16, 64, 256, 1024, 4096)]
        lines.append(attention_line("W1", workloads.shared_query(), flush, rates))
        lines.append(attention_line("W2", workloads.pairs(), flush, rates))
    if only != "labels":
        lines += product_lines.lines(flush, rates)

    chip = torch.cuda.get_device_name()
    print(f"{chip}, torch {torch.__version__}, triton {triton.__version__}, tuned for {tuned_for(DEVICE).name}")
    print(f"planning W1's first batch: {planning_ms(workloads.shared_query()):.2f} ms on the host")
    print(f"copy {rates[0] / 1e9:.2f} TB/s, bfloat16 product {rates[1] / 1e9:.0f} TFLOP/s\n")
    print(
        f"{'':42}{'ours ms':>9}{'torch ms':>10}{'floor ms':>10}{'of floor':>10}{'error':>10}{'torch err':>11}"
        f"{'lasting':>10}{'torch':>9}"
    )
    for line in lines:
        share = line.floor / line.ours
        print(
            f"{line.what:42}{line.ours:9.4f}{line.torch:10.4f}{line.floor:10.4f}{share:9.0%} "
            f"{line.error:10.1e}{line.torch_error:11.1e}"
            + ("" if line.lasting is None else f"{line.lasting:10.4f}{line.torch_lasting:9.4f}")
        )
    print(
        json.dumps(
            {"chip": chip, "torch": torch.__version__, "triton": triton.__version__, "lines": [*map(asdict, lines)]}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
