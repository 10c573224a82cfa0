"""Runs schemathesis over the whole document: every phase, seeded, with what failed as a text that says how to see it again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import own_checks
import schemathesis
from hypothesis import strategies as st
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events
from schemathesis.specs.openapi.schemas import OpenApiSchema  # noqa: F401 - here, not deep inside of a test
from two_clients import NDJSON

MAX_SHOWN = 20
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OPENINGS = st.fixed_dictionaries({}, optional={"query": st.text(), "on_invalid": st.just("skip"), "labels": JSONS})
ITEMS = st.text() | st.fixed_dictionaries({"text": st.text()}, optional={"id": st.text(), "query": st.text()}) | JSONS


def _lines(opening, items):
    return "\n".join(json.dumps(each) for each in [opening, *items]).encode()


UPLOADS = st.builds(_lines, OPENINGS, st.lists(ITEMS, max_size=5)) | st.binary(max_size=200)
schemathesis.openapi.media_type(NDJSON, UPLOADS)


@dataclass
class Fuzzed:
    """What came of it."""

    num_cases: int = 0
    num_foreign: int = 0
    statuses: dict = field(default_factory=dict)
    routes: set = field(default_factory=set)
    failures: dict = field(default_factory=dict)

    def check(self):
        shown = "\n\n".join(list(self.failures.values())[:MAX_SHOWN])
        assert not self.failures, f"{len(self.failures)} faults:\n{shown}"


def fuzz(clients, *, seed, max_examples, phases, into=None):
    """Play every route of the document. The seed says what is sent, but for ids, which the server makes."""
    fuzzed = into or Fuzzed()
    own_checks.run_against(clients)
    schema = schemathesis.openapi.from_dict(clients.document, config=_config(clients, seed, max_examples, phases))
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            _note(event.recorder, fuzzed)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            info = getattr(event, "info", None) or event.exception
            fuzzed.failures[f"error {event!s}"] = f"{getattr(event, 'label', '')}: {info}"
    fuzzed.num_foreign += own_checks.running.num_foreign
    return fuzzed


def _config(clients, seed, max_examples, phases):
    return SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "base-url": clients.url,
            "headers": clients.headers,
            "workers": 1,
            "continue-on-failure": True,
            "request-timeout": 60,
            "suppress-health-check": ["all"],
            "generation": {"max-examples": max_examples, "no-shrink": True},
            "phases": {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")},
            # a valid value is refused where it contradicts another, or the model: schemas can't say that
            "checks": {"positive_data_acceptance": {"enabled": False}},
            # an empty list in a form is no part of it at all, so what is sent breaks no rule
            "operations": [
                {
                    "include-path": "/v1/files",
                    "include-method": "POST",
                    "checks": {"negative_data_rejection": {"enabled": False}},
                }
            ],
        }
    )


def _note(recorder, fuzzed):
    fuzzed.num_cases += len(recorder.interactions)
    for case_id, interaction in recorder.interactions.items():
        if interaction.response is not None:
            status = interaction.response.status_code
            fuzzed.statuses[status] = fuzzed.statuses.get(status, 0) + 1
        case = recorder.cases.get(case_id)
        if case is not None:
            fuzzed.routes.add(case.value.operation.label)
    for case_id, checks in recorder.checks.items():
        for check in checks:
            if check.failure_info is not None:
                failure = check.failure_info.failure
                label = recorder.cases[case_id].value.operation.label
                told = f"{label}, {check.name}: {failure.title}\n{failure.message}\n{check.failure_info.code_sample}"
                answered = recorder.interactions[case_id].response
                body = b"" if answered is None else answered.content[:300]
                fuzzed.failures.setdefault((label, check.name, failure.title), f"{told}\n{body!r}")
