"""What a program pays that imports the client, and what the client must never pull in."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NEVER = {
    "torch",
    "transformers",
    "fastapi",
    "starlette",
    "sqlalchemy",
    "celery",
    "redis",
    "psycopg",
    "pyarrow",
    "pydantic",
}
FIRST_PARTY = {"api", "scheduler", "worker", "store"}
MAX_MODULES = 450  # most of them are Python's own, and httpx's
COUNT = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def modules(statement):
    done = subprocess.run([sys.executable, "-c", f"{statement}\n{COUNT}"], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
def test_a_client_loads_no_more_than_it_speaks_with(name):
    loaded = modules(f"from rankmill import {name}")
    assert not {module.split(".")[0] for module in loaded} & (NEVER | FIRST_PARTY)
    assert len(loaded) < MAX_MODULES


def test_the_package_alone_loads_nothing():
    loaded = modules("import rankmill")
    assert {module for module in loaded if module.startswith("rankmill")} == {"rankmill"}
    assert "httpx" not in loaded


def test_all_that_is_public_is_there_and_nothing_else():
    import rankmill

    for name in rankmill.__all__:
        assert getattr(rankmill, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = rankmill.Nothing
