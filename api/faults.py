"""Faults of names, types and bounds that msgspec found in a request, as refusals with a code and a field.

msgspec says what is wrong and where in one English sentence; the sentences are pinned by tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from api.requests import Item
from core.errors import Refused

T = TypeVar("T", bound=msgspec.Struct)

_SENTENCE = re.compile(r"(?P<fault>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number with a fraction",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_ALIKE = (  # what different systems call the same
    {"items", "documents", "texts", "passages", "candidates"},
    {"query", "queries"},
    {"top_k", "top_n"},
    {"instruction", "instruct"},
    {"labels", "label"},
    {"text", "document"},
    {"id", "custom_id"},
    {"return_documents", "return_text"},
)


def to_request(value: Any, kind: type[T]) -> T:
    """The request of that kind in a parsed body. Raises Refused naming the field at fault."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), value, kind) from None
    except UnicodeEncodeError as error:
        field = next((path for path, text in _names_and_texts(value) if text == error.object), "")
        raise Refused("lone_surrogate", f"{field} holds a lone surrogate, which is not text", field=field) from None


def _refusal(sentence: str, value: Any, kind: type[msgspec.Struct]) -> Refused:
    match = _SENTENCE.fullmatch(sentence)
    assert match is not None, "the pattern matches any text"
    fault, path = match["fault"], match["path"] or ""
    code, detail, field = _explain(fault, path, value, kind)
    index = re.match(r"items\[(\d+)\]", field)
    return Refused(code, detail, field=field or None, item=int(index[1]) if index else None)


def _explain(fault: str, path: str, value: Any, kind: type[msgspec.Struct]) -> tuple[str, str, str]:
    name = path or "the body"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", fault, re.DOTALL):
        field = f"{path}.{found[1]}" if path else found[1]
        return "unknown_field", f"there is no field {field!r}{_suggestion(found[1], path, kind)}", field
    if found := re.fullmatch(r"Object missing required field `(.*)`", fault):
        field = f"{path}.{found[1]}" if path else found[1]
        return "missing_field", f"{field} is required", field
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", fault):
        return "wrong_type", f"{name} must be {_types(found[1])}, not {_types(found[2])}", path
    if fault.startswith("Invalid enum value"):
        choices = " or ".join(repr(choice) for choice in _choices(_hint_at(kind, path)))
        return "invalid_value", f"{name} must be {choices}, not {_value_at(value, path)!r}", path
    bound = re.sub(r"^Expected `\w+` ", "", fault)
    return "out_of_range", f"{name} must be {bound}; it is {_size_at(value, path)}", path


def _types(names: str) -> str:
    return " or ".join(_TYPES.get(name, name) for name in names.split(" | "))


def _choices(hint: Any) -> list[str]:
    """The values of a Literal, alone or beside None."""
    return [choice for part in get_args(hint) for choice in (get_args(part) or [part]) if isinstance(choice, str)]


def _hint_at(hint: Any, path: str) -> Any:
    """The type of the field at a path of msgspec's, through whatever lists and alternatives lead there."""
    for name in _NAME.findall(path):
        hint = next(hints[name] for hints in map(get_type_hints, _structs(hint)) if name in hints)
    return hint


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from _structs(part)


def _suggestion(name: str, path: str, kind: type[msgspec.Struct]) -> str:
    fields = [field.name for field in msgspec.structs.fields(Item if path.startswith("items") else kind)]
    alike = [field for group in _ALIKE if name in group for field in fields if field in group]
    near = next(iter(alike or get_close_matches(name, fields, 1)), None)
    return f"; there are: {', '.join(fields)}" if near is None else f"; did you mean {near!r}?"


def _value_at(value: Any, path: str) -> Any:
    """What lies at a path of msgspec's, such as ``items[3].text``."""
    for name, index in re.findall(r"([A-Za-z_]+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return value


def _size_at(value: Any, path: str) -> str:
    found = _value_at(value, path)
    return f"{found:,}" if isinstance(found, int) else f"{len(found):,} long"


def _names_and_texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key and every text in a JSON value, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            yield inner_path, name
            yield from _names_and_texts(inner, inner_path)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _names_and_texts(inner, f"{path}[{index}]")
