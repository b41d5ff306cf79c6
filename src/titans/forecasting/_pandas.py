"""The one place that imports pandas, which comes with an extra."""

from titans.errors import TitansError

try:
    import pandas as pd
except ImportError as error:
    raise TitansError('forecasting needs pandas: pip install "titans-lm[forecast]"') from error

__all__ = ["pd"]
