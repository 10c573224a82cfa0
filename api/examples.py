"""Examples of requests, as the OpenAPI document shows them. A test posts each."""

from __future__ import annotations

from typing import Any

JOBS: dict[str, dict[str, Any]] = {
    "texts": {
        "summary": "A query and some texts; two labels by their ids",
        "value": {
            "model": "fake",
            "query": "How do plants make sugar? ",
            "items": ["Photosynthesis turns light into sugar.", "Granite is an igneous rock."],
            "label_token_ids": [121, 110],
        },
    },
    "objects": {
        "summary": "Items with ids, labels as texts of one token each, and a webhook",
        "value": {
            "query": "Is this message spam? ",
            "items": [
                {"id": "mail-1", "text": "You have won a prize."},
                {"id": "mail-2", "text": "See you at nine.", "query": "Is this message about a meeting? "},
            ],
            "labels": ["y", "n"],
            "metadata": {"run": "2026-11-30"},
            "webhook_url": "https://example.com/hooks/rankmill",
            "expires_in_seconds": 3600,
        },
    },
    "token_ids": {
        "summary": "Everything as token ids; probabilities over the whole vocabulary",
        "value": {
            "query": [72, 105, 32],
            "items": [[97, 98], {"id": "second", "token_ids": [99, 100]}],
            "label_token_ids": [0, 1, 2],
            "apply_softmax": False,
        },
    },
    "item_alone": {"summary": "No query: the item alone is the prompt", "value": {"items": ["The answer is"]}},
}

DRY_RUNS: dict[str, dict[str, Any]] = {
    "dry_run": {
        "summary": "What a job would be, and when it would be done",
        "value": {"query": "Is this message spam? ", "items": ["You have won a prize.", "Hello."], "dry_run": True},
    }
}

GENERATIVE_SCORING: dict[str, dict[str, Any]] = {
    "texts": {
        "summary": "A question, and texts that complete it",
        "value": {
            "query": "Is this city the capital of France?",
            "items": ["Paris", "London", "New York", "Dublin", "Berlin"],
            "label_token_ids": [121, 110],
        },
    },
    "token_ids": {
        "summary": "Everything as token ids",
        "value": {"query": [100, 200], "items": [[30, 40], [50, 60]], "label_token_ids": [121, 110]},
    },
}

UPLOADS: dict[str, Any] = {
    "lines": {
        "summary": "The job, then its items",
        "value": '{"query": "Is this spam? "}\n"You have won a prize."\n{"id": "mail-2", "text": "See you at nine."}\n',
    }
}
