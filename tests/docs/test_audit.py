"""The audit of what is pinned: it fails for a known vulnerability, and never for being offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADVISORY = {
    "id": "PYSEC-2026-1",
    "summary": "it is broken",
    "details": "it is broken",
    "published": "2026-01-01T00:00:00Z",
    "modified": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "bad", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}


@contextmanager
def osv(*, status=200):
    """OSV, which knows of one vulnerability."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps({"vulns": [ADVISORY]} if asked["package"]["name"] == "bad" else {}).encode()
            self.send_response(status if asked["package"]["name"] != "pip" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def audit(url, constraints):
    return subprocess.run(
        [sys.executable, ROOT / ".ci" / "audit.py", constraints],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PIP_AUDIT_OSV_URL": url, "NO_PROXY": "127.0.0.1"},
    )


@pytest.fixture
def pinned(tmp_path):
    def pinned(*pins):
        path = tmp_path / "constraints.txt"
        path.write_text("".join(f"{pin}\n" for pin in pins))
        return path

    return pinned


def test_a_known_vulnerability_fails_the_audit_and_is_named(pinned):
    with osv() as url:
        done = audit(url, pinned("good==2.0", "bad==1.0"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "bad 1.0: PYSEC-2026-1, mended in 1.1\n"


def test_without_one_it_says_so(pinned):
    with osv() as url:
        done = audit(url, pinned("good==2.0"))
    assert (done.returncode, done.stdout) == (0, "pip-audit: no known vulnerability\n")


def test_offline_it_is_skipped_with_its_reason(pinned):
    done = audit("http://127.0.0.1:1/v1/query", pinned("bad==1.0"))
    assert done.returncode == 0
    assert done.stdout.startswith("pip-audit skipped: http://127.0.0.1:1/v1/query can't be asked (")


def test_a_database_that_breaks_off_is_no_fault_of_ours(pinned):
    with osv(status=500) as url:
        done = audit(url, pinned("good==2.0"))
    assert done.returncode == 0
    assert "pip-audit skipped" in done.stdout


def test_make_check_audits():
    assert ".ci/audit.py" in (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
