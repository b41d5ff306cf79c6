"""Forecast a table of series, with intervals and a back-test; then go on as new rows arrive.

python examples/forecast.py
"""

import argparse

import numpy as np
import pandas as pd
from utilsforecast.evaluation import evaluate
from utilsforecast.losses import mae

from titans import TitansForecaster


def sales(days: int) -> pd.DataFrame:
    """Two shops with a weekly season, a trend and noise, one row a day and shop."""
    t, noise = np.arange(days), np.random.default_rng(0)
    dates = pd.date_range("2024-01-01", periods=days, freq="D")
    shops = {
        "north": 100 + 0.1 * t + 20 * np.sin(2 * np.pi * t / 7),
        "south": 60 + 10 * np.sin(2 * np.pi * t / 7 + 1),
    }
    return pd.concat(
        pd.DataFrame({"unique_id": shop, "ds": dates, "y": y + noise.normal(0, 3, days)}) for shop, y in shops.items()
    )


def main() -> None:
    """Fit, forecast, back-test, and read new rows without training again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    df = sales(400)
    known, new = (rows for _, rows in df.groupby(df.ds >= "2025-01-01"))
    forecaster = TitansForecaster(h=14, input_size=28, epochs=args.epochs, level=[80]).fit(known)
    print(forecaster.predict().groupby("unique_id").head(3).to_string(index=False))

    scores = evaluate(
        forecaster.cross_validation(known, n_windows=2), [mae], models=["TitansForecaster", "SeasonalNaive"]
    )
    print(scores.to_string(index=False))

    forecaster.update(new)  # the memory reads on; the weights stay
    print("next:", forecaster.predict().ds.min().date())


if __name__ == "__main__":
    main()
