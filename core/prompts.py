"""How a query and an item become one prompt, which is then tokenised as one text.

Templates beside ``none`` come with the model cards; the version of a template is stored with every job.
"""

from __future__ import annotations

from core.chunks import Content
from core.errors import Refused

TEMPLATES = ("none",)


def template_version(template: str) -> str:
    """The version stored with a job: it changes whenever the template would render another prompt."""
    if template not in TEMPLATES:
        raise Refused(
            "unknown_template",
            f"there is no template {template!r}; there are: {', '.join(TEMPLATES)}",
            field="template",
        )
    return "none/1"


def join(query: Content | None, item: Content, *, item_first: bool) -> Content:
    """Query and item as they are, joined. Both must be of one kind: two texts or two lists of token ids."""
    first, second = (item, query) if item_first else (query, item)
    if first is None or second is None:
        return item
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, bytes) and isinstance(second, bytes):
        return first + second
    raise Refused("mixed_input", "query and item must both be text or both be token ids", field="items")
