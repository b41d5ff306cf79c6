"""Evaluation: one file per benchmark."""

from titans.evaluation.perplexity import PerplexityResult, PositionBucket, perplexity

__all__ = ["PerplexityResult", "PositionBucket", "perplexity"]
