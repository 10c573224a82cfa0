"""Under which idempotency key a submission is sent again, without a server: two jobs of one are never risked."""

from __future__ import annotations

import httpx
import pytest

from core.errors import NotReady, Refused
from rankmill import calls
from rankmill.backoff import Backoff
from rankmill.replies import DryRun, Job
from rankmill.steps import Away, Pause

UNSENT = Away(NotReady("nobody listens"), is_unsent=True)
LOST = Away(NotReady("the connection broke"), is_unsent=False)
SERVER = httpx.Request("POST", "http://server/v1/jobs")


def problem(status, code):
    return httpx.Response(status, json={"code": code, "detail": code}, request=SERVER)


IN_USE = problem(409, "idempotency_key_in_use")
BUSY = problem(503, "not_ready")


class Submission:
    """A call of ``submit`` whose attempts end as they are told to."""

    def __init__(self, *, is_upload, kind=Job, **fields):
        items = (str(n) for n in range(5_000)) if is_upload else ["a"]
        whole, self.upload = calls.submission(fields, items)
        self.call = calls.submit(kind, whole, self.upload, Backoff(1_000))
        self.step = self.call.send(None)

    @property
    def key(self):
        return self.step.headers.get("Idempotency-Key")

    def ends_with(self, outcome, *, is_whole=True):
        """The attempt at hand ends so; its key. ``is_whole``: all of the body was sent."""
        key = self.key
        if self.upload is not None:
            self.upload.has_ended = is_whole
        assert isinstance(self.call.send(outcome), Pause)
        self.step = self.call.send(None)
        return key


@pytest.mark.parametrize("is_upload", [False, True])
@pytest.mark.parametrize("outcome", [LOST, IN_USE, BUSY])
def test_what_may_have_been_taken_is_sent_again_under_its_key(is_upload, outcome):
    submission = Submission(is_upload=is_upload)
    assert submission.ends_with(outcome) == submission.key
    assert submission.ends_with(outcome) == submission.key


def test_a_body_that_broke_off_is_sent_again_under_another_key():
    submission = Submission(is_upload=True)
    first = submission.ends_with(LOST, is_whole=False)
    second = submission.ends_with(UNSENT, is_whole=False)
    assert len({first, second, submission.key}) == 3


@pytest.mark.parametrize("later", [LOST, UNSENT, BUSY])
def test_once_it_may_have_been_taken_the_key_stays_whatever_becomes_of_later_attempts(later):
    submission = Submission(is_upload=True)
    first = submission.ends_with(LOST)
    assert submission.ends_with(later, is_whole=False) == first
    assert submission.key == first


def test_every_submission_has_a_key_of_its_own_and_a_dry_run_has_none():
    assert Submission(is_upload=False).key != Submission(is_upload=False).key
    for is_upload in (False, True):
        assert Submission(is_upload=is_upload, kind=DryRun, dry_run=True).key is None


def test_another_conflict_is_not_waited_out():
    submission = Submission(is_upload=False)
    with pytest.raises(Refused, match="upload_ended"):
        submission.call.send(problem(409, "upload_ended"))
