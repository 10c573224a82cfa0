"""A worker that notes its stages (``stage_times``), its engine's included: for ``bench_system``, which starts it.

    python benchmarks/timed_worker.py worker

Stages of a chunk, each by the thread that has it: claim, tokenise, wait, save, end. Stages of the batcher: take (which
sequences go next), build (their arrays), send (to the engine process), settle (hand out their scores).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import stage_times

from worker import score_chunk
from worker.batcher import Batcher
from worker.engine import child_handle
from worker.engine.frames import Kind
from worker.ledger import Ledger
from worker.piece import Piece
from worker.pool import Pool

TIMED_ENGINE = str(Path(__file__).with_name("timed_engine.py"))
ENGINE = ["-P", "-m", "worker.engine.child"]


def install() -> None:
    """Note the batcher's stages of this process, and let its engine note its own."""
    stage_times.wrap(Batcher, "score", "wait", _sequences)
    stage_times.wrap(Batcher, "_settle", "settle")
    stage_times.wrap(Pool, "take", "take", lambda _, piece: stage_times.LEFT_OUT if piece is None else {})
    stage_times.wrap(Piece, "batch", "build")
    stage_times.wrap(
        child_handle.ChildHandle,
        "send",
        "send",
        lambda arguments, _: {} if arguments[1] is Kind.BATCH else stage_times.LEFT_OUT,
    )
    child_handle.subprocess = SimpleNamespace(Popen=_start_engine, DEVNULL=subprocess.DEVNULL)


def install_chunks() -> None:
    """Note the stages of chunks."""
    stage_times.wrap(Ledger, "take", "claim", _claimed)
    stage_times.wrap(score_chunk, "prepare", "tokenise")
    stage_times.wrap(Ledger, "save", "save", lambda arguments, _: {"items": arguments[1].num_items})
    stage_times.wrap(Ledger, "end", "end")


def _sequences(arguments: tuple[Any, ...], _outcomes: Any) -> dict[str, Any]:
    return {"items": len(arguments[1].lengths_B)}


def _claimed(_arguments: tuple[Any, ...], taken: Any) -> Any:
    if taken is None:
        return stage_times.LEFT_OUT
    claim, _ = taken
    return {"small": claim.is_small, "items": claim.num_items}


def _start_engine(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    assert command[1:4] == ENGINE, command
    return subprocess.Popen([command[0], "-P", TIMED_ENGINE, *command[4:]], **options)


def main() -> None:
    from rankmill.cli import app

    stage_times.open_file("worker")
    install()
    install_chunks()
    app(sys.argv[1:])


if __name__ == "__main__":
    main()
