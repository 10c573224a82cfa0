"""What an error of the database says is logged, and so tells nothing of what was written."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError


def test_an_error_of_a_statement_does_not_name_its_parameters(database):
    with pytest.raises(SQLAlchemyError) as raised, database.begin() as connection:
        connection.execute(text("SELECT nothing FROM nowhere WHERE x = :value"), {"value": "the text of an item"})
    assert "nowhere" in str(raised.value)
    assert "the text" not in str(raised.value)
