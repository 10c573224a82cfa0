"""The templates that come with Rankmill, each with its source. A model card says which fits the model."""

from __future__ import annotations

from core.templates import NONE, Template

# https://huggingface.co/Qwen/Qwen3-Reranker-0.6B, README: prefix, body and suffix are tokenised apart; the body is one
# text; labels are lower-case without a space before them.
QWEN3_RERANKER = Template(
    "qwen3-reranker",
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided."
    ' Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "{|}<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {item}"
    "{|}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    labels=["yes", "no"],
    instruction="Given a web search query, retrieve relevant passages that answer the query",
    is_chat=True,
)

TOPIC = Template("topic", "{item}\n\nIn one word, the topic of this text is")

CHOICE = Template(
    "choice",
    "{query}\n\n{item}\n\nAnswer with the letter of the best choice.\nAnswer:",
    labels=[" A", " B", " C", " D"],
)

# The item is the condition, the query is the target: how likely is this question, given this passage?
# Sachan et al., Improving Passage Retrieval with Zero-Shot Question Generation, EMNLP 2022, section 2.2.
# Of four wordings tried with benchmarks/bench_likelihood.py the shortest ranked best, if by no more than chance allows.
QUERY_LIKELIHOOD = Template("query-likelihood", "Passage: {item}\n\nQuestion:", target=" {query}")

# Put into the model's own chat template by the worker that serves it (worker.engine.chat).
JUDGE_SYSTEM = 'Judge whether the Document answers the Query. The answer can only be "yes" or "no".'
JUDGE_USER = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {item}"
JUDGE_INSTRUCTION = "Judge whether the Document answers the Query"
JUDGE_NAME = "judge"

PLAIN = (NONE, TOPIC, CHOICE, QUERY_LIKELIHOOD)
