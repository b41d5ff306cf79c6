"""The usual season of a time step: a day of hours, a week of days, a year of months."""

from __future__ import annotations

from titans.forecasting._pandas import pd

MINUTE, HOUR, DAY = pd.Timedelta(minutes=1), pd.Timedelta(hours=1), pd.Timedelta(days=1)
WEEK, YEAR = 7 * DAY, pd.Timedelta(days=365.25)


def season(frequency: str | int) -> int:
    """Say after how many steps a series usually repeats.

    Args:
        frequency: step of time, as a pandas offset alias or a whole number.

    Returns:
        The steps of an hour for what is shorter than a minute, of a day for what is shorter than one, of a week for
        days and working days, and of a year for what is longer; 1 where there is no usual season.
    """
    if isinstance(frequency, int):
        return 1
    if frequency == "B":
        return 5
    times = pd.date_range("2001-01-01", periods=13, freq=frequency)
    step = (times[-1] - times[0]) / 12  # months and quarters differ in length
    if step >= WEEK:
        return max(1, round(YEAR / step))
    whole = HOUR if step < MINUTE else DAY if step < DAY else WEEK
    return 1 if whole % step else int(whole // step)
