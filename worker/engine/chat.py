"""A yes/no judge through a model's own chat template, rendered once with slots where query and item will stand."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from core.builtin_templates import JUDGE_INSTRUCTION, JUDGE_NAME, JUDGE_SYSTEM, JUDGE_USER
from core.templates import SLOTS, Template

_MARK = "rankmill-slot-{}-7c1f"  # no chat template and no tokenizer changes such a word


def judge_template(tokenizer: Any) -> Template | None:
    """The judge for this tokenizer's chat template, thinking switched off. None where it has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    user = JUDGE_USER
    for slot in SLOTS:
        user = user.replace(f"{{{slot}}}", _MARK.format(slot))
    try:
        text = _render(tokenizer, [{"role": "system", "content": JUDGE_SYSTEM}, {"role": "user", "content": user}])
    except TemplateError:  # some chat templates know no system role, and say so by raising
        text = _render(tokenizer, [{"role": "user", "content": f"{JUDGE_SYSTEM}\n\n{user}"}])
    text = text.replace("{", "{{").replace("}", "}}")
    for slot in SLOTS:
        text = text.replace(_MARK.format(slot), f"{{{slot}}}")
    return Template(JUDGE_NAME, text, labels=["yes", "no"], instruction=JUDGE_INSTRUCTION, is_chat=True)


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    return str(
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    )
