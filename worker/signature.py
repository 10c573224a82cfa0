"""Signs a webhook as Standard Webhooks 1.0.0 says, so that its receivers verify it with any of that project's libraries.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#signature-scheme
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret starts with, not a secret


def signed_headers(webhook_id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The three headers. ``timestamp`` is the attempt's, in whole seconds since 1970; the id stays over all attempts.

    There is a signature for each secret, so that a receiver that knows any of them can verify it.
    """
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(_signature(signed, secret) for secret in secrets),
    }


def _signature(signed: bytes, secret: str) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
