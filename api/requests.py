"""What a client may send to ``POST /v1/jobs``: names, types and bounds. Everything else is refused, by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_ID_CHARACTERS = 512
MAX_URL_CHARACTERS = 2_048
MAX_TOP_K = 2**31 - 1
SECONDS_PER_YEAR = 31_536_000

Text = str
TokenIds = list[int]

_TOKENS = Meta(description="Token ids, each in 0 .. vocab_size - 1 of the model.")


class Item(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """An item with more than its content. It has either ``text`` or ``token_ids``."""

    id: Annotated[
        str | None,
        Meta(
            description="The client's own id, unique in the job: 1 to 512 characters.",
            extra_json_schema={"minLength": 1, "maxLength": MAX_ID_CHARACTERS},
        ),
    ] = None
    text: Text | None = None
    token_ids: Annotated[TokenIds | None, _TOKENS] = None
    query: Annotated[Text | TokenIds | None, Meta(description="Instead of the job's query.")] = None
    labels: Annotated[list[str] | None, Meta(description="Instead of the job's labels; each is one token.")] = None
    label_token_ids: Annotated[TokenIds | None, Meta(description="Instead of the job's labels.")] = None


class JobRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A job: one query, any number of items, and the labels whose probabilities are asked for."""

    items: Annotated[
        list[Text | TokenIds | Item],
        Meta(description="At least one. Each is a text, token ids, or an object.", extra_json_schema={"minItems": 1}),
    ]
    model: Annotated[str | None, Meta(description="A served model's name; default: the only one.")] = None
    query: Annotated[
        Text | TokenIds | None, Meta(description="What every item is joined with; none: the item alone is the prompt.")
    ] = None
    item_first: Annotated[bool, Meta(description="Join as item + query instead of query + item.")] = False
    template: Annotated[
        str | None,
        Meta(
            description='How query and item become a prompt: one of the model\'s templates, or "none"; default: its own.'
        ),
    ] = None
    instruction: Annotated[
        str | None, Meta(description="What fills the template's place for one; default: the template's own.")
    ] = None
    method: Annotated[
        Literal["label", "likelihood"],
        Meta(description="How likely the next token is one of the labels, or how likely whole texts are to follow."),
    ] = "label"
    labels: Annotated[
        list[str] | None,
        Meta(
            description='2 to 128 texts, each exactly one token; with "likelihood" of any length.',
            extra_json_schema={"minItems": 2, "maxItems": 128},
        ),
    ] = None
    label_token_ids: Annotated[
        TokenIds | None,
        Meta(
            description="2 to 128 token ids, instead of ``labels``; default: the template's.",
            extra_json_schema={"minItems": 2, "maxItems": 128},
        ),
    ] = None
    apply_softmax: Annotated[
        bool, Meta(description="Probabilities over the labels (true) or over the whole vocabulary (false).")
    ] = True
    truncation: Annotated[
        Literal["item", "error"], Meta(description="A prompt that is too long: cut its item, or fail that item alone.")
    ] = "item"
    normalize: Annotated[
        Literal["mean", "sum"] | None,
        Meta(description='For "likelihood": the mean of a text\'s token log-probabilities (default), or their sum.'),
    ] = None
    target: Annotated[
        Text | None,
        Meta(description='For "likelihood": the text that may follow; default: the template\'s, or labels.'),
    ] = None
    on_invalid: Annotated[
        Literal["refuse", "skip"],
        Meta(description='For lines of NDJSON that are not valid: refuse the body, or fail those items ("skip").'),
    ] = "refuse"
    top_k: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TOP_K)] | None,
        Meta(description="Results of the ended job are the best k items of each query alone, by score."),
    ] = None
    webhook_url: Annotated[
        Annotated[str, Meta(max_length=MAX_URL_CHARACTERS)] | None,
        Meta(description="Called once the job has ended: absolute, http or https, without user information."),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Up to 16 pairs of the client's own: keys of 1 to 64 characters, text values of up to 512.",
            extra_json_schema={
                "maxProperties": 16,
                "propertyNames": {"minLength": 1, "maxLength": 64},
                "additionalProperties": {"type": "string", "maxLength": 512},
            },
        ),
    ] = None
    expires_in_seconds: Annotated[
        Annotated[int, Meta(ge=60, le=SECONDS_PER_YEAR)] | None,
        Meta(description="An unfinished job expires after this long; default: a week."),
    ] = None
    keep_inputs: Annotated[bool, Meta(description="Keep the items until the job is deleted.")] = False
    deterministic: Annotated[
        bool, Meta(description="The same bits for an item whatever it is batched with, on the same chip and versions.")
    ] = False
    calibrate: Annotated[
        bool, Meta(description="Subtract what the model says of an empty item, and compare what is left.")
    ] = False
    dry_run: Annotated[
        bool, Meta(description="Check and count the job, and say when it would be done; store and queue nothing.")
    ] = False
