"""What operators do: stop, upgrade, and restart under load."""

from __future__ import annotations

from load import Load, load, make_items
from scenarios import scenario, tell
from stack import KINDS, eventually

PART = "Operations"
STOP_SECONDS = 10
SLOW_BATCH_MILLISECONDS = 1_500
WAITS = "the schema is older than this version"
LATER = """
    ALTER TABLE jobs ADD COLUMN later text;
    ALTER TABLE chunks ADD COLUMN later int DEFAULT 7;
    ALTER TABLE results ADD COLUMN later real[];
    ALTER TABLE deliveries ADD COLUMN later boolean;
    CREATE TABLE later (id bigint);
    UPDATE alembic_version SET version_num = '9999';
"""
BACK = """
    ALTER TABLE jobs DROP COLUMN later;
    ALTER TABLE chunks DROP COLUMN later;
    ALTER TABLE results DROP COLUMN later;
    ALTER TABLE deliveries DROP COLUMN later;
    DROP TABLE later;
"""


def version_of(stack):
    ((version,),) = stack.sql("SELECT version_num FROM alembic_version")
    return version


def set_version(stack, version):
    stack.sql("UPDATE alembic_version SET version_num = %(version)s", version=version)


@scenario(
    PART, "every process gets SIGTERM under load, with batches of a second and a half: each ends within ten seconds"
)
def warm_stops(stack):
    for name in ("worker-a", "worker-b"):
        stack.kill(name)
        stack.start(name, RANKMILL_STOP_SECONDS=str(STOP_SECONDS), RANKMILL_FAKE_DELAY=str(SLOW_BATCH_MILLISECONDS))
    eventually(stack.is_ready, seconds=60, what="both workers are ready")
    with load(stack, 3_000, 200, seconds=120) as jobs:
        jobs.until(0.02)
        seconds = {name: stack.stop(name, seconds=2 * STOP_SECONDS) for name in KINDS}
        tell("stopped under load: " + ", ".join(f"{name} {taken:.1f} s" for name, taken in seconds.items()))
        assert max(seconds.values()) < STOP_SECONDS, seconds
        ((num_leased,),) = stack.sql("SELECT count(*) FROM chunks WHERE state = 'leased'")
        assert num_leased == 0, "all leases are given back"
        stack.recover()


@scenario(
    PART, "the schema is upgraded under load: processes of the version before go on beside it, and start beside it"
)
def old_processes_beside_a_new_schema(stack):
    version = version_of(stack)
    try:
        with load(stack) as jobs:
            jobs.until(0.1)
            stack.sql(LATER)
            jobs.submit(make_items(300, seed=31))
            for name in KINDS:
                stack.kill_and_start(name)
            eventually(stack.is_ready, seconds=60, what="all are ready beside the later schema")
            jobs.submit(make_items(700, seed=32))
    finally:
        stack.sql(BACK)
        set_version(stack, version)


@scenario(PART, "a worker, a scheduler and a deliverer newer than the schema wait for the migration, and harm nobody")
def new_processes_beside_an_old_schema(stack):
    version = version_of(stack)
    names = ("worker-new", "scheduler-new", "deliverer-new")
    try:
        with load(stack) as jobs:
            jobs.until(0.1)
            set_version(stack, f"{int(version) - 1:04}")
            for name in names:
                stack.start(name)
            for name in names:
                eventually(lambda name=name: WAITS in stack.log(name), seconds=60, what=f"{name} waits")
            assert stack.http.get("/readyz").status_code == 503, "a front end that is newer is not ready"
            jobs.submit(make_items(300, seed=33))
            jobs.until_ended()  # the old ones go on
            ((num_registered,),) = stack.sql(
                "SELECT count(*) FROM workers WHERE pid = %(pid)s", pid=stack.children["worker-new"].pid
            )
            assert num_registered == 0
            set_version(stack, version)
            ready = "SELECT 1 FROM workers WHERE state = 'ready' AND pid = %(pid)s"
            pid = stack.children["worker-new"].pid
            eventually(lambda: stack.sql(ready, pid=pid), seconds=60, what="the new worker is ready")
            for name in ("worker-a", "worker-b"):
                stack.kill(name)
            jobs.submit(make_items(700, seed=34))
    finally:
        set_version(stack, version)


@scenario(PART, "all processes are replaced one after another under load, as a rolling upgrade does")
def replaced_one_by_one(stack):
    jobs = Load(stack)
    for number, name in enumerate(KINDS):
        jobs.submit(make_items(2_000, seed=40 + number))
        jobs.submit(make_items(30, seed=50 + number))
        stack.stop(name)
        stack.start(name)
        eventually(stack.is_ready, seconds=60, what=f"{name} is back")
    jobs.until_ended()
    jobs.check_all()
