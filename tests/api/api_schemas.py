"""A checker for the part of JSON Schema that the front end's document uses; an unknown keyword is an error."""

from __future__ import annotations

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}
ANNOTATIONS = {"title", "description", "default", "format", "examples", "$ref", "contentEncoding", "pattern"}
KEYWORDS = ANNOTATIONS | {
    "type", "enum", "const", "anyOf", "properties", "required", "items", "additionalProperties", "propertyNames",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
}  # fmt: skip


def violations(value, schema, document, path="$"):
    """What is wrong with the value, as sentences."""
    while "$ref" in schema:
        schema = resolve(schema["$ref"], document)
    assert not set(schema) - KEYWORDS, f"the checker does not know {set(schema) - KEYWORDS}"
    if "anyOf" in schema and all(list(violations(value, option, document, path)) for option in schema["anyOf"]):
        yield f"{path} is none of the possible kinds: {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is {value!r}, not one of {schema['enum']}"
    if "type" in schema and not is_of_type(value, schema["type"]):
        yield f"{path} is {value!r}, not of type {schema['type']}"
    if isinstance(value, dict):
        yield from of_object(value, schema, document, path)
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from violations(inner, schema.get("items", {}), document, f"{path}[{index}]")


def of_object(value, schema, document, path):
    """What is wrong with an object; a schema that names properties names them all."""
    yield from (f"{path} lacks {name}" for name in schema.get("required", ()) if name not in value)
    fields, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    if fields and set(value) - set(fields):
        yield f"{path} has undocumented {set(value) - set(fields)}"
    for name, inner in value.items():
        yield from violations(inner, fields.get(name, others or {}), document, f"{path}.{name}")


def is_of_type(value, kind):
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, TYPES[kind])


def resolve(reference, document):
    found = document
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def references(value):
    """Every ``$ref`` in a document."""
    if isinstance(value, dict):
        yield from (inner for name, inner in value.items() if name == "$ref")
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)
