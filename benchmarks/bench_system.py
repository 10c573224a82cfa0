"""The whole system on one machine, and its engine alone in the same visit: where the device's time goes.

    PYTHONPATH=.:kernels python3 benchmarks/bench_system.py --engine qwen3-0.6b --tokenizer tokenizer.json --out FOLDER
    python benchmarks/bench_system.py --engine tiny --items 2000 --million 0 --posts 20

Makes the model (random weights), measures its engine alone, then starts embedded Postgres and Valkey, the front end, the
scheduler and a worker for each GPU, and measures by jobs over HTTP, part after part:

    alone     the engine process and its batcher, fed by this process: W1 as token ids, then texts of W1's lengths
    tokens    W1 as a job of token ids
    texts     the same lengths as texts, in the model's template, through its tokenizer
    idle      jobs of 16 items with ``Prefer: wait``, one after another
    beside    the same while a large job runs
    million   a larger job of texts, or of token ids where there are none

Each part prints its row, in words and as a line of JSON, once it is measured, and adds it to ``FOLDER/rows.jsonl``: what
comes later can't lose it. A part that fails says so, and the next one goes on. No part begins after the budget.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import stage_times
import system_model
import timed_worker
from engine_alone import Alone, running_engine
from system_load import Load, TextLoad, TokenLoad
from system_model import Model
from system_notes import Notes
from system_parts import SystemParts, engine_alone
from system_stack import running_stack

PARTS = ("alone", "tokens", "texts", "idle", "beside", "million")
SHOWN = ("items_per_second", "busy_share", "of_alone", "p50_ms", "p95_ms", "bulk_items_per_second", "steady_seconds")


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="rankmill-system-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        run = Run(options, folder)
        run.report("machine", _machine(options))
        model = system_model.made(options.engine, options.model_folder or folder / "model", options.tokenizer)
        run.report("model made", {})
        os.environ.update(model.settings(folder))
        loads = _loads(model, options)
        with run.guarded("alone"):
            run.alone(loads)
        with run.guarded("stack"):
            run.system(loads)
        return run.finish()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["fake", *system_model.SHAPES], default="qwen3-0.6b")
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer.json of Qwen3; without one there are no texts")
    parser.add_argument(
        "--model-folder", type=Path, help="of the checkpoint, made by system_model before; else it is made"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="those to measure, of: %(default)s")
    parser.add_argument("--items", type=int, default=100_000, help="of the jobs tokens and texts")
    parser.add_argument("--alone-items", type=int, default=60_000, help="for the engine alone, of each load")
    parser.add_argument("--million", type=int, default=1_000_000, help="items of the larger job")
    parser.add_argument("--beside-items", type=int, default=200_000, help="of the large job beside small ones")
    parser.add_argument("--posts", type=int, default=100, help="small jobs, idle and beside")
    parser.add_argument("--workers", type=int, default=1, help="each has a GPU of its own, where there are GPUs")
    parser.add_argument("--batch-tokens", type=int, default=0, help="a batch's budget; 0: as the engine chooses")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the processes")
    parser.add_argument("--part-seconds", type=float, default=75, help="after which a part but the last is cut off")
    parser.add_argument("--budget-seconds", type=float, default=560, help="for everything")
    parser.add_argument("--out", type=Path, default=Path("system-benchmark"), help="folder for rows, figures, notes")
    options = parser.parse_args()
    unknown = set(options.parts.split(",")) - set(PARTS)
    assert not unknown, f"no such parts: {unknown}"
    return options


class Run:
    """The parts in their order, and what is left of the time."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._began = time.monotonic()
        self._deadline = self._began + options.budget_seconds
        self._alone_rates: dict[str, float] = {}
        self._num_failures = 0
        options.out.mkdir(parents=True, exist_ok=True)
        os.environ.update({"RANKMILL_MIN_FREE_DISK_BYTES": "0", "RANKMILL_MAX_BATCH_TOKENS": str(options.batch_tokens)})
        os.environ.update(setting.split("=", 1) for setting in options.set)
        for name in ("alone", "stack"):
            (folder / name).mkdir()

    def report(self, part: str, row: dict[str, Any]) -> None:
        """Print it, and keep it."""
        row = {"part": part, "at_seconds": round(time.monotonic() - self._began, 1), **row}
        shown = [f"{name} {row[name]:,}" for name in SHOWN if isinstance(row.get(name), int | float)]
        print(f"== {part:16} {'  '.join(shown)}", f"   {json.dumps(row)}", sep="\n", flush=True)
        with (self._options.out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    @contextmanager
    def guarded(self, part: str) -> Iterator[None]:
        """What fails within is told, and what follows goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the other parts cost a visit to the machine, too
            self._num_failures += 1
            traceback.print_exc()
            self.report(part, {"failed": f"{type(error).__name__}: {error}"[:2_000]})

    def alone(self, loads: list[Load]) -> None:
        if not self._is_asked("alone"):
            return
        os.environ[stage_times.FOLDER] = str(self._folder / "alone")
        stage_times.open_file("worker")
        timed_worker.install()
        notes = Notes(self._folder / "alone", self._options.out)
        with running_engine() as engine:
            self.report("engine ready", engine.info.facts())
            for load in loads:
                self._part(f"alone {load.name}", partial(self._measured_alone, engine, load, notes))

    def _measured_alone(self, engine: Alone, load: Load, notes: Notes) -> dict[str, Any]:
        row = engine_alone(engine, load, self._options.alone_items, notes, until=self._until())
        self._alone_rates[load.name] = row["items_per_second"]
        return row

    def system(self, loads: list[Load]) -> None:
        options = self._options
        if not any(map(self._is_asked, PARTS[1:])):
            return
        os.environ[stage_times.FOLDER] = str(self._folder / "stack")
        notes = Notes(self._folder / "stack", options.out)
        with running_stack(num_workers=options.workers) as stack:
            self.report("stack ready", {"workers": options.workers})
            try:
                self._measure_system(SystemParts(stack, notes, options.workers), *loads)
            finally:
                (options.out / "logs.txt").write_text(stack.ends_of_logs())

    def _measure_system(self, parts: SystemParts, tokens: Load, texts: Load | None = None) -> None:
        options = self._options
        self._large("tokens", parts, tokens, options.items)
        if texts is not None:
            self._large("texts", parts, texts, options.items)
        self._part("idle", lambda: parts.small_jobs(tokens, options.posts, name="idle", until=self._until()))
        self._part("beside", lambda: parts.beside(tokens, options.beside_items, options.posts, until=self._until()))
        self._large("million", parts, texts or tokens, options.million, until=self._deadline)

    def _large(self, name: str, parts: SystemParts, load: Load, num_items: int, *, until: float | None = None) -> None:
        if not num_items:
            return

        def measured() -> dict[str, Any]:
            row = parts.large_job(load, num_items, name=name, until=until or self._until())
            alone = self._alone_rates.get(load.name)
            return row | (
                {"of_alone": round(row["items_per_second"] / alone / self._options.workers, 4)} if alone else {}
            )

        self._part(name, measured)

    def _part(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        if not self._is_asked(name.split(maxsplit=1)[0]):
            return
        if time.monotonic() > self._deadline:
            self.report(name, {"skipped": "the budget is used up"})
            return
        with self.guarded(name):
            self.report(name, measure())

    def _is_asked(self, part: str) -> bool:
        return part in self._options.parts.split(",")

    def _until(self) -> float:
        return min(time.monotonic() + self._options.part_seconds, self._deadline)

    def finish(self) -> int:
        """Keep the notes; the exit status."""
        shutil.make_archive(str(self._options.out / "notes"), "gztar", self._folder, "stack")
        shutil.make_archive(str(self._options.out / "notes-alone"), "gztar", self._folder, "alone")
        self.report("finished", {"failures": self._num_failures})
        return 1 if self._num_failures else 0


def _loads(model: Model, options: argparse.Namespace) -> list[Load]:
    has_texts = options.tokenizer is not None or options.engine == "fake"
    return [TokenLoad(model), *([TextLoad(model)] if has_texts and "texts" in options.parts else [])]


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {"cores": os.cpu_count(), "python": platform.python_version(), "asked": asked}


if __name__ == "__main__":
    sys.exit(main())
