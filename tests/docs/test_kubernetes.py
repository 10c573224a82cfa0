"""The Kubernetes manifests name only what exists, and run as a user without rights. They are applied to no cluster here."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import typer.main
import yaml

from core.settings import Settings
from rankmill.cli import app

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
SECRETS = {"RANKMILL_DATABASE_URL", "RANKMILL_REDIS_URL"}

objects = list(chain.from_iterable(yaml.safe_load_all(file.read_text()) for file in sorted(FOLDER.glob("*.yaml"))))
by_kind = {(found["kind"], found["metadata"]["name"]): found for found in objects}
pods = {
    found["metadata"]["name"]: found["spec"]["template"] for found in objects if found["kind"] in ("Deployment", "Job")
}
names = pytest.mark.parametrize("name", sorted(pods))


def container(name: str) -> dict:
    return pods[name]["spec"]["containers"][0]


@names
def test_its_command_is_one_of_rankmills(name: str) -> None:
    assert set(container(name)["args"]) <= set(typer.main.get_command(app).commands)


def test_every_process_is_there_but_the_engine_that_its_worker_starts() -> None:
    assert {argument for name in pods for argument in container(name)["args"]} == {
        *("migrate", "api", "scheduler", "deliverer", "worker")
    }


def test_every_variable_is_a_setting_with_a_value_that_it_takes() -> None:
    given = by_kind["ConfigMap", "rankmill"]["data"]
    known = {f"RANKMILL_{name.upper()}" for name in Settings.model_fields}
    assert {*given, *SECRETS} <= known
    Settings.model_validate({name.removeprefix("RANKMILL_").lower(): value for name, value in given.items()})


@names
def test_it_runs_without_rights_on_a_file_system_that_it_cannot_write(name: str) -> None:
    assert pods[name]["spec"]["securityContext"]["runAsNonRoot"]
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@names
def test_what_it_mounts_is_a_volume_of_its_own(name: str) -> None:
    volumes = {volume["name"] for volume in pods[name]["spec"]["volumes"]}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes


@names
def test_a_selector_finds_its_own_pods(name: str) -> None:
    found = by_kind.get(("Deployment", name))
    if found is not None:
        assert found["spec"]["selector"]["matchLabels"].items() <= pods[name]["metadata"]["labels"].items()


def test_the_service_finds_the_front_ends_and_their_port() -> None:
    spec = by_kind["Service", "rankmill"]["spec"]
    assert spec["selector"].items() <= pods["rankmill-api"]["metadata"]["labels"].items()
    assert spec["ports"][0]["targetPort"] in {port["name"] for port in container("rankmill-api")["ports"]}


def test_only_front_ends_have_probes_and_they_ask_for_what_answers_without_a_key() -> None:
    probed = {name: [probe for probe in container(name) if probe.endswith("Probe")] for name in pods}
    assert {name for name in probed if probed[name]} == {"rankmill-api"}
    paths = {container("rankmill-api")[probe]["httpGet"]["path"] for probe in probed["rankmill-api"]}
    assert paths == {"/livez", "/readyz"}


def test_a_stop_leaves_time_for_a_warm_one() -> None:
    assert pods["rankmill-worker"]["spec"]["terminationGracePeriodSeconds"] > Settings().stop_seconds
    assert pods["rankmill-deliverer"]["spec"]["terminationGracePeriodSeconds"] > Settings().stop_seconds


def test_each_worker_has_one_gpu_and_nothing_else_has_any() -> None:
    gpus = {name: container(name).get("resources", {}).get("limits", {}).get("nvidia.com/gpu") for name in pods}
    assert gpus.pop("rankmill-worker") == "1"
    assert not any(gpus.values())


def test_what_scales_the_workers_is_the_deployment_of_workers() -> None:
    spec = by_kind["ScaledObject", "rankmill-worker"]["spec"]
    assert ("Deployment", spec["scaleTargetRef"]["name"]) in by_kind
    reference = spec["triggers"][0]["authenticationRef"]["name"]
    target = by_kind["TriggerAuthentication", reference]["spec"]["secretTargetRef"][0]
    assert target["key"] in SECRETS
