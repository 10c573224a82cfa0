"""Dockerfile and docker-compose.yml name only what exists, run as a user without rights, and hold no secret.

Nothing is built here. Where the docker client has compose, it parses the file too; that needs no daemon.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml

from core.settings import Settings
from rankmill.cli import app

ROOT = Path(__file__).parents[2]
OURS = ("migrate", "api", "scheduler", "deliverer", "worker", "worker-cpu")
WATCHING = ("prometheus", "grafana")
FROM_ENVIRONMENT = re.compile(r"\$\{\w+(:?[?-][^}]*)?\}")
LITERAL_FALLBACK = re.compile(r"\$\{\w+:?-[^}]+\}")
FALLBACK = re.compile(r"\$\{\w+:-([^}]*)\}")
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|KEY")
SETTINGS_OF_WEBHOOKS = {name for name in Settings.model_fields if name.startswith("webhook_")}
VARIABLES = {"POSTGRES_PASSWORD": "x", "RANKMILL_MODEL": "fake", "METRICS_KEY": "x", "GRAFANA_PASSWORD": "x"}

compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
services = compose["services"]


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(words[0].upper(), words[1]) for line in text.splitlines() if len(words := line.split(maxsplit=1)) == 2]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            found[rest.split(" AS ")[1]] = []
        elif found:
            next(reversed(found.values())).append((name, rest))
    return found


def commands_of_rankmill() -> set[str]:
    return set(typer.main.get_command(app).commands)


def targets() -> set[str]:
    return {services[name]["build"]["target"] for name in OURS}


def test_every_build_target_is_a_stage_of_the_dockerfile() -> None:
    assert targets() == {"api", "worker"}
    assert targets() <= stages().keys()


def test_every_command_is_one_of_rankmills() -> None:
    commands = commands_of_rankmill()
    for name in OURS:
        assert services[name]["command"][0] in commands, name
    for target in targets():
        stage = dict(stages()[target])
        assert yaml.safe_load(stage["ENTRYPOINT"]) == ["rankmill"]
        assert yaml.safe_load(stage["CMD"])[0] in commands


def test_every_variable_of_ours_is_a_setting_with_a_value_that_it_takes() -> None:
    for name in OURS:
        given = {key: value for key, value in services[name]["environment"].items() if key.startswith("RANKMILL_")}
        fields = {
            key.removeprefix("RANKMILL_").lower(): FALLBACK.sub(r"\1", str(value)) for key, value in given.items()
        }
        assert fields.keys() <= Settings.model_fields.keys(), name
        Settings(**fields)


def test_every_variable_taken_from_outside_that_looks_like_ours_is_a_setting() -> None:
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "Dockerfile").read_text()
    names = {match.removeprefix("RANKMILL_").lower() for match in re.findall(r"RANKMILL_\w+", text)}
    assert names <= Settings.model_fields.keys()


def test_no_secret_is_written_down() -> None:
    for name, service in services.items():
        for key, value in service.get("environment", {}).items():
            if SECRET_NAME.search(key) and not key.endswith("__FILE"):
                assert FROM_ENVIRONMENT.fullmatch(value), f"{name}: {key}"
                assert not LITERAL_FALLBACK.search(value), f"{name}: {key}"
            password = re.search(r"://[^:/]*:(?P<password>.*)@", str(value))
            assert password is None or FROM_ENVIRONMENT.fullmatch(password["password"]), f"{name}: {key}"
    assert not [rest for name, rest in instructions() if name in ("ENV", "ARG") and SECRET_NAME.search(rest)]


def test_no_image_of_ours_runs_as_root() -> None:
    for target in targets():
        user = dict(stages()[target])["USER"]
        assert user.split(":")[0].isdigit(), f"{target}: a number lets an orchestrator check that it is not root"
        assert int(user.split(":")[0]) > 0


@pytest.mark.parametrize("name", OURS)
def test_our_processes_cannot_write_their_images_nor_gain_rights(name: str) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")


@pytest.mark.parametrize("name", OURS)
def test_our_processes_write_into_memory_alone_but_for_models(name: str) -> None:
    service = services[name]
    assert service["tmpfs"] == ["/tmp"]
    assert service.get("volumes", []) in ([], ["models:/cache"])


def test_what_is_not_ours_gains_no_rights_either() -> None:
    for name, service in services.items():
        if service.get("profiles", ["cpu"]) != ["cpu"]:
            continue  # started only by who asks for it
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    assert services["redis"]["read_only"] is True
    assert set(services["postgres"]["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    assert not [name for name, service in services.items() if "cap_add" in service and name != "postgres"]


def test_the_front_end_and_the_deliverer_have_every_setting_of_webhooks_alike() -> None:
    fields = {f"RANKMILL_{name}".upper() for name in SETTINGS_OF_WEBHOOKS}
    front_end, deliverer = services["api"]["environment"], services["deliverer"]["environment"]
    assert fields <= deliverer.keys()
    shared = fields - {"RANKMILL_WEBHOOK_TIMEOUT_SECONDS"}
    assert {name: front_end[name] for name in shared} == {name: deliverer[name] for name in shared}
    given = Settings(
        **{name.removeprefix("RANKMILL_").lower(): FALLBACK.sub(r"\1", deliverer[name]) for name in sorted(fields)}
    )
    assert given.model_dump(include=SETTINGS_OF_WEBHOOKS) == Settings().model_dump(include=SETTINGS_OF_WEBHOOKS)


def test_everything_waits_for_what_it_needs() -> None:
    needs = {name: {key: need["condition"] for key, need in services[name]["depends_on"].items()} for name in OURS}
    assert needs.pop("migrate") == {"postgres": "service_healthy"}
    for name, need in needs.items():
        assert need == {"migrate": "service_completed_successfully", "redis": "service_healthy"}, name
    assert "healthcheck" in services["postgres"]
    assert "healthcheck" in services["redis"]


def test_no_health_check_of_ours_depends_on_postgres_or_redis() -> None:
    # When one of them is away, such a check (`celery inspect ping` too) would have workers killed that hold leases.
    checks = {name: services[name]["healthcheck"] for name in OURS if name != "migrate"}
    assert "/livez" in str(checks.pop("api")["test"])
    assert all(check == {"disable": True} for check in checks.values())


def test_a_stop_leaves_time_for_a_warm_one() -> None:
    stop_seconds = Settings.model_fields["stop_seconds"].default
    webhook_seconds = Settings.model_fields["webhook_timeout_seconds"].default
    grace = {name: int(services[name]["stop_grace_period"].removesuffix("s")) for name in OURS if name != "migrate"}
    assert min(grace["worker"], grace["worker-cpu"]) > stop_seconds
    assert grace["deliverer"] > webhook_seconds


def test_only_the_front_end_and_what_watches_it_are_published_and_only_to_this_host() -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["api", *WATCHING]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_what_watches_runs_only_where_it_is_asked_for_and_is_of_a_fixed_version() -> None:
    for name in WATCHING:
        assert services[name]["profiles"] == ["observability"]
        assert re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"])


def test_only_the_gpu_worker_reserves_a_gpu() -> None:
    reserving = [name for name, service in services.items() if service.get("deploy", {}).get("resources")]
    assert reserving == ["worker"]
    assert [name for name, service in services.items() if "profiles" in service] == ["worker-cpu", *WATCHING]


def test_every_volume_is_declared() -> None:
    mounts = [mount for service in services.values() for mount in service.get("volumes", [])]
    used = {mount.split(":")[0] for mount in mounts if not mount.startswith("./")}
    assert used == compose["volumes"].keys()


def test_the_build_sees_every_package_and_every_file_that_the_build_names() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = project["tool"]["setuptools"]["package-dir"]
    packages = project["tool"]["setuptools"]["packages"]
    needed = {Path(folders.get(package, package.replace(".", "/"))).parts[0] for package in packages}
    needed |= {"pyproject.toml", "constraints.txt", project["project"]["readme"], *project["project"]["license-files"]}
    assert let_in == needed
    assert not [name for name in sorted(let_in) if not (ROOT / name).exists()]


def compose_config(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker client with compose here")
    return subprocess.run(
        [docker, "compose", "--profile", "cpu", "--profile", "observability", "config", "--quiet"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_docker_compose_accepts_the_file() -> None:
    done = compose_config(VARIABLES)
    assert done.returncode == 0, done.stderr


def test_docker_compose_refuses_to_start_without_a_password() -> None:
    done = compose_config({"RANKMILL_MODEL": "fake"})
    assert done.returncode != 0
    assert "POSTGRES_PASSWORD" in done.stderr
