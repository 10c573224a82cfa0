"""Webhooks: each ended job is told of at least once, always under the same id."""

from __future__ import annotations

import time

from listener import hurry, receiving
from load import Load, make_items
from scenarios import scenario
from stack import eventually

PART = "Webhooks"
TOLD_SECONDS = 30


def delivered(stack, job_id):
    query = "SELECT state FROM deliveries WHERE job_id = %(id)s AND state = 'delivered'"
    eventually(lambda: stack.sql(query, id=job_id), seconds=TOLD_SECONDS, what="the webhook is delivered")


@scenario(
    PART,
    "the deliverer is killed between its post and the record: the receiver is told twice, under one id",
    is_quick=True,
)
def killed_after_the_post(stack):
    with receiving() as receiver:
        receiver.may_answer.clear()
        job_id = Load(stack).submit(make_items(3), webhook_url=receiver.url)
        eventually(lambda: receiver.told, seconds=TOLD_SECONDS, what="the first post")
        stack.kill_and_start("deliverer")
        receiver.may_answer.set()
        hurry(stack)
        delivered(stack, job_id)
        assert len(receiver.told) == 2
        assert len(receiver.ids) == 1


@scenario(PART, "Postgres restarts between a post and its record: it is recorded, and sent once")
def restart_after_the_post(stack):
    with receiving() as receiver:
        receiver.may_answer.clear()
        job_id = Load(stack).submit(make_items(3), webhook_url=receiver.url)
        eventually(lambda: receiver.told, seconds=TOLD_SECONDS, what="the first post")
        stack.to_postgres.refuse()
        receiver.may_answer.set()
        time.sleep(1)
        stack.to_postgres.heal()
        delivered(stack, job_id)
        assert len(receiver.told) == 1


@scenario(PART, "a receiver answers 500 three times, then takes it: one id")
def failing_receiver(stack):
    with receiving() as receiver:
        receiver.status = 500
        job_id = Load(stack).submit(make_items(3), webhook_url=receiver.url)
        for number in range(1, 4):
            eventually(lambda number=number: len(receiver.told) >= number, seconds=TOLD_SECONDS, what="a post")
            eventually(
                lambda: stack.sql("SELECT 1 FROM deliveries WHERE state = 'pending' AND attempts > 0"),
                seconds=10,
                what="a record",
            )
            if number == 3:
                receiver.status = 200
            hurry(stack)
        delivered(stack, job_id)
        assert (len(receiver.told), len(receiver.ids)) == (4, 1)


@scenario(PART, "the hint of a delivery is lost")
def lost_hint(stack):
    stack.kill("deliverer")
    with receiving() as receiver:
        job_id = Load(stack).submit(make_items(3), webhook_url=receiver.url)
        hinted = "SELECT 1 FROM deliveries WHERE job_id = %(id)s AND hinted_at IS NOT NULL"
        eventually(lambda: stack.sql(hinted, id=job_id), seconds=TOLD_SECONDS, what="the hint")
        with stack.redis() as client:
            client.flushall()
        stack.start("deliverer")
        delivered(stack, job_id)
        assert len(receiver.told) == 1


@scenario(PART, "the worker is killed right after it ended a job: the webhook is sent all the same")
def killed_after_the_end(stack):
    with receiving() as receiver:
        jobs = Load(stack)
        job_id = jobs.submit(make_items(3), webhook_url=receiver.url)
        jobs.until_ended()
        for name in ("worker-a", "worker-b"):
            stack.kill(name)
        delivered(stack, job_id)
        assert len(receiver.ids) == 1
