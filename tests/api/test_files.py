"""Files: what OpenAI's client uploads comes back to the byte, in bounded memory, and what is refused leaves nothing."""

from __future__ import annotations

import random
import socket
import time
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import openai
import pytest
from batch_world import asking
from memory_growth import watched_growth

from store import files
from store.files import PIECE_BYTES


@pytest.fixture
def world(api_url):
    with asking(api_url, "none") as world:
        yield world


@pytest.fixture
def num_pieces(ledger):
    def num_pieces():
        with ledger.begin() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM file_pieces").scalar()

    return num_pieces


SIZES = [1, 2, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7]


@pytest.mark.parametrize("size", SIZES)
def test_what_was_uploaded_comes_back_to_the_byte(size, world):
    data = random.Random(size).randbytes(size)
    file = world.openai.files.create(file=('a "b" é.jsonl', data), purpose="batch")
    assert (file.bytes, file.filename, file.status) == (size, 'a "b" é.jsonl', "processed")
    assert world.openai.files.retrieve(file.id) == file
    assert world.openai.files.content(file.id).content == data


def test_a_range_of_a_file_is_read_without_the_rest(world, ledger):
    data = random.Random(1).randbytes(2 * PIECE_BYTES + 100)
    made = world.openai.files.create(file=data, purpose="batch")
    file_id = UUID(made.id.removeprefix("file-"))
    for first, size in [
        (0, 1),
        (PIECE_BYTES - 1, 2),
        (PIECE_BYTES, PIECE_BYTES),
        (5, 2 * PIECE_BYTES),
        (len(data) - 1, 1),
    ]:
        found = b"".join(files.read(ledger, file_id, first_byte=first, num_bytes=size))
        assert found == data[first : first + size]


def test_a_file_expires_when_it_is_asked_to_and_at_the_latest_with_retention(world):
    for seconds, expected in [(3_600, 3_600), (2_592_000, 30 * 86_400)]:
        file = world.upload(["a"], expires_after={"anchor": "created_at", "seconds": seconds})
        assert file.expires_at - file.created_at == expected
    file = world.upload(["a"])
    assert file.expires_at - file.created_at == 30 * 86_400


