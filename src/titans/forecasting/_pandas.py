"""The one place that imports pandas, which comes with an extra."""

from titans.extras import missing

try:
    import pandas as pd
except ImportError as error:
    raise missing(error, "forecast", "forecasting") from error

__all__ = ["pd"]
