"""The stack with each process' metrics on a port of its own, and sums of what all of them show."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families
from stack import Stack

from rankmill.embedded import ports


class MeteredStack(Stack):
    """Scrapes its processes. ``num_processes`` that serve: the front end on its own port, the others on theirs."""

    def __init__(self, folder):
        super().__init__(folder)
        self._ports = {}

    def start(self, name, **changes):
        """Start it with a port for its metrics, except the front end."""
        if name != "api":
            changes["RANKMILL_METRICS_PORT"] = str(self._ports.setdefault(name, ports.free_port()))
        super().start(name, **changes)

    def scrape(self, name):
        """What a process shows: value by name and labels, each label as ``key=value``."""
        url = f"{self.url}/metrics" if name == "api" else f"http://{ports.LOOPBACK}:{self._ports[name]}/metrics"
        answer = httpx.get(url, timeout=30, trust_env=False)
        assert answer.status_code == 200, answer.text
        samples = [each for family in text_string_to_metric_families(answer.text) for each in family.samples]
        return {
            (each.name, *(f"{key}={value}" for key, value in sorted(each.labels.items()))): each.value
            for each in samples
        }

    def total(self, metric, *labels, names=()):
        """The sum over processes and over series that have these labels."""
        found = [self.scrape(name) for name in names or self.children]
        return sum(
            value
            for samples in found
            for (name, *own), value in samples.items()
            if name == metric and set(labels) <= set(own)
        )
