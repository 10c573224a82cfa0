"""The webhook signature, against the public library and its golden vector."""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from worker.signature import signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the specification's example


def test_the_golden_vector_of_the_specification():
    signed = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [SECRET])
    assert signed == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("body", ["{}", '{"id": "ü"}', "", "a" * 20_000])
def test_the_library_signs_the_same(body):
    now = int(time.time())
    ours = signed_headers("evt_1", now, body.encode(), [SECRET])["webhook-signature"]
    assert ours == Webhook(SECRET).sign("evt_1", datetime.fromtimestamp(now, tz=UTC), body)


def test_the_library_verifies_what_we_sign_and_refuses_what_was_changed():
    secret = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    signed = signed_headers("evt_1", int(time.time()), b'{"a":1}', [secret])
    assert Webhook(secret).verify(b'{"a":1}', signed) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(b'{"a":2}', signed)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(b'{"a":1}', signed | {"webhook-id": "evt_2"})


def test_each_of_two_secrets_has_its_signature_and_a_third_verifies_neither():
    old, new, other = ("whsec_" + base64.b64encode(bytes([value] * 32)).decode() for value in (1, 2, 3))
    signed = signed_headers("evt_1", int(time.time()), b"{}", [new, old])
    for secret in (old, new):
        assert Webhook(secret).verify(b"{}", signed) == {}
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(b"{}", signed)
