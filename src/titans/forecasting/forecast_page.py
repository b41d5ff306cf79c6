"""One self-contained page about the forecasts of a table: what came out, how good it is, and plots."""

from __future__ import annotations

import html
import io
import math
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.forecast_report import ForecastReport
from titans.forecasting.forecaster import NAME
from titans.forecasting.long_frames import ID, TIME
from titans.io import atomic

MOST_PLOTS = 12
SHOWN, LEAST_SHOWN = 4, 48  # horizons of history in a plot, and its least steps
# What is drawn in these becomes a variable of the style sheet, which knows the dark.
INK, GRID, OURS, BACK = "#101112", "#d0d1d2", "#0b6e98", "#c4641a"
VARIABLES = {INK: "var(--ink)", GRID: "var(--line)", OURS: "var(--ours)", BACK: "var(--back)"}
DRAWING: Any = {  # typed as a mapping of every setting there is
    "svg.fonttype": "none",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}

STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5a6275; --line: #d5d9e2; --paper: #fff; --box: #f3f5f8;
  --ours: #0b6e99; --back: #c4641b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ee; --soft: #a3abbd; --line: #3a4152; --paper: #14171f;
  --box: #1e232e; --ours: #58b4dd; --back: #f09a55; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
.verdict { background: var(--box); padding: .8rem 1rem; border-left: 4px solid var(--ours); }
.verdict.naive { border-left-color: var(--back); } .verdict p { margin: .3rem 0; }
.legend { color: var(--soft); } .legend span { white-space: nowrap; margin-right: 1rem; }
.legend i { display: inline-block; width: 1.4em; height: .25em; vertical-align: middle; margin-right: .4em; }
.legend i.band { height: .9em; opacity: .25; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } .facts td { text-align: left; }
.facts td:first-child { color: var(--soft); white-space: nowrap; }
.scores td, .scores th { overflow-wrap: normal; }
tr.mean td { font-weight: 600; border-top: 2px solid var(--line); }
svg { display: block; width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; }
.soft { color: var(--soft); }
"""


def check_targets(*paths: Path | None, source: Path | None = None) -> None:
    """Refuse files that cannot be written, before the work is done, and make their folders.

    Args:
        *paths: the files; None: one that is not wanted.
        source: what is read. Default: nothing.

    Raises:
        TitansError: one is a folder or what is read, two are the same, or nothing can be written there.
    """
    given = [path for path in paths if path is not None]
    if len({path.resolve() for path in given}) < len(given):
        raise TitansError(f"two results would be written to {given[0]}: give different files")
    for path in given:
        if path.is_dir():
            raise TitansError(f"{path} is a folder: give a file to write")
        if source is not None and path.resolve() == source.resolve():
            raise TitansError(f"{path} is the file to read: give another one to write")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise TitansError(f"{path} cannot be written ({error.strerror}): give another folder") from error


def write(path: Path, report: ForecastReport, name: str) -> None:
    """Write the page, whole or not at all.

    Args:
        path: the page; its folder exists.
        report: the forecasts.
        name: what was forecast.
    """
    atomic.write(path, page(report, name).encode())


def write_csv(path: Path, report: ForecastReport) -> None:
    """Write the forecasts as CSV, whole or not at all: a row for each channel and step, the point and the intervals.

    Args:
        path: the file; its folder exists.
        report: the forecasts.
    """
    atomic.write(path, report.forecast.to_csv(index=False, lineterminator="\n").encode())


def page(report: ForecastReport, name: str) -> str:
    """Make the page, which needs no other file.

    Args:
        report: the forecasts.
        name: what was forecast.

    Returns:
        HTML.
    """
    channels = report.channels
    ours, naive = report.mase
    kind = "verdict naive" if ours >= naive else "verdict"
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in report.verdict())
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in report.table.notes)
    facts = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in report.facts.items())
    plots = "".join(
        f"<h3>{html.escape(str(channel))}</h3>{_plot(report, channel, number)}"
        for number, channel in enumerate(channels[:MOST_PLOTS])
    )
    more = len(channels) - MOST_PLOTS
    rest = f'<p class="soft">{more:,} more in the table of scores below.</p>' if more > 0 else ""
    title = f"Forecast of {html.escape(name)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}</style></head><body>
<h1>{title}</h1>
<div class="{kind}">{said}</div>
<h2>Forecasts</h2>
<p class="legend"><span><i style="background:var(--ink)"></i>what was measured</span>
<span><i style="background:var(--back)"></i>back-test</span>
<span><i style="background:var(--ours)"></i>forecast</span>
<span><i class="band" style="background:var(--ours)"></i>its interval ({_levels(report)})</span></p>
{plots}{rest}
<h2>Back-test</h2>
{_scores(report)}
<h2>The data</h2>
{f"<ul>{notes}</ul>" if notes else "<p>Read as it is: nothing was missing, and nothing was changed.</p>"}
<h2>How it was made</h2><table class="facts">{facts}</table>
</body></html>
"""


