"""How many steps a season usually has, by the step of time."""

from __future__ import annotations

from titans.forecasting._pandas import pd
from titans.forecasting.time_zones import offset_of

_A_YEAR = {
    "Y": 1,
    "A": 1,
    "Q": 4,
    "M": 12,
    "S": 24,
    "W": 52,
}  # steps of calendar frequencies; first letter, without "B"


def season_length(frequency: str | int) -> int:
    """Say how many steps come round again, as far as the step of time tells.

    Args:
        frequency: the step, as a pandas offset alias or a whole number.

    Returns:
        A day of hours or of minutes, an hour of seconds, a week of days, a year of weeks, half months, months or
        quarters; 1 for years, for whole-number time, and where nothing is usual.
    """
    if isinstance(frequency, int):
        return 1
    offset = offset_of(frequency)
    if months := offset.kwds.get("months"):  # on another day than the first
        return max(12 // int(months), 1)
    number, code = int(offset.n), offset.rule_code
    if isinstance(offset, pd.offsets.Day):
        return 7 if number == 1 else max(365 // number, 1) if number >= 7 else 1
    if isinstance(offset, pd.offsets.Tick):
        length = pd.Timedelta(offset)
        return max(round(float(pd.Timedelta("1D" if length >= pd.Timedelta("1min") else "1h") / length)), 1)
    if code == "B":
        return 5 if number == 1 else 1
    steps: int = _A_YEAR.get(code.removeprefix("B")[:1], 1)
    return max(steps // number, 1)
