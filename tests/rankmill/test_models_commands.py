"""`rankmill models`: what can be served."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rankmill.cli import app


@pytest.fixture
def run():
    return lambda *arguments, **environment: CliRunner().invoke(app, arguments, env=environment)


def test_models_lists_the_catalogue_with_an_own_file(run, tmp_path):
    path = tmp_path / "models.toml"
    path.write_text('[mine]\nsource = "/my/folder"\nlabels = [" yes", " no"]\n')
    done = run("models", "--models-file", str(path))
    assert done.exit_code == 0
    assert "qwen3-reranker-0_6b" in done.output
    assert "/my/folder" in done.output


def test_models_says_what_is_wrong_with_an_own_file(run, tmp_path):
    done = run("models", "--models-file", str(tmp_path / "absent.toml"))
    assert done.exit_code == 1
    assert "can't be read" in done.output