def test_an_expired_file_is_not_there_and_its_bytes_go(world, ledger, num_pieces):
    file, before = world.upload(["a"]), num_pieces()
    with ledger.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE files SET expires_at = now() WHERE id = %s", (file.id.removeprefix("file-"),)
        )
    for ask in (world.openai.files.retrieve, world.openai.files.content, world.openai.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(file.id)
    assert file.id not in [each.id for each in world.openai.files.list()]
    with ledger.begin() as connection:
        files.remove_expired(connection)
    assert num_pieces() == before - 1


def test_a_deleted_file_is_gone_with_its_bytes(world, num_pieces):
    before = num_pieces()
    file = world.upload(["a"])
    deleted = world.openai.files.delete(file.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "file", True)
    with pytest.raises(openai.NotFoundError) as refused:
        world.openai.files.delete(file.id)
    assert refused.value.code == "file_not_found"
    assert num_pieces() == before


def test_lists_are_paged_both_ways(world):
    made = [world.upload([str(n)]).id for n in range(5)]
    page = world.openai.files.list(limit=2)
    assert ([each.id for each in page.data], page.has_more) == (made[:-3:-1], True)
    assert [each.id for each in world.openai.files.list(order="asc", after=made[0], purpose="batch").data] == made[1:]
    assert world.openai.files.list(purpose="batch_output", after=made[0], order="asc").data == []


def part(name, value, *, filename=None):
    where = f'; filename="{filename}"' if filename is not None else ""
    return f'--edge\r\nContent-Disposition: form-data; name="{name}"{where}\r\n\r\n{value}\r\n'


FORMS = {  # its parts, the status and the code
    "no file": ([part("purpose", "batch")], 400, "missing_field"),
    "no purpose": ([part("file", "a", filename="a")], 400, "missing_field"),
    "another purpose": ([part("purpose", "fine-tune"), part("file", "a", filename="a")], 400, "invalid_purpose"),
    "an empty file": ([part("purpose", "batch"), part("file", "", filename="a")], 400, "empty_file"),
    "two files": ([part("file", "a", filename="a")] * 2, 400, "conflicting_fields"),
    "an unknown field": ([part("colour", "red")], 400, "unknown_field"),
    "a long text": ([part("purpose", "x" * 5_000)], 400, "out_of_range"),
    "many fields": ([part("purpose", "batch")] * 40, 400, "invalid_multipart"),
    "a field without a name": (["--edge\r\nContent-Type: text/plain\r\n\r\nx\r\n"], 400, "invalid_multipart"),
    "another anchor": (
        [part("file", "a"), part("purpose", "batch"), part("expires_after[anchor]", "now")],
        400,
        "invalid_value",
    ),
    "too short an expiry": (
        [
            part("file", "a"),
            part("purpose", "batch"),
            part("expires_after[anchor]", "created_at"),
            part("expires_after[seconds]", "5"),
        ],
        400,
        "out_of_range",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_none_is_refused_and_leaves_nothing(name, api, num_pieces):
    parts, status, code = FORMS[name]
    before = num_pieces()
    body = "".join(parts) + "--edge--\r\n"
    answer = api.post("/v1/files", content=body, headers={"Content-Type": "multipart/form-data; boundary=edge"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert num_pieces() == before


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary="])
def test_another_type_is_refused(content_type, api):
    answer = api.post("/v1/files", content=b"{}", headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_a_file_that_is_too_large_is_refused_by_name_whether_it_says_so_or_not(serving, api_settings, num_pieces):
    with serving(api_settings.model_copy(update={"max_file_bytes": 3_000_000})) as url, asking(url, "none") as world:
        before = num_pieces()
        assert world.openai.files.create(file=b"x" * 3_000_000, purpose="batch").bytes == 3_000_000
        for size in (3_000_001, 9_000_000):
            with pytest.raises(openai.APIStatusError) as refused:
                world.openai.files.create(file=b"x" * size, purpose="batch")
            assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
        assert num_pieces() == before + 3


def test_a_body_that_breaks_off_leaves_nothing(api_url, num_pieces):
    before, address = num_pieces(), urlsplit(api_url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        head = part("purpose", "batch") + '--edge\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        lines = ["POST /v1/files HTTP/1.1", "Host: x", "Content-Type: multipart/form-data; boundary=edge"]
        lines += [f"Content-Length: {10 * PIECE_BYTES}", "", head]
        connection.sendall("\r\n".join(lines).encode() + b"x" * (2 * PIECE_BYTES))
        until = time.monotonic() + 60
        while num_pieces() == before:
            assert time.monotonic() < until
            time.sleep(0.02)
    while num_pieces() != before:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_file_costs_no_memory_on_its_way_in_or_out(world):
    piece = random.Random(2).randbytes(PIECE_BYTES)
    size = 48 * PIECE_BYTES

    head = (part("purpose", "batch") + '--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\n').encode()

    def body():
        yield head
        yield from (piece for _ in range(48))
        yield b"\r\n--edge--\r\n"

    with watched_growth() as growth:
        answer = httpx.post(
            f"{world.openai.base_url}files",
            content=body(),
            headers={"Content-Type": "multipart/form-data; boundary=edge"},
            timeout=120,
            trust_env=False,
        )
        assert answer.json()["bytes"] == size
        with world.openai.files.with_streaming_response.content(answer.json()["id"]) as streamed:
            assert sum(map(len, streamed.iter_bytes(PIECE_BYTES))) == size
    assert growth.num_bytes < 30 * PIECE_BYTES
    world.openai.files.delete(answer.json()["id"])
