"""Asks OSV whether anything that constraints.txt pins has a known vulnerability.

Ends with 1 if so. Where OSV can't be reached, it says so and ends with 0: being offline is no fault of the code.
"""

# ruff: noqa: INP001 - a script, in no package

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
OSV_URL = os.environ.get("PIP_AUDIT_OSV_URL", "https://api.osv.dev/v1/query")  # which pip-audit reads too
REACH_SECONDS = 5
PROBE = {"version": "0", "package": {"name": "pip", "ecosystem": "PyPI"}}


def unreachable() -> str | None:
    """Why OSV does not answer; None where it does."""
    request = urllib.request.Request(OSV_URL, json.dumps(PROBE).encode(), {"Content-Type": "application/json"})  # noqa: S310 - https, or what the caller set
    try:
        with urllib.request.urlopen(request, timeout=REACH_SECONDS):  # noqa: S310 - the same
            return None
    except (urllib.error.URLError, OSError) as error:
        return str(error)


def audited(constraints: Path) -> tuple[list[str], str]:
    """Every vulnerability as a line; and what pip-audit said where it broke off."""
    arguments = ["--requirement", str(constraints), "--no-deps", "--disable-pip", "--vulnerability-service", "osv"]
    command = [sys.executable, "-m", "pip_audit", *arguments, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], done.stderr.strip() or f"pip-audit ended with {done.returncode}"
    lines = [
        f"{package['name']} {package.get('version')}: {vulnerability['id']}, mended in"
        f" {', '.join(vulnerability['fix_versions']) or 'no version'}"
        for package in found
        for vulnerability in package.get("vulns", ())
    ]
    return lines, ""


def main(constraints: Path) -> int:
    """The exit status."""
    reason = unreachable()
    vulnerabilities, broken = ([], "") if reason else audited(constraints)
    if reason or broken:
        sys.stdout.write(f"pip-audit skipped: {OSV_URL} can't be asked ({reason or broken})\n")
        return 0
    sys.stdout.write("".join(f"{line}\n" for line in vulnerabilities) or "pip-audit: no known vulnerability\n")
    return 1 if vulnerabilities else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CONSTRAINTS))
