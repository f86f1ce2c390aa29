"""Curves as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 560, 320, 56
COLOURS = ("#1f6feb", "#d1242f", "#2da44e")
Curve = Sequence[tuple[float, float]]


def curves_svg(curves: Mapping[str, Curve], *, title: str, across: str, up: str) -> str:
    """Curves with their points, axes from 0, and a name at the end of each.

    Args:
        curves: (x, y) pairs by name, x rising.
        title: above the picture.
        across, up: what the axes count.

    Raises:
        ValueError: no curve, or an empty one.
    """
    if not curves or not all(curves.values()):
        raise ValueError("a plot needs curves with points")
    right = max(x for curve in curves.values() for x, _ in curve) or 1.0
    top = max(y for curve in curves.values() for _, y in curve) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            MARGIN + x / right * (WIDTH - 2 * MARGIN),
            HEIGHT - MARGIN - y / top * (HEIGHT - 2 * MARGIN),
        )

    left, bottom = place(0, 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<path d="M{left} {MARGIN / 2}V{bottom}H{WIDTH - MARGIN / 2}" fill="none" '
        'stroke="black"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
        f'<text x="8" y="{MARGIN / 2 + 6}">{escape(up)}</text>',
    ]
    for share in (0.5, 1.0):
        x, _ = place(right * share, 0)
        _, y = place(0, top * share)
        parts.append(
            f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{right * share:g}</text>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{top * share:.3g}</text>')
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        places = [place(x, y) for x, y in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        x, y = places[-1]
        parts.append(f'<text x="{x - 6:.1f}" y="{y - 8:.1f}" text-anchor="end" fill="{colour}">'
                     f"{escape(name)}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>\n"])
