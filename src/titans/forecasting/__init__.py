"""Forecasting of time series with a memory that goes on learning."""
