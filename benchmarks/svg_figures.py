"""Lines in a frame, as SVG: enough for a page of documentation, and no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 44, 48
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")
NUM_TICKS = 5

Points = Sequence[tuple[float, float]]


def lines(series: Mapping[str, Points], *, title: str, x: str, y: str, y_range: tuple[float, float]) -> str:
    """One line a series, named in the frame; the x axis begins at 0 and ends with the last point."""
    x_end = max(point[0] for points in series.values() for point in points)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        share = (point[1] - y_range[0]) / (y_range[1] - y_range[0])
        across = LEFT + point[0] / x_end * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_text(WIDTH / 2, 22, title, size=14), _text(WIDTH / 2, HEIGHT - 10, x), _text(14, HEIGHT / 2, y, turn=-90)]
    for tick in range(NUM_TICKS + 1):
        at_x, at_y = tick / NUM_TICKS * x_end, y_range[0] + tick / NUM_TICKS * (y_range[1] - y_range[0])
        left, bottom = place((0.0, at_y)), place((at_x, y_range[0]))
        parts.append(f'<path d="M{left[0]:.1f} {left[1]:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>')
        parts.append(_text(left[0] - 6, left[1] + 4, f"{at_y:g}", anchor="end"))
        parts.append(_text(bottom[0], bottom[1] + 18, f"{at_x:.3g}"))
    for number, (name, points) in enumerate(series.items()):
        path = "L".join(f"{across:.1f} {down:.1f}" for across, down in map(place, points))
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - RIGHT - 8, HEIGHT - BOTTOM - 12 - 18 * number, name, anchor="end", colour=colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "middle", turn: int = 0, colour: str = "#1f2328"
) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {where}{turned}>{escape(words)}</text>"
