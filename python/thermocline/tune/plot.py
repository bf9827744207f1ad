"""Small plots as SVG: points and lines over two axes, and bars."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 20, 14, 44


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A point. `tooltip` is shown under the pointer, `label` always."""

    x: float
    y: float
    colour: str
    tooltip: str
    label: str = ""
    radius: float = 3.5
    label_below: float = 14.0
    """Distance of the label below the point; negative values are above."""


@dataclasses.dataclass(slots=True)
class Plot:
    """A plot in data coordinates. Elements are drawn in the order in which they were added."""

    x_name: str
    y_name: str
    lines: list[tuple[list[tuple[float, float]], str]] = dataclasses.field(default_factory=list)
    marks: list[Mark] = dataclasses.field(default_factory=list)
    verticals: list[tuple[float, str, str, bool]] = dataclasses.field(default_factory=list)

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Adds a line through points."""
        self.lines.append((list(points), colour))

    def mark(self, mark: Mark) -> None:
        """Adds a point."""
        self.marks.append(mark)

    def vertical(self, x: float, label: str, colour: str, *, dashed: bool = False) -> None:
        """Adds a vertical line."""
        self.verticals.append((x, label, colour, dashed))

    def svg(self) -> str:
        """Returns the plot as SVG."""
        xs = [mark.x for mark in self.marks] + [x for points, _ in self.lines for x, _ in points] + [x for x, *_ in self.verticals]
        ys = [mark.y for mark in self.marks] + [y for points, _ in self.lines for _, y in points]
        across, up = _Axis.over(xs, _LEFT, WIDTH - _RIGHT), _Axis.over(ys, HEIGHT - _BOTTOM, _TOP)
        parts = [_frame(across, up, self.x_name, self.y_name)]
        for x, label, colour, dashed in self.verticals:
            at = across.at(x)
            dash = ' stroke-dasharray="4 4"' if dashed else ""
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" stroke="{colour}"{dash}/>')
            # Labels of adjacent lines are at different heights.
            parts.append(
                f'<text x="{at - 5:.1f}" y="{HEIGHT - _BOTTOM - (22 if dashed else 8)}" text-anchor="end">{html.escape(label)}</text>'
            )
        for points, colour in self.lines:
            path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for mark in self.marks:
            x, y = across.at(mark.x), up.at(mark.y)
            title = f"<title>{html.escape(mark.tooltip)}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{mark.radius}" fill="{mark.colour}" fill-opacity=".85">{title}</circle>')
            if mark.label:
                parts.append(f'<text x="{x + 10:.1f}" y="{y + mark.label_below:.1f}">{html.escape(mark.label)}</text>')
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(parts)}</svg>'


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = min(values, default=0.0), max(values, default=1.0)
        padding = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        # No value is negative, so there is no padding below zero.
        return cls(max(low - padding, 0.0) if low >= 0 else low - padding, high + padding, start, end)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns four to nine round values."""
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(times for times in (1, 2, 5, 10) if (self.high - self.low) / (step * times) < 9)
        first = math.ceil(self.low / step)
        digits = max(0, -math.floor(math.log10(step)))
        return [(n * step, f"{n * step:.{digits}f}") for n in range(first, math.floor(self.high / step) + 1)]


def _frame(across: _Axis, up: _Axis, x_name: str, y_name: str) -> str:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for value, text in up.ticks():
        y = up.at(value)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in across.ticks():
        x = across.at(value)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#9aa7b5"/>')
    parts.append(f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{html.escape(x_name)}</text>')
    middle = (bottom + _TOP) / 2
    parts.append(f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{html.escape(y_name)}</text>')
    return "".join(parts)


def bars(steps: Sequence[tuple[str, float, str, bool]], *, percent: bool = False) -> str:
    """Returns vertical bars with labels as SVG: (label, value, colour, whether it is the selected one)."""
    # Labels are slanted below the bars; values are above them.
    height, base, width = 124, 78, max(28.0, min(64.0, (WIDTH - _LEFT) / max(len(steps), 1)))
    top = max((value for _, value, _, _ in steps), default=0.0) or 1.0
    parts = []
    for index, (label, value, colour, chosen) in enumerate(steps):
        x, tall = index * width, max(value / top * (base - 22), 1.0)
        opacity = 1 if chosen else 0.45
        middle = x + width / 2
        title = f"<title>{html.escape(label)}: {value:.4g}</title>"
        parts.append(
            f'<rect x="{x + 3:.1f}" y="{base - tall:.1f}" width="{width - 6:.1f}" height="{tall:.1f}" fill="{colour}" '
            f'fill-opacity="{opacity}">{title}</rect>'
        )
        weight = ' style="font-weight:600"' if chosen else ""
        shown = f"{value * 100:.1f}" if percent else f"{value:.3g}"
        parts.append(f'<text x="{middle:.1f}" y="{base - tall - 4:.1f}" text-anchor="middle">{shown}</text>')
        slant = f'transform="rotate(-35 {middle:.1f} {base + 14})"'
        parts.append(f'<text x="{middle:.1f}" y="{base + 14}" text-anchor="end"{weight} {slant}>{html.escape(label)}</text>')
    total = max(len(steps) * width, 1)
    return f'<svg viewBox="-30 0 {total + 30:.0f} {height}" width="{total + 30:.0f}" height="{height}" role="img">{"".join(parts)}</svg>'
