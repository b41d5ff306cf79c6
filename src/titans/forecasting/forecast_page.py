"""One self-contained page about the forecasts of a table: what came out, how good it is, and plots."""

from __future__ import annotations

import html
import math
import tempfile
from pathlib import Path

from titans import html_page, plots
from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.forecast_report import ForecastReport
from titans.forecasting.forecaster import NAME
from titans.forecasting.long_frames import ID, TIME
from titans.io import atomic

MOST_PLOTS = 12
SHOWN, LEAST_SHOWN = 4, 48  # horizons of history in a plot, and its least steps
OURS, BACK = plots.color(0), plots.color(1)

STYLE = """
body { max-width: 52rem; }
.verdict { background: var(--box); padding: .8rem 1rem; border-left: 4px solid var(--first); }
.verdict.naive { border-left-color: var(--second); } .verdict p { margin: .3rem 0; }
.legend { color: var(--soft); } .legend span { white-space: nowrap; margin-right: 1rem; }
.legend i { display: inline-block; width: 1.4em; height: .25em; vertical-align: middle; margin-right: .4em; }
.legend i.band { height: .9em; opacity: .25; }
.scores td, .scores th { overflow-wrap: normal; }
.scores tr:last-child td { font-weight: 600; border-top: 2px solid var(--line); }
"""
LEGEND = """<p class="legend"><span><i style="background:var(--ink)"></i>what was measured</span>
<span><i style="background:var(--second)"></i>back-test</span>
<span><i style="background:var(--first)"></i>forecast</span>
<span><i class="band" style="background:var(--first)"></i>its interval ({levels})</span></p>"""


def check_targets(*paths: Path | None, source: Path | None = None) -> None:
    """Refuse files that cannot be written, before the work is done, and make their folders; None is not wanted."""
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
    """Write the page about what `name` calls to a file in an existing folder, whole or not at all."""
    atomic.write(path, page(report, name).encode())


def write_csv(path: Path, report: ForecastReport) -> None:
    """Write the forecasts as CSV, whole or not at all: a row for each channel and step, the point and the intervals."""
    atomic.write(path, report.forecast.to_csv(index=False, lineterminator="\n").encode())


def page(report: ForecastReport, name: str) -> str:
    """Make the page of HTML, which needs no other file; `name` says what was forecast."""
    channels, notes = report.channels, report.table.notes
    ours, naive = report.mase
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in report.verdict())
    body = [
        f'<div class="{"verdict naive" if ours >= naive else "verdict"}">{said}</div>',
        "<h2>Forecasts</h2>",
        LEGEND.format(levels=", ".join(f"{level}%" for level in report.levels)),
    ]
    for channel in channels[:MOST_PLOTS]:
        body += [f"<h3>{html.escape(str(channel))}</h3>", _plot(report, channel)]
    if (more := len(channels) - MOST_PLOTS) > 0:
        body.append(f'<p class="soft">{more:,} more in the table of scores below.</p>')
    unchanged = "<p>Read as it is: nothing was missing, and nothing was changed.</p>"
    body += ["<h2>Back-test</h2>", *_scores(report)]
    body += ["<h2>The data</h2>", html_page.bullets(notes) if notes else unchanged]
    body += ["<h2>How it was made</h2>", html_page.table(report.facts.items(), name="facts")]
    return html_page.page(f"Forecast of {name}", body, STYLE)


def number(value: float) -> str:
    """Write a number with about 4 digits; a dash where there is none."""
    if math.isnan(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3e}"
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(digits, 0)}f}"


def _scores(report: ForecastReport) -> list[str]:
    rows = []
    for channel in report.channels:
        (ours, naive), scaled = report.score(channel, "mae"), report.score(channel, "mase")
        rows.append([str(channel), number(ours), number(naive), *map(number, scaled), _change(ours, naive)])
    rows.append(["mean", "", "", *map(number, report.mase), _change(*report.mase)])
    last = f"the last season of {report.season:,} steps" if report.season > 1 else "the last value"
    return [
        html_page.table(rows, ("channel", "MAE", "of naive", "MASE", "of naive", "change"), "scores"),
        f'<p class="soft">MAE: mean absolute error, in the units of the channel. MASE: the same over the error that '
        f"{last} makes within the history, which makes channels comparable. Naive: seasonal-naive, which repeats "
        f"{last}. Change: of the error, against naive; below 0 is better.</p>",
    ]


def _change(ours: float, naive: float) -> str:
    return "–" if math.isnan(ours) or not naive > 0 else f"{ours / naive - 1:+.1%}".replace("-", "−")


def _plot(report: ForecastReport, channel: str) -> str:
    """Draw the end of a channel and its forecasts, as SVG that takes its colours from the page."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    history = report.table.frame[channel].iloc[-max(SHOWN * report.horizon, LEAST_SHOWN) :]
    tested, ahead = (frame[frame[ID] == channel] for frame in (report.backtest, report.forecast))
    tested = tested[tested[TIME] >= history.index[0]]
    figure, [axes] = plots.figure(size=(6.8, 2.7))
    axes.plot(_times(history.index), history.to_numpy(), color=plots.INK, linewidth=1)
    for frame, color in ((tested, BACK), (ahead, OURS)):
        times = _times(pd.Index(frame[TIME]))
        for level in report.levels:
            ends = [frame[f"{NAME}-{end}-{level}"] for end in ("lo", "hi")]
            axes.fill_between(times, *ends, color=color, alpha=0.18, linewidth=0)
        marker = "." if len(frame) == 1 else None  # a line needs two points
        axes.plot(times, frame[NAME].to_numpy(), color=color, linewidth=1.4, marker=marker)
    axes.margins(x=0.01)
    if isinstance(history.index, pd.DatetimeIndex):
        locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    return plots.svg(figure, f"{channel}: history, back-test and forecast", salt=str(channel))


def _times(index: pd.Index) -> pd.Index:
    """Times as matplotlib takes them: as the clock of the data shows them."""
    if isinstance(index, pd.DatetimeIndex):
        return index.tz_localize(None).to_numpy()
    return index.to_numpy()
