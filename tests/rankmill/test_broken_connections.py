"""Connections that break in the middle, by a proxy that cuts them: nothing twice, nothing missing, no second job."""

from __future__ import annotations

import os
import time
import zlib

import pytest
from cutting_proxy import CuttingProxy

from rankmill import Client, ItemFile, NotReady


@pytest.fixture(scope="module")
def job(server_url):
    with Client(server_url) as client:
        ids = ({"id": f'{n}, "x"\r\n{n}', "text": f"{n} " + os.urandom(50).hex()} for n in range(20_000))
        return client.wait(client.submit(items=ids).id)


@pytest.fixture
def direct(server_url):
    with Client(server_url) as client:
        yield client


def ids_after(client, newest):
    return [job.id for job in client.jobs(limit=20) if job.id > newest.id]


@pytest.mark.parametrize("cuts", [[900], [20_000, 30_000, 100], [100_000, 1, 200_000, 300_000]])
def test_results_go_on_behind_the_last_one_that_came(server_url, job, direct, cuts):
    with CuttingProxy(server_url, down=cuts) as proxy, Client(proxy.url) as client:
        found = list(client.results(job.id))
    assert proxy.num_connections > 1
    assert [result.index for result in found] == list(range(20_000))
    assert found == list(direct.results(job.id))


@pytest.mark.parametrize("name", ["r.csv", "r.ndjson", "r.parquet", "r.arrow"])
def test_a_download_that_broke_is_the_same_file_in_the_end(server_url, job, direct, tmp_path, name):
    with CuttingProxy(server_url, down=[60_000, 150, 90_000]) as proxy, Client(proxy.url) as client:
        broken = client.download(job.id, tmp_path / f"broken-{name}")
    assert proxy.num_connections == 4
    assert broken.read_bytes() == direct.download(job.id, tmp_path / name).read_bytes()


def test_patience_ends_and_leaves_no_half_file_under_the_name(server_url, job, tmp_path):
    with (
        CuttingProxy(server_url, down=[150] * 50) as proxy,
        Client(proxy.url, patience_seconds=1) as client,
        pytest.raises(NotReady, match="can't reach"),
    ):
        client.download(job.id, tmp_path / "r.parquet")
    assert not (tmp_path / "r.parquet").exists()


def test_a_generator_whose_upload_broke_is_not_sent_again(server_url, direct):
    (newest,) = direct.jobs(limit=1)
    items = (os.urandom(500).hex() for _ in range(50_000))
    with (
        CuttingProxy(server_url, up=[3 << 20]) as proxy,
        Client(proxy.url) as client,
        pytest.raises(NotReady, match=r"broken off in line [\d,]+ of the items .* can't be read again"),
    ):
        client.submit(items=items)
    while not (found := ids_after(direct, newest)):  # the server may not have read its first line yet
        time.sleep(0.05)
    (failed_id,) = found
    failed = direct.wait(failed_id)
    assert (failed.status, failed.error["code"]) == ("failed", "upload_incomplete")


def slowly(texts):
    for number, text in enumerate(texts):
        if number % 300 == 0:
            time.sleep(0.1)  # what was sent arrives, and is cut, before all is sent
        yield text


def test_a_file_a_list_and_what_is_still_held_are_sent_again_whole(server_url, tmp_path, direct):
    texts = [os.urandom(500).hex() for _ in range(15_000)]
    held = texts[:1_500]  # under 1 MiB of zstd
    file = tmp_path / "items.txt"
    file.write_text("\n".join(texts))
    for items, sent, num_bytes in (
        (ItemFile(file), texts, 1 << 20),
        (texts, texts, 1 << 20),
        (slowly(held), held, 99_999),
    ):
        pauses = []
        with (
            CuttingProxy(server_url, up=[num_bytes, num_bytes]) as proxy,
            Client(proxy.url, on_pause=lambda seconds, _reason, pauses=pauses: pauses.append(seconds)) as client,
        ):
            job = client.submit(items=items, query="q ")
        assert len(pauses) == 2
        assert direct.wait(job.id).counts.succeeded == len(sent)
        scores = [result.score for result in direct.results(job.id)]
        assert all(
            abs(score - zlib.crc32(f"q {text}".encode()) / 2**32) < 1e-6
            for score, text in zip(scores, sent, strict=True)
        )


def test_a_job_whose_answer_was_lost_is_sent_again_and_is_one(server_url, direct):
    (newest,) = direct.jobs(limit=1)
    for items in (["a", "b"], iter(["a", "b"]), [str(number) for number in range(3_000)]):
        with CuttingProxy(server_url, down=[1, 1]) as proxy, Client(proxy.url) as client:
            job = client.submit(items=items)
        assert proxy.num_connections == 3
        assert ids_after(direct, newest) == [job.id]
        newest = job


def test_a_job_whose_answers_are_all_lost_may_have_been_taken_and_says_so(server_url, direct):
    (newest,) = direct.jobs(limit=1)
    with (
        CuttingProxy(server_url, down=[1] * 50) as proxy,
        Client(proxy.url, patience_seconds=1) as client,
        pytest.raises(NotReady, match="may have been taken"),
    ):
        client.submit(items=["a", "b"])
    assert proxy.num_connections > 1
    (job_id,) = ids_after(direct, newest)
    newest = direct.job(job_id)
    spent = (os.urandom(500).hex() for _ in range(5_000))  # more than is held
    with (
        CuttingProxy(server_url, down=[1]) as proxy,
        Client(proxy.url) as client,
        pytest.raises(NotReady, match="may have been taken"),
    ):
        client.submit(items=spent)
    assert len(ids_after(direct, newest)) == 1


def test_waiting_bears_with_broken_connections(server_url, direct):
    job = direct.submit(items=map(str, range(5_000)))
    with CuttingProxy(server_url, down=[1, 1]) as proxy, Client(proxy.url) as client:
        assert client.wait(job.id).counts.succeeded == 5_000
