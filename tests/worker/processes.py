"""Real processes for tests: started like the command line starts them, with settings from the environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
STARTS = {
    "worker": "from worker.app import run",
    "deliverer": "from worker.deliverer import run",
    "scheduler": "from scheduler.loop import run",
}
CONFIGURE = "from core.settings import Settings; from rankmill.logs import configure; configure(settings := Settings())"


class Process:
    """One process of the stack, in a session of its own, so that nothing of it outlives the test."""

    def __init__(self, kind, log, settings):
        self.log = Path(log)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKMILL_")}
        environment |= {f"RANKMILL_{name.upper()}": str(value) for name, value in settings.items()}
        environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}", "PYTHONUNBUFFERED": "1"}
        script = f"{STARTS[kind]}; {CONFIGURE}; run(settings)"
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-c", script],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self.popen.pid

    def said(self, words):
        return words in self.log.read_text()

    def wait_for(self, words, *, seconds=20):
        wait_until(lambda: self.said(words) or self.popen.poll() is not None, seconds=seconds, what=words)
        assert self.said(words), self.log.read_text()

    def terminate(self, *, seconds=15):
        """SIGTERM; the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(seconds)

    def kill(self):
        """SIGKILL to the process alone, as the kernel would."""
        self.popen.kill()
        self.popen.wait()

    def end(self):
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@contextmanager
def running(kind, folder, **settings):
    """A process of this kind, killed at the end of the block if it still runs."""
    number = len(list(Path(folder).glob("*.log")))
    process = Process(kind, Path(folder) / f"{kind}-{number}.log", settings)
    try:
        yield process
    finally:
        process.end()


def wait_until(condition, *, seconds=20, what="the condition"):
    """Poll: what a test waits for has no event of its own."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.02)
