"""How every process of ours logs: events with their data, as JSON lines or for a person's eyes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from core import arrivals, spans
from core.settings import Settings

LOUD_LIBRARIES = ("alembic", "httpx", "httpcore", "celery.redirected")  # their INFO says what our events say already


def configure(settings: Settings) -> None:
    """Set structlog up for this process, and send what libraries log through the same formatter, to stderr."""
    is_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_trace_id,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if is_json else []),
    ]
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    last: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not is_json:  # a plain traceback: the fancy ones print local variables, so the texts of items
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in LOUD_LIBRARIES:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _with_trace_id(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The trace of the submit that the work goes back to: the same in every process that works on a job."""
    if (traceparent := spans.origin() or arrivals.known_span()) and "trace_id" not in event:
        event["trace_id"] = spans.trace_id_of(traceparent)
    return event


@contextmanager
def silenced() -> Iterator[None]:
    """Let no event through: a command that looks at the ledger itself says what is wrong in its own words."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
