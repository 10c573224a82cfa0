"""Arrays of numbers keep every bit on their way to Postgres and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sqlalchemy import text

from store.number_arrays import Integers, Reals, cursor_of

EXTREMES = [0.0, -0.0, 1e-45, -3.4e38, math.inf, -math.inf, math.nan, 1 / 3]


@pytest.mark.parametrize("values", [EXTREMES, np.array(EXTREMES, np.float32), [], [0.5]])
def test_reals_come_back_as_they_went(database, values):
    with database.begin() as connection:
        found = connection.execute(text("SELECT CAST(:values AS real[])"), {"values": Reals(values)}).scalar_one()
        assert np.array(found, np.float32).tobytes() == np.asarray(values, np.float32).tobytes()
        with cursor_of(connection) as cursor:
            (read,) = cursor.execute("SELECT %s::real[]", [Reals(values)]).fetchone()
    assert read.tobytes() == np.asarray(values, np.float32).tobytes()


@pytest.mark.parametrize("values", [[0, -1, 2**31 - 1, -(2**31)], np.arange(1_000), []])
def test_integers_come_back_as_they_went(database, values):
    with database.begin() as connection:
        found = connection.execute(text("SELECT CAST(:values AS int[])"), {"values": Integers(values)}).scalar_one()
    assert found == list(values)


def test_an_integer_that_does_not_fit_is_refused_and_not_wrapped(database):
    with database.begin() as connection, pytest.raises(OverflowError):
        connection.execute(text("SELECT CAST(:values AS int[])"), {"values": Integers([2**31])})
