"""Plots: one style for all pictures of the package, drawn with matplotlib and written whole or not at all.

A function that draws takes its axes from `figure`, draws on them with `line` or matplotlib's own methods, adds a
`legend`, and hands the figure to `save`, `png` or `svg`.
"""

from __future__ import annotations

import html
import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans.extras import missing
from titans.io import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE = "#1d2433", "#777777", "#d5d9e2"  # text and axes; what is there for comparison; the grid
COLORS = (  # of the first ten lines
    *("#0b6e99", "#c4641b", "#3d8b61", "#b0355c", "#7a5ba6"),
    *("#8a6a35", "#d17ab0", "#5a6275", "#a0a02c", "#2fa5b5"),
)
STYLES = ("o-", "s--", "^:")  # markers and lines of the first ten lines, of the next ten, and so on
DPI = 120


def check() -> None:
    """Refuse to begin work that ends in a plot where none can be drawn.

    Raises:
        TitansError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing(error, "eval", "drawing a plot") from error


def figure(
    columns: int = 1, rows: int = 1, *, size: tuple[float, float] = (7.5, 4.0), **options: Any
) -> tuple[Figure, list[Axes]]:
    """Make a figure in the style of the package.

    Args:
        columns: axes side by side. Default 1.
        rows: axes below each other. Default 1.
        size: width and height, inches. Default 7.5 by 4.
        **options: of `Figure.subplots`, as `sharey` or `width_ratios`.

    Returns:
        The figure, and its axes row by row.

    Raises:
        TitansError: matplotlib is not installed.
    """
    check()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink: Any = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK)
    with mpl.rc_context(ink):
        made = Figure(figsize=size, layout="constrained")
        all_axes = list(made.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in all_axes:
        axes.set_prop_cycle(color=COLORS)
        axes.tick_params(colors=INK)
        axes.grid(color=RULE, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return made, all_axes


def line(
    axes: Axes,
    x: Iterable[Any],
    y: Iterable[float],
    number: int = 0,
    *,
    interval: tuple[Iterable[float], Iterable[float]] | None = None,
    markers: bool = True,
    **options: Any,
) -> None:
    """Draw a line.

    Args:
        axes: where.
        x: places of the points.
        y: their values.
        number: of the line among others: decides its colour and marker, the same in every picture. Default 0.
        interval: lower and upper ends of the values' confidence intervals. Default: none are drawn.
        markers: whether the points are marked. Default true.
        **options: of `Axes.errorbar`, as `label`.
    """
    values = list(y)
    fmt = STYLES[number // len(COLORS) % len(STYLES)][0 if markers else 1 :]
    style: dict[str, Any] = {"fmt": fmt, "color": color(number), "markersize": 5.0, "capsize": 3} | options
    ends = None
    if interval is not None:  # rounding may have moved an end to the other side of its value
        low, high = interval
        ends = [[max(v - end, 0) for v, end in zip(values, low, strict=True)]]
        ends.append([max(end - v, 0) for v, end in zip(values, high, strict=True)])
    axes.errorbar(list(x), values, ends, **style)


def color(number: int) -> str:
    """Return the colour of the line of a number."""
    return COLORS[number % len(COLORS)]


def beside(places: Iterable[float], number: int, of: int, step: float = 0.06) -> list[float]:
    """Move the places of one of several lines a little sideways, so that intervals do not hide each other.

    Args:
        places: where the points stand, the same for all lines.
        number: of the line, from 0.
        of: how many lines there are.
        step: between two lines. Default 0.06.
    """
    return [place + step * (number - (of - 1) / 2) for place in places]


def legend(where: Axes | Figure, **options: Any) -> None:
    """Add a legend: to axes, or one to a figure, outside its axes, that has each name once.

    Args:
        where: the axes or the figure.
        **options: of `legend`, as `ncols`; `loc` of a figure is "outside lower center" unless given.
    """
    if hasattr(where, "axes") and isinstance(where.axes, list):
        found = [axes.get_legend_handles_labels() for axes in where.axes]
        handles = {label: handle for both in found for handle, label in zip(*both, strict=True)}
        options = {"handles": list(handles.values()), "labels": list(handles), "loc": "outside lower center"} | options
    where.legend(frameon=False, labelcolor=INK, **options)


def length_ticks(axes: Axes, lengths: Sequence[int]) -> None:
    """Label the places 0, 1, … of the x axis with lengths."""
    axes.set_xticks(range(len(lengths)), [short(length) for length in lengths])


def short(length: int) -> str:
    """Write a length as its readers do: 2K, whether that is 2,000 or 2,048; 1M."""
    for thousand, (power, letter) in itertools.product((1024, 1000), ((2, "M"), (1, "K"))):
        if length >= thousand**power and length % thousand**power == 0:
            return f"{length // thousand**power}{letter}"
    return f"{length:,}"


def png(drawn: Figure) -> bytes:
    """Return a figure as a PNG picture."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def save(drawn: Figure, path: Path) -> bytes:
    """Write a figure as a PNG picture, whole or not at all.

    Args:
        drawn: the figure.
        path: the file; its folder exists.

    Returns:
        The picture.
    """
    picture = png(drawn)
    atomic.write(path, picture)
    return picture


def svg(drawn: Figure, label: str, salt: str = "") -> str:
    """Return a figure as an SVG element that takes its colours from the page (`titans.html_page`), light or dark.

    Args:
        drawn: the figure.
        label: what it shows, for those who cannot see it.
        salt: of the names inside, which must differ between the pictures of a page.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    for name, value in (("ink", INK), ("line", RULE), ("first", COLORS[0]), ("second", COLORS[1])):
        drawing = drawing.replace(value, f"var(--{name})")
    return drawing.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label, quote=True)}" ', 1)
