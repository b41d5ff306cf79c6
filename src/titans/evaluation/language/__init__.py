"""A language model on the tasks of EleutherAI's lm-evaluation-harness, with intervals."""

from titans.evaluation.language.result import TABLE, LanguageResult, Metric, TaskResult
from titans.evaluation.language.run import evaluate_language

__all__ = ["TABLE", "LanguageResult", "Metric", "TaskResult", "evaluate_language"]
