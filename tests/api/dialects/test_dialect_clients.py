"""The real clients of other systems, unmodified but for their base URL and key."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace

import cohere
import httpx
import pytest
from cards import FAKE_CARD
from dialect_tables import PAGE
from huggingface_hub import InferenceClient, close_session
from huggingface_hub.errors import HfHubHTTPError
from in_process_worker import working
from keyed import add_key, door

from core.builtin_templates import QWEN3_RERANKER
from store import model_cards
from store.tokenizer import ByteTokenizer

QUERY = "how do plants make sugar?"
TEXTS = ["Granite is a rock.", "Photosynthesis.", "Clouds are made of water."]
CARD = replace(FAKE_CARD, name="keyed", default_template=QWEN3_RERANKER.name, templates=[QWEN3_RERANKER])


@pytest.fixture(autouse=True)
def _connections_are_closed():
    yield
    close_session()


@pytest.fixture
def keyed(serving, api_settings, database, database_url, valkey_url):
    """The address of a front end that asks for a key, and one; it serves a model that is scored."""
    with door(serving, api_settings, database, database_url, require_keys="always") as entrance:
        with database.begin() as connection:
            connection.exec_driver_sql("DELETE FROM model_cards")
            model_cards.publish(connection, CARD, None)
        with working(database, valkey_url, CARD, ByteTokenizer()):
            yield entrance.url, add_key(database, "one")[0]


@pytest.fixture
def expected(keyed):
    """The native scores, by index."""
    url, key = keyed
    body = {"query": QUERY, "items": TEXTS}
    headers = {"Authorization": f"Bearer {key}", "Prefer": "wait=20"}
    answer = httpx.post(f"{url}/v1/jobs", json=body, headers=headers, timeout=30)
    return {each["index"]: each["score"] for each in answer.json()["results"]}


@pytest.fixture(params=[cohere.ClientV2, cohere.Client], ids=["v2", "v1"])
def coheres(keyed, request):
    """Cohere's client of that version, made with a key."""

    with ExitStack() as stack:
        yield lambda key: stack.enter_context(request.param(base_url=keyed[0], api_key=key, timeout=30))


def test_coheres_client_ranks(coheres, keyed, expected):
    answer = coheres(keyed[1]).rerank(model="keyed", query=QUERY, documents=TEXTS)
    assert [(each.index, each.relevance_score) for each in answer.results] == sorted(
        expected.items(), key=lambda each: -each[1]
    )
    assert answer.id.startswith("rerank-")
    assert answer.meta.tokens.input_tokens > 0
    assert answer.meta.warnings == []
    best = coheres(keyed[1]).rerank(model="default", query=QUERY, documents=TEXTS, top_n=1)
    assert len(best.results) == 1


def test_coheres_client_hears_what_was_cut(keyed):
    with cohere.ClientV2(base_url=keyed[0], api_key=keyed[1]) as client:
        answer = client.rerank(model="keyed", query=QUERY, documents=TEXTS, max_tokens_per_doc=16)
    assert answer.meta.warnings == [
        "documents[0]: 2 tokens were cut off its end",
        "documents[2]: 9 tokens were cut off its end",
    ]


def test_coheres_first_version_sends_documents_back(keyed):
    with cohere.Client(base_url=keyed[0], api_key=keyed[1]) as client:
        answer = client.rerank(
            model="keyed",
            query=QUERY,
            documents=[{"text": text} for text in TEXTS],
            return_documents=True,
            rank_fields=["text"],
        )
    assert all(each.document.text == TEXTS[each.index] for each in answer.results)


def test_coheres_client_raises_its_own_errors(coheres, keyed):
    client = coheres(keyed[1])
    with pytest.raises(cohere.errors.BadRequestError) as refused:
        client.rerank(model="keyed", query=QUERY, documents=[])
    assert "documents" in refused.value.body["message"]
    with pytest.raises(cohere.errors.NotFoundError) as refused:
        client.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS)
    assert "rerank-v3.5" in refused.value.body["message"]
    with pytest.raises(cohere.errors.UnauthorizedError):
        coheres("rk_" + "A" * 43).rerank(model="keyed", query=QUERY, documents=TEXTS)


def test_hugging_faces_client_compares_sentences(keyed, expected):
    client = InferenceClient(model=f"{keyed[0]}/similarity", api_key=keyed[1])
    assert client.sentence_similarity(QUERY, other_sentences=TEXTS) == list(expected.values())
    with pytest.raises(HfHubHTTPError, match="422") as refused:
        client.sentence_similarity(QUERY, other_sentences=["\0"])
    assert refused.value.response.json()["error_type"] == "Validation"


def test_the_code_on_the_page_runs(keyed, capsys):
    url, key = keyed
    page = PAGE.read_text().replace("http://127.0.0.1:8000", url)
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for program in programs:
        exec(program.replace("rk_...", key), {})
    printed = re.findall(r"^0\.\d{3}  (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(programs) == 2
    assert sorted(printed) == sorted(["Granite is a rock.", "Photosynthesis."] * 2)
    (command,) = re.findall(r"```sh\n(curl .*?)```", page, re.DOTALL)
    if shutil.which("curl"):
        told = ["bash", "-c", command.replace("curl", f"curl -sS -H 'Authorization: Bearer {key}'", 1)]
        answer = subprocess.run(told, check=True, capture_output=True, timeout=60, text=True).stdout
        assert answer.startswith('[{"index":')
