"""Comparisons: several models under one budget, on one task, equally tuned, with seeds and intervals."""

from titans.evaluation.comparison.recipe import Comparison, load_comparison
from titans.evaluation.comparison.runs import compare

__all__ = ["Comparison", "compare", "load_comparison"]
