"""How sure a metric of lm-evaluation-harness is: what follows from the documents, and from the tasks of a group."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from titans.evaluation.intervals import wilson
from titans.evaluation.language.result import Metric

Z = 1.96  # standard errors of a 95 % interval


def interval(value: float, measured: Sequence[Any]) -> Metric:
    """Add the interval that follows from the documents, where their mean, or that of their logarithms, is the value.

    Args:
        value: the metric.
        measured: what the harness noted at each document: numbers, or pairs of a log-likelihood and its weight.

    Returns:
        The metric; without an interval where it comes about in a way that is not known.
    """
    count = len(measured)
    if count < 2:
        return Metric(value)
    if all(isinstance(one, numbers.Real) for one in measured):
        mean = math.fsum(measured) / count
        error = _standard_error([one - mean for one in measured]) / count
        if math.isclose(value, mean, abs_tol=1e-12):
            shares = all(one in (0, 1) for one in measured)
            low, high = wilson(math.fsum(measured), count) if shares else (mean - Z * error, mean + Z * error)
            return Metric(value, error, low, high)
        if _is_perplexity(value, mean):
            return _perplexity(value, error)
    elif all(_is_weighted(one) for one in measured):
        weight = math.fsum(weight for _, weight in measured)
        mean = math.fsum(likelihood for likelihood, _ in measured) / weight
        error = _standard_error([likelihood - mean * of for likelihood, of in measured]) / weight
        if _is_perplexity(value, mean):
            return _perplexity(value, error)
        if math.isclose(value, -mean / math.log(2)):
            bits = error / math.log(2)
            return Metric(value, bits, value - Z * bits, value + Z * bits)
    return Metric(value)


def combined(value: float, parts: Sequence[tuple[float, Metric]]) -> Metric:
    """Add the interval of a weighted mean of independent metrics, from theirs.

    Each part moves the mean by its weight times its own distance to the end of its interval, and independent distances
    add as squares do (Zou and Donner, 2008). A share's interval so remains between 0 and 1, also where all parts are 0.

    Args:
        value: the mean.
        parts: the weight of each part, all of them 1 together, and its metric.

    Returns:
        The mean; without an interval where a part has none.
    """
    if any(metric.low is None or metric.high is None or metric.standard_error is None for _, metric in parts):
        return Metric(value)
    error = math.hypot(*(weight * (metric.standard_error or 0.0) for weight, metric in parts))
    below = math.hypot(*(weight * (metric.value - (metric.low or 0.0)) for weight, metric in parts))
    above = math.hypot(*(weight * ((metric.high or 0.0) - metric.value) for weight, metric in parts))
    return Metric(value, error, value - below, value + above)


def _is_weighted(one: Any) -> bool:
    """Tell a log-likelihood with its weight from the pairs that other metrics note, as a label and its prediction."""
    return (
        isinstance(one, list | tuple)
        and len(one) == 2
        and all(isinstance(number, numbers.Real) for number in one)
        and one[1] > 0
    )


def _is_perplexity(value: float, mean: float) -> bool:
    return value > 0 and math.isclose(math.log(value), -mean, rel_tol=1e-9, abs_tol=1e-9)


def _standard_error(residuals: list[float]) -> float:
    """The standard error of a sum of independent residuals."""
    count = len(residuals)
    return math.sqrt(math.fsum(one * one for one in residuals) * count / (count - 1))


def _perplexity(value: float, error: float) -> Metric:
    """Turn the standard error of a perplexity's logarithm into its interval."""
    spread = min(Z * error, 700.0)  # e^700 is about the largest float
    return Metric(value, value * error, value * math.exp(-spread), min(value * math.exp(spread), 1e308))
