"""When the owner of a job is told that its webhook is not sent."""

from __future__ import annotations

import pytest

from core.delivery_schedule import unsent_warnings


@pytest.mark.parametrize(
    ("delivery_state", "disabled_reason", "said"),
    [
        (None, None, None),
        ("pending", None, None),
        ("leased", None, None),
        ("delivered", None, None),
        ("delivered", "gone", None),
        ("leased", "failing", None),  # its deliverer settles it
        (None, "gone", "webhook_endpoint_disabled: the webhook of this job will not be sent"),
        ("given_up", "failing", "webhook_endpoint_disabled: the webhook of this job was not sent"),
        ("given_up", None, "webhook_given_up"),
    ],
)
def test_the_owner_is_told_of_what_is_not_sent_and_of_nothing_else(delivery_state, disabled_reason, said):
    warnings = unsent_warnings(delivery_state, disabled_reason)
    assert len(warnings) == (said is not None)
    assert all(warning.startswith(said) for warning in warnings)
