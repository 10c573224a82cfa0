"""A label's text as tokens: those that a model would say, which is not always what a tokenizer makes of it alone."""

from __future__ import annotations

from store.tokenizer import Tokenizer

ANCHOR = "\n"


def label_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids that stand for exactly these characters where an answer begins; none if some of them are unknown.

    The text is read after a line break: tokenizers of SentencePiece's kind put a blank of their own before a text, and
    "yes" alone would be the token of " yes". Where the two can't be told apart (the text itself begins with a line
    break, or the tokenizer knows none), the text is read alone.
    """
    anchor, anchored, alone = (each.tolist() for each in tokenizer.encode_texts([ANCHOR, ANCHOR + text, text]))
    is_known = tokenizer.unknown not in anchor
    is_apart = is_known and anchored[: len(anchor)] == anchor and len(anchored) > len(anchor)
    found: list[int] = anchored[len(anchor) :] if is_apart else alone
    return [] if tokenizer.unknown in found else found