def number(value: float) -> str:
    """Write a number with about 4 digits; a dash where there is none."""
    if math.isnan(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3e}"
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(digits, 0)}f}"


def _scores(report: ForecastReport) -> str:
    rows = []
    for channel in report.channels:
        mae, naive = report.score(channel, "mae")
        scaled = report.score(channel, "mase")
        cells = [html.escape(str(channel)), number(mae), number(naive), *map(number, scaled), _change(mae, naive)]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    cells = ["mean", "", "", *map(number, report.mase), _change(*report.mase)]
    rows.append(f'<tr class="mean">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    season = report.backtest.season
    last = f"the last season of {season:,} steps" if season > 1 else "the last value"
    return (
        '<div class="wide"><table class="scores"><tr><th>channel</th><th>MAE</th><th>of naive</th><th>MASE</th>'
        f"<th>of naive</th><th>change</th></tr>{''.join(rows)}</table></div>"
        f'<p class="soft">MAE: mean absolute error, in the units of the channel. MASE: the same over the error that '
        f"{last} makes within the history, which makes channels comparable. Naive: seasonal-naive, which repeats "
        f"{last}. Change: of the error, against naive; below 0 is better.</p>"
    )


def _change(ours: float, naive: float) -> str:
    return "–" if math.isnan(ours) or not naive > 0 else f"{ours / naive - 1:+.1%}".replace("-", "−")


def _levels(report: ForecastReport) -> str:
    return ", ".join(f"{lower.rpartition('-')[2]}%" for lower, _ in _intervals(report.forecast))


def _intervals(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """The columns of lower and upper ends, as they stand."""
    lowers = [str(column) for column in frame.columns if str(column).startswith(f"{NAME}-lo-")]
    return [(lower, lower.replace("-lo-", "-hi-")) for lower in lowers]


def _plot(report: ForecastReport, channel: str, salt: int) -> str:
    """Draw the end of a channel and its forecasts, as SVG that takes its colours from the page."""
    history = report.table.frame[channel].where(report.table.observed[channel])
    history = history.iloc[-max(SHOWN * report.horizon, LEAST_SHOWN) :]
    tested, ahead = (frame[frame[ID] == channel] for frame in (report.backtest.forecasts, report.forecast))
    tested = tested[tested[TIME] >= history.index[0]]
    with matplotlib.rc_context({**DRAWING, "svg.hashsalt": str(salt)}):
        figure = Figure(figsize=(6.8, 2.7), layout="constrained")
        axes = figure.subplots()
        axes.plot(_times(history.index), history.to_numpy(), color=INK, linewidth=1)
        for frame, colour in ((tested, BACK), (ahead, OURS)):
            times = _times(pd.Index(frame[TIME]))
            for lower, upper in _intervals(frame):
                axes.fill_between(times, frame[lower], frame[upper], color=colour, alpha=0.18, linewidth=0)
            marker = "." if len(frame) == 1 else None  # a line needs two points
            axes.plot(times, frame[NAME].to_numpy(), color=colour, linewidth=1.4, marker=marker)
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
        if isinstance(history.index, pd.DatetimeIndex):
            locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    for colour, variable in VARIABLES.items():
        drawing = drawing.replace(colour, variable)
    label = html.escape(f"{channel}: history, back-test and forecast", quote=True)
    return drawing.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _times(index: pd.Index) -> pd.Index:
    """Times as matplotlib takes them: on the clock of the data."""
    if isinstance(index, pd.DatetimeIndex):
        return index.tz_localize(None).to_numpy()
    return index.to_numpy()
