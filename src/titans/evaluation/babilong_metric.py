"""When an answer to a BABILong question is right."""

from __future__ import annotations

from titans.data.babi import LABELS


def is_right(task: str, question: str, target: str, answer: str) -> bool:
    """Judge an answer by the official rule.

    Of the answer, in lower case, the first sentence counts, up to where a model begins to make up a new context or
    example. The task's labels that stand in it, as words or as parts of words, without those that the question names,
    must be exactly the target. One case differs: the "one" within "none" does not count, for else no answer to a
    question whose answer is "none" could be right.

    Args:
        task: qa1 to qa10.
        question: what was asked.
        target: the right answer; several labels with commas between them.
        answer: what a model wrote.

    Returns:
        Whether it is right.
    """
    said = answer.lower().split(".")[0].split("<context>")[0].split("<example>")[0]
    found = set()
    for label in sorted((label.lower() for label in LABELS[task]), key=len, reverse=True):
        if label in said and label not in question.lower():
            found.add(label)
        said = said.replace(label, "|")
    return found == set(target.lower().split(","))
