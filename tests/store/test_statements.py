"""SQL has no value in its text: a statement is a constant, and what is put into one is a constant of ours or a listed name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "core", "store", "scheduler", "worker", "rankmill", "migrations")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
RUNS = {"execute", "executemany", "exec_driver_sql", "copy", "stream", "scalar", "scalars"}  # methods of connections

# Names of tables and columns can't be parameters. Each place that puts one in, and where the name comes from.
IDENTIFIERS: dict[tuple[str, str], str] = {
    ("store/batch_parts.py", "with_bytes"): "one of two columns, asserted above it",
    ("store/batch_steps.py", "_END.format(columns=assignments, all=COLUMNS)"): "keyword arguments of callers of ours",
    ("store/batch_steps.py", "table"): "of a tuple of constants in the line above",
    ("store/batches.py", "lock"): "FOR UPDATE or nothing, by a bool",
    ("store/chunk_inserts.py", "job"): "a constant in the line above it",
    ("store/chunk_inserts.py", "new_chunks(num_chunks, 'job')"): "names of numbered parameters, which are bound",
    ("store/jobs.py", "new_chunks(num_chunks, 'job')"): "names of numbered parameters, which are bound",
    ("store/files.py", "statement"): "put together from constants, with one of two directions",
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def is_constant(node):
    """A text that is the same at every start: a literal, a name in capitals, or those put together."""
    match node:
        case ast.Constant():
            is_so = True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            is_so = name.isupper()
        case ast.JoinedStr(values=parts):
            is_so = all(map(is_constant, parts))
        case ast.FormattedValue(value=value, format_spec=None) | ast.Subscript(value=value):
            is_so = is_constant(value)
        case ast.BinOp(left=one, op=ast.Add(), right=other) | ast.IfExp(body=one, orelse=other):
            is_so = is_constant(one) and is_constant(other)
        case _:
            is_so = False
    return is_so


def is_text(node):
    """Whether it makes a text here and now, which may have a value in it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in {"format", "join", "replace", "format_map"}
    return isinstance(node, ast.JoinedStr | ast.BinOp)


def name_of_call(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def inconstant(node):
    """The expressions that go into a text and are no constants; the whole where it is no f-string."""
    if isinstance(node, ast.JoinedStr):
        return [ast.unparse(part.value) for part in node.values if not is_constant(part)]
    return [] if is_constant(node) else [ast.unparse(node)]


def unconstant_parts(path):
    """What goes into the text of a statement and is no constant."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        statement, called = node.args[0], name_of_call(node)
        if called in {"text", "SQL"} or (called in RUNS and is_text(statement)):
            yield from inconstant(statement)


def found():
    return {(name_of(path), part) for path in SOURCES for part in unconstant_parts(path)}


def test_no_statement_has_a_value_in_its_text():
    unlisted = sorted(found() - IDENTIFIERS.keys())
    assert not unlisted, "bind it as a parameter; for a name of a table or a column, list it with where it comes from"


def test_no_place_is_listed_that_is_not_there():
    assert not IDENTIFIERS.keys() - found()


@pytest.mark.parametrize(
    "source",
    [
        "c.execute(text(f'SELECT {x}'))",
        "c.execute(text('SELECT %s' % x))",
        "c.execute(text('SELECT {}'.format(x)))",
        "c.execute(text('SELECT ' + x))",
        "c.execute(text(statement))",
        "c.exec_driver_sql(f'SELECT {x}')",
        "cursor.execute('SELECT %s' % x)",
        "cursor.execute(f'SELECT {X} {x}')",
        "cursor.execute(' '.join(parts))",
        "text(f'SELECT {X:{x}}')",
    ],
)
def test_such_a_statement_is_seen(source, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(unconstant_parts(path))


@pytest.mark.parametrize(
    "source", ["text('SELECT 1')", "text(f'{_A} {rows.B}')", "c.execute(_A, {'x': x})", "f(x % y)"]
)
def test_no_other_is(source, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert not list(unconstant_parts(path))
