from __future__ import annotations

import asyncio
import json
import os
from itertools import count

import psutil
import pytest
from cutting_proxy import CuttingProxy

from rankmill import AsyncClient, Refused

HELD_MEGABYTES = 15


async def items(num_items):
    for number in range(num_items):
        yield {"id": f"id-{number}", "text": f"{number} " + "x" * 200}


def test_an_async_generator_goes_up_and_its_results_come_down_in_constant_memory(server_url):
    async def run():
        process = psutil.Process()
        async with AsyncClient(server_url) as client:
            assert await client.is_ready()
            await client.rerank("warm ", ["u", "p"])
            before = process.memory_info().rss
            job = await client.submit(items=items(60_000), query="q ")
            job = await client.wait(job.id)
            indexes = [result.index async for result in client.results(job.id)]
            return job, indexes, (process.memory_info().rss - before) / 1e6

    job, indexes, grown = asyncio.run(run())
    assert job.counts.succeeded == 60_000
    assert indexes == list(range(60_000))
    assert grown < HELD_MEGABYTES


def test_many_jobs_go_on_at_once(server_url):
    async def run():
        async with AsyncClient(server_url) as client:
            return await asyncio.gather(*(client.rerank(f"q{n} ", ["a", "b", "c"]) for n in range(20)))

    assert all(len(ranked) == 3 for ranked in asyncio.run(run()))


def test_results_and_files_go_on_where_the_connection_broke(server_url, tmp_path):
    async def run():
        async with AsyncClient(server_url) as direct:
            job = await direct.wait((await direct.submit(items=items(10_000))).id)
        with CuttingProxy(server_url, down=[5_000, 70_000, 150_000]) as proxy:
            async with AsyncClient(proxy.url) as client:
                indexes = [result.index async for result in client.results(job.id)]
        with CuttingProxy(server_url, down=[5_000, 70_000]) as proxy:
            async with AsyncClient(proxy.url) as client:
                await client.download(job.id, tmp_path / "r.jsonl")
        return indexes, proxy.num_connections

    indexes, num_connections = asyncio.run(run())
    assert indexes == list(range(10_000))
    assert num_connections == 3
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(10_000))


def test_a_refusal_ends_an_endless_upload(server_url):
    async def endless():
        for number in count():
            yield os.urandom(200).hex() if number % 3 != 1 else {"colour": 1}

    async def run():
        async with AsyncClient(server_url) as client:
            await client.submit(items=endless())

    with pytest.raises(Refused, match="item 1 is not valid"):
        asyncio.run(run())


def test_an_error_of_the_items_is_the_callers_own(server_url):
    async def broken():
        async for item in items(5_000):
            yield item
        raise LookupError("no more")

    async def run():
        async with AsyncClient(server_url) as client:
            await client.submit(items=broken())

    with pytest.raises(LookupError) as raised:
        asyncio.run(run())
    assert "nothing of it is scored" in raised.value.__notes__[0]
