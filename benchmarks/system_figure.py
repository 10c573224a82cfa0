"""A stretch of a run as lanes in a frame, as SVG: what the device, the engine, the batcher and each thread were at."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from system_times import BATCHER_STAGES, CHUNK_STAGES, Span, Window, WorkerTimes, gaps

WIDTH, LEFT, RIGHT, TOP = 1_200, 110, 12, 58
LANE, BAR = 18, 14
COLOURS = {
    "device": "#1f6feb",
    "idle": "#d1242f",
    "prepare": "#8250df",
    "launch": "#bf8700",
    "take": "#8250df",
    "build": "#bf8700",
    "send": "#1f6feb",
    "settle": "#1a7f37",
    "claim": "#bf8700",
    "tokenise": "#8250df",
    "wait": "#d0d7de",
    "save": "#1a7f37",
    "end": "#0f4d22",
}
NUM_TICKS = 10

Bar = tuple[str, float, float, str]  # kind, begin, end, what it says when pointed at
Lane = tuple[str, list[Bar]]


def timeline(worker: WorkerTimes, window: Window, title: str) -> str:
    """The whole figure; bars say their stage and length when they are pointed at."""
    lanes = list(_lanes(worker, window))
    height = TOP + LANE * len(lanes) + 40
    parts = [_text(LEFT, 20, title, size=14), *_legend()]
    for row, (name, bars) in enumerate(lanes):
        down = TOP + row * LANE
        parts.append(_text(LEFT - 8, down + BAR - 3, name, anchor="end"))
        parts += [_bar(bar, down, window) for bar in bars if window.overlap(bar[1], bar[2])]
    for tick in range(NUM_TICKS + 1):
        across = LEFT + tick / NUM_TICKS * (WIDTH - LEFT - RIGHT)
        milliseconds = f"{1_000 * window.seconds * tick / NUM_TICKS:.0f}"
        parts.append(f'<path d="M{across:.1f} {TOP}V{height - 34}" stroke="#d0d7de" stroke-width="0.5"/>')
        parts.append(_text(across, height - 18, milliseconds, anchor="middle"))
    parts.append(_text(WIDTH / 2, height - 3, "milliseconds", anchor="middle"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _lanes(worker: WorkerTimes, window: Window) -> Iterator[Lane]:
    batches = [batch for batch in worker.batches if window.overlap(batch.begin, batch.end)]
    yield "device", [("device", *batch.facts["device"], f"{batch.facts['items']} items") for batch in batches]
    yield "idle, why", [("idle", begin, end, cause) for begin, end, cause in gaps(worker, window)]
    yield "engine", [(kind, *batch.facts[kind], "") for batch in batches for kind in ("prepare", "launch")]
    for number, thread in enumerate(_threads(worker, (*BATCHER_STAGES, "send"))):
        yield f"batcher {number + 1}", thread
    for number, thread in enumerate(_threads(worker, CHUNK_STAGES)):
        yield f"chunks {number + 1}", thread


def _threads(worker: WorkerTimes, kinds: tuple[str, ...]) -> list[list[Bar]]:
    by_thread: dict[int, list[Span]] = {}
    for span in worker.of(*kinds):
        by_thread.setdefault(span.thread, []).append(span)
    in_order = sorted(by_thread.values(), key=lambda spans: spans[0].begin)
    return [[(span.kind, span.begin, span.end, "") for span in spans] for spans in in_order]


def _bar(bar: Bar, down: float, window: Window) -> str:
    kind, begin, end, says = bar
    scale = (WIDTH - LEFT - RIGHT) / window.seconds
    first, last = max(begin, window.begin), min(end, window.end)
    place = f'x="{LEFT + (first - window.begin) * scale:.2f}" y="{down}" width="{(last - first) * scale:.2f}"'
    said = escape(f"{kind} {1_000 * (end - begin):.2f} ms {says}".strip())
    return f'<rect {place} height="{BAR}" fill="{COLOURS[kind]}"><title>{said}</title></rect>'


def _legend() -> Iterator[str]:
    names = ("device", "idle", "prepare", "launch", "take", "build", "send", "settle", *CHUNK_STAGES)
    for number, name in enumerate(names):
        across = LEFT + 80 * number
        yield f'<rect x="{across}" y="32" width="12" height="12" fill="{COLOURS[name]}"/>'
        yield _text(across + 16, 42, name)


def _text(x: float, y: float, words: str, *, size: int = 11, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#1f2328"'
    return f"<text {where}>{escape(words)}</text>"
