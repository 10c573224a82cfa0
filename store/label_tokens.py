"""A label's text as tokens: those that a model would say, which is not always what a tokenizer makes of it alone."""

from __future__ import annotations

from store.tokenizer import Tokenizer

ANCHOR = "\n"


def label_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids that stand for exactly these characters where an answer begins.

    The text is read after a line break: tokenizers of SentencePiece's kind put a blank of their own before a text, and
    "yes" alone would be the token of " yes". Where the two can't be told apart (the text itself begins with a line
    break, or the tokenizer knows no words after one), the text is read alone.
    """
    anchor, anchored, alone = (each.tolist() for each in tokenizer.encode_texts([ANCHOR, ANCHOR + text, text]))
    if anchored[: len(anchor)] == anchor and len(anchored) > len(anchor):
        return [int(token_id) for token_id in anchored[len(anchor) :]]
    return [int(token_id) for token_id in alone]
