"""Forecasting: from series of numbers to their next values."""
