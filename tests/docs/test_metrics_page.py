"""What the pages, the dashboard and the alert rules say of metrics is so: each of them exists, and none is left out."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from core.settings import Settings
from store import metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
FILES = ROOT / "deploy" / "observability"
SOURCES = ("api", "scheduler", "store", "worker", "rankmill")
ROW = re.compile(
    r"^\| `(?P<name>rankmill_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<meaning>[^|]+) \|$", re.MULTILINE
)
FAULT = re.compile(
    r"^\| (?P<fault>[^|`]+) \| [^|`]+ \| `(?P<name>\w+)(?P<labels>\{[^}]*\})?` \| `(?P<event>[^`]+)` \|$", re.MULTILINE
)
NAME = re.compile(r"\brankmill_\w+")
SUFFIXES = ("_bucket", "_sum", "_count")


def samples() -> dict[str, set[tuple[tuple[str, str], ...]]]:
    """The names under which a server shows our metrics, with the labels of the series that are there from the start."""
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for metric in dict.fromkeys(metrics.EVERY):
        for family in metric.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            names = [name] if family.type != "histogram" else [name + suffix for suffix in SUFFIXES]
            for each in names:
                found.setdefault(each, set())
            for sample in family.samples:
                found[sample.name].add(tuple(sorted(sample.labels.items())))
    return found


def shown_name(metric: metrics.MetricWrapperBase) -> str:
    return next(iter(metric.describe())).name + ("_total" if next(iter(metric.describe())).type == "counter" else "")


def test_every_metric_is_on_the_page_with_its_kind_and_labels_and_no_other() -> None:
    rows = {row["name"]: (row["kind"], row["labels"]) for row in ROW.finditer(PAGE.read_text())}
    wanted = {
        shown_name(metric): (
            next(iter(metric.describe())).type,
            ", ".join(f"`{label}`" for label in metric._labelnames),
        )
        for metric in metrics.EVERY
    }
    assert rows == wanted


def test_names_have_base_units_and_say_who_we_are() -> None:
    for metric in metrics.EVERY:
        family = next(iter(metric.describe()))
        assert family.name.startswith("rankmill_")
        assert not re.search(r"_(ms|minutes|hours|kb|mb|percent)(_|$)", family.name), family.name
        assert not {"job_id", "client", "client_id", "key", "host", "path", "worker"} & set(metric._labelnames)


@pytest.mark.parametrize("row", list(FAULT.finditer(PAGE.read_text())), ids=lambda row: row["fault"].replace(" ", "_"))
def test_a_fault_leaves_a_metric_and_an_event_that_exist(row: re.Match[str]) -> None:
    labels = tuple(sorted(re.findall(r'(\w+)="(\w+)"', row["labels"] or "")))
    series = samples()[row["name"]]
    assert not labels or labels in series, f"{row['name']} has {series}"
    assert row["event"] in events()


def test_the_table_of_faults_is_read() -> None:
    assert len(list(FAULT.finditer(PAGE.read_text()))) > 40


@cache
def events() -> frozenset[str]:
    """The first argument of every call that logs something."""
    return frozenset(
        argument.value
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ("debug", "info", "warning", "error", "exception", "_warn", "_announce")
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ) | {"model refused"}


def dashboard() -> Iterator[str]:
    for panel in json.loads((FILES / "grafana" / "rankmill.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def rules() -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    return [*dashboard(), *(str(rule["expr"]) for rule in rules()), *NAME.findall(PAGE.read_text())]


def test_every_metric_that_a_panel_a_rule_or_the_page_asks_for_exists() -> None:
    known = set(samples()) | {shown_name(metric) for metric in metrics.EVERY}
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert asked <= known
    assert len(asked) > 30


def test_every_label_that_a_panel_or_a_rule_asks_for_exists_with_that_value() -> None:
    for expression in [*dashboard(), *(str(rule["expr"]) for rule in rules())]:
        for name, selector in re.findall(r"(rankmill_\w+)\{([^}]*)\}", expression):
            values = {pair for labels in samples()[name] for pair in labels}
            for label, _, wanted in re.findall(r'(\w+)(=~?)"([^"]*)"', selector):
                assert {(label, value) for value in wanted.split("|")} <= values or label == "status", expression


def test_every_panel_stands_apart_and_asks_for_something() -> None:
    panels = json.loads((FILES / "grafana" / "rankmill.json").read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")


def test_every_rule_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert isinstance(rule["labels"], dict)
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert isinstance(rule["annotations"], dict)
        assert rule["annotations"].keys() == {"summary", "description"}
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_the_metrics_of_every_process_of_the_compose_file_are_scraped() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    scraped = yaml.safe_load((FILES / "prometheus.yml").read_text())["scrape_configs"]
    (front_end, processes) = scraped
    assert front_end["static_configs"][0]["targets"] == [f"api:{services['api']['environment']['RANKMILL_API_PORT']}"]
    (found,) = processes["dns_sd_configs"]
    for name in found["names"]:
        environment = services[name]["environment"]
        assert environment["RANKMILL_METRICS_PORT"] == str(found["port"]), name
        assert environment["RANKMILL_METRICS_HOST"] == "0.0.0.0"
        Settings(metrics_port=found["port"])
    assert set(found["names"]) == {
        name for name, each in services.items() if "RANKMILL_METRICS_PORT" in each.get("environment", {})
    }
    mounted = {
        mount.split(":")[0]
        for name in ("prometheus", "grafana")
        for mount in services[name]["volumes"]
        if mount.startswith(".")
    }
    assert all((ROOT / path).exists() for path in mounted)
