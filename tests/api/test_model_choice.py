"""Which model a request means is looked up once a second, and each time where it is not served."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cards import FAKE_CARD

from api import model_choice
from api.model_choice import KEPT_SECONDS, ModelChoice
from core.errors import NotReady, Refused
from store import model_cards


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(model_choice, "time", clock)
    monkeypatch.setattr(model_choice, "KEPT_SECONDS", KEPT_SECONDS)
    return clock


@pytest.fixture
def publish(database):
    def publish(**changes):
        card = replace(FAKE_CARD, **changes)
        with database.begin() as connection:
            model_cards.publish(connection, card, None)
        return card

    return publish


@pytest.mark.parametrize("name", [None, FAKE_CARD.name])
def test_a_card_that_was_found_is_kept_for_a_second(name, clock, database, publish):
    choice, first = ModelChoice(database), publish()
    assert choice.card(name) == first
    second = publish(revision="another")
    assert choice.card(name) == first
    clock.now += KEPT_SECONDS
    assert choice.card(name) == second


def test_what_is_not_served_is_looked_up_each_time(clock, database, publish):
    choice = ModelChoice(database)
    with pytest.raises(NotReady):
        choice.card(None)
    first = publish()
    assert choice.card(None) == first
    with pytest.raises(Refused, match="no model 'late'"):
        choice.card("late")
    second = publish(name="late")
    assert choice.card("late") == second
    clock.now += KEPT_SECONDS
    with pytest.raises(Refused, match="several models"):
        choice.card(None)


def test_of_one_model_one_card_is_kept_however_it_is_asked_for(clock, database, publish):
    choice, first = ModelChoice(database), publish()
    assert choice.card(None) == first
    clock.now += KEPT_SECONDS / 2
    second = publish(revision="another")
    assert choice.card(FAKE_CARD.name) == first
    clock.now += KEPT_SECONDS / 2
    assert choice.card(FAKE_CARD.name) == second
    third = publish(revision="a third")
    assert choice.card(None) == third
    assert choice.card(FAKE_CARD.name) == third
