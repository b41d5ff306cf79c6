"""Forecasting: long time series in, a forecast out."""
