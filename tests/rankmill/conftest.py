"""A whole stack with the fake model, once for all tests that only speak to it."""

from __future__ import annotations

import pytest

from rankmill.background import running_up


@pytest.fixture(scope="session")
def server_url(tmp_path_factory):
    """The address of a running stack."""
    with running_up(tmp_path_factory.mktemp("up"), model="fake") as (url, _):
        yield url
