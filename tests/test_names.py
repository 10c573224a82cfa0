"""A file is named for the one noun that it holds, stays short enough to hold only one, and lies where the layout says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("core", "store", "api", "scheduler", "worker", "kernels/label_kernels", "rankmill", "migrations")
FOLDERS = (
    *PACKAGES,
    "worker/engine",
    "api/pages",
    "rankmill/embedded",
    "tests",
    "tests/browser",
    "benchmarks",
    "docs",
    "docs/decisions",
    ".ci",
)
BANNED = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "service", "services", "shard", "shards"}
MAX_LINES = 250
MAX_KERNEL_LINES = 350  # a kernel is one file, with its plan and its wrapper
MAX_TEST_LINES = 400

# Files that hold one noun and are longer all the same. Each with its reason; none may grow past the number here.
LONGER: dict[str, int] = {
    "store/tables.py": 320,  # the tables refer to each other, and are read side by side
}

MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_of_the_layout_exists(folder: str) -> None:
    assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_no_module_is_named_for_nothing(path: Path) -> None:
    words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    assert not words & BANNED


def most_lines(path: Path) -> int:
    name = name_of(path)
    if name.startswith("tests/"):
        return MAX_TEST_LINES
    return LONGER.get(name, MAX_KERNEL_LINES if name.startswith("kernels/") else MAX_LINES)


def test_files_stay_short_enough_to_hold_one_noun() -> None:
    checked = [
        path for path in [*MODULES, *TESTS] if path.parent.name != "versions"
    ]  # a migration is one long statement
    too_long = {name_of(path): num_lines(path) for path in checked if num_lines(path) > most_lines(path)}
    assert not too_long, "look for the second noun in them"


def test_no_file_is_excused_for_its_length_without_need() -> None:
    needless = {name for name in LONGER if not (ROOT / name).exists() or num_lines(ROOT / name) <= MAX_LINES}
    assert not needless


@pytest.mark.parametrize("path", [path for path in MODULES if path.stat().st_size], ids=name_of)
def test_every_module_opens_with_what_it_is(path: Path) -> None:
    assert path.read_text().startswith(('"""', 'r"""'))


def test_no_two_test_files_share_a_name() -> None:
    counts = Counter(path.name for path in TESTS if path.name != "conftest.py")
    assert not [name for name, count in counts.items() if count > 1], "pytest imports them by their bare name"
