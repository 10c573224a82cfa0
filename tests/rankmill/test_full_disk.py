"""`rankmill up` looks at the disk under its data folder: nearly full, it takes no job, and still answers."""

from __future__ import annotations

import httpx

from rankmill.background import running_up


def test_a_nearly_full_disk_takes_no_job_and_is_named(tmp_path):
    environment = {"RANKMILL_MIN_FREE_DISK_BYTES": str(1 << 60)}
    with running_up(tmp_path / "up", model="fake", environment=environment) as (url, _):
        answer = httpx.post(f"{url}/v1/jobs", json={"items": ["a"]}, trust_env=False)
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        assert int(answer.headers["Retry-After"]) > 0
        assert httpx.get(f"{url}/v1/jobs", trust_env=False).json()["items"] == []
