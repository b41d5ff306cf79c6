"""Synthetic tasks: made without end from a seed, each asks one ability of a model."""

from titans.data.synthetic.registry import RECALL_TASKS, TASKS, make_task
from titans.data.synthetic.state_tracking import STATE_TASKS
from titans.data.synthetic.task import Size, SyntheticTask, parse_sizes

__all__ = ["RECALL_TASKS", "STATE_TASKS", "TASKS", "Size", "SyntheticTask", "make_task", "parse_sizes"]
