from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging, structlog, sys
from core.settings import Settings
from rankmill import logs

log = structlog.get_logger()  # before the configuration, as modules do
logs.configure(Settings(log_format=sys.argv[1], log_level="info"))
log.debug("too fine")
log.info("a job ended", job_id=7)
logging.getLogger("library").warning("said %s", "this")
def fail(item):
    raise ValueError("broken")
try:
    fail(item="the text of an item")
except ValueError:
    log.exception("an error")
"""


def logged(log_format):
    done = subprocess.run([sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_json_logs_are_one_event_a_line_also_those_of_libraries():
    first, second, third = map(json.loads, logged("json").splitlines())
    assert (first["event"], first["job_id"], first["level"]) == ("a job ended", 7, "info")
    assert (second["event"], second["level"]) == ("said this", "warning")
    assert "ValueError: broken" in third["exception"]


def test_no_log_shows_the_local_variables_of_an_error():
    for log_format in ("json", "console"):
        text = logged(log_format)
        assert "ValueError: broken" in text
        assert "the text of an item" not in text


def test_without_a_terminal_the_automatic_format_is_json():
    assert json.loads(logged("auto").splitlines()[0])["event"] == "a job ended"
