"""The prompts of BABILong: its parts, their layout and the form of its answers; instructions and examples are ours."""

from __future__ import annotations

import dataclasses
import hashlib

from titans.errors import TitansError


@dataclasses.dataclass(frozen=True)
class Guide:
    """What a prompt says before the context.

    Args:
        instruction: what the text is and what to do with it.
        rule: what the answer looks like.
        examples: facts, question and answer, as many as BABILong gives.
    """

    instruction: str
    rule: str
    examples: tuple[tuple[str, str, str], ...]


def prompt(task: str, context: str, question: str, shots: int | None = None) -> str:
    """Write the prompt of a question.

    Args:
        task: qa1 to qa10.
        context: the text that holds the facts.
        question: about them.
        shots: how many examples to give. 0 leaves the instruction and the format of the answer. Default: as many as
            BABILong gives, two or three.

    Returns:
        The prompt.

    Raises:
        TitansError: there are not so many examples.
    """
    check_shots(task, shots)
    guide = GUIDES[task]
    examples = [
        f"<example>\n{facts} {asked}\nAnswer: {answer}\n</example>" for facts, asked, answer in guide.examples[:shots]
    ]
    given = f"<context>\n{context}\n</context>"
    return "\n".join([guide.instruction, "\n".join(examples), guide.rule, given, f"Question: {question}"])


def bare_prompt(context: str, question: str) -> str:
    """Write context and question only, for models fine-tuned on such; then the answer is due."""
    return f"{context}\n\nQuestion: {question}\nAnswer:"


def wording() -> str:
    """Name what the prompts say, so that answers to other prompts are told apart."""
    text = "".join(prompt(task, "", "") for task in GUIDES) + bare_prompt("", "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_shots(task: str, shots: int | None) -> None:
    """Refuse more examples than a task has."""
    most = len(GUIDES[task].examples)
    if shots is not None and not 0 <= shots <= most:
        raise TitansError(f"{shots} examples are asked for, and BABILong has {most} of {task}: expected 0 to {most}")


def _instruction(subject: str, advice: str) -> str:
    return (
        f"You are given a context in which facts about {subject} stand scattered among unrelated text. Answer the "
        f"question from these facts alone. {advice}"
    )


_ROOM_RULE = "Answer with one word, the name of the room, and nothing else."


def _form(sentence: str) -> str:
    return f"Answer in this form: {sentence} Write nothing after that."


_YES_NO_RULE = "Answer with one word, yes or no, and nothing else."
_LATEST = "Where facts contradict each other, the last one holds."

GUIDES = {
    "qa1": Guide(
        _instruction("where people go", "People are where they went last."),
        _form("The most recent location of 'person' is 'location'."),
        (
            (
                "Mary went to the office. John moved to the garden.",
                "Where is Mary?",
                "The most recent location of Mary is office.",
            ),
            (
                "Daniel moved to the kitchen. Daniel journeyed to the hallway.",
                "Where is Daniel?",
                "The most recent location of Daniel is hallway.",
            ),
        ),
    ),
    "qa2": Guide(
        _instruction(
            "people and the things they carry",
            "A thing is where it was put down, or else where the person is who carries it.",
        ),
        _form("The 'item' is in 'location'."),
        (
            ("John went to the office. John got the milk there.", "Where is the milk?", "The milk is in the office."),
            (
                "Mary took the apple. Mary moved to the garden. Mary dropped the apple. Mary went to the kitchen.",
                "Where is the apple?",
                "The apple is in the garden.",
            ),
        ),
    ),
    "qa3": Guide(
        _instruction(
            "people and the things they carry",
            "Follow the thing from room to room: asked is the room in which it was just before the one named.",
        ),
        _form("Before the 'location' the 'item' was in the 'location'."),
        (
            (
                "John got the milk. John moved to the office. John went to the garden. John dropped the milk.",
                "Where was the milk before the garden?",
                "Before the garden the milk was in the office.",
            ),
            (
                "Mary went to the kitchen. Mary took the apple. Mary moved to the bedroom. Daniel went to the office. "
                "Mary travelled to the hallway.",
                "Where was the apple before the bedroom?",
                "Before the bedroom the apple was in the kitchen.",
            ),
        ),
    ),
    "qa4": Guide(
        _instruction("how rooms lie to each other", "Mind the direction: if A is north of B, B is south of A."),
        _ROOM_RULE,
        (
            (
                "The office is north of the kitchen. The garden is south of the kitchen.",
                "What is north of the kitchen?",
                "office",
            ),
            (
                "The bedroom is west of the hallway. The bedroom is east of the bathroom.",
                "What is the hallway east of?",
                "bedroom",
            ),
        ),
    ),
    "qa5": Guide(
        _instruction("people who give things to each other", "If several facts fit the question, the last one counts."),
        "Answer with one word, the name of the person or of the thing, and nothing else.",
        (
            ("Fred got the milk there. Fred gave the milk to Mary.", "Who gave the milk to Mary?", "Fred"),
            ("Jeff took the apple there. Jeff handed the apple to Bill.", "What did Jeff give to Bill?", "apple"),
            (
                "Mary got the football. Mary passed the football to Jeff. Jeff gave the football to Fred.",
                "Who received the football?",
                "Fred",
            ),
        ),
    ),
    "qa6": Guide(
        _instruction("where people go", "People are where they went last."),
        _YES_NO_RULE,
        (
            ("Mary went to the office. John moved to the garden.", "Is Mary in the office?", "yes"),
            ("Daniel moved to the kitchen. Daniel journeyed to the hallway.", "Is Daniel in the kitchen?", "no"),
        ),
    ),
    "qa7": Guide(
        _instruction("people who take, put down and hand over things", "Count what the person holds in the end."),
        "Answer with one word, none, one, two or three, and nothing else.",
        (
            ("John got the milk there. John took the apple there.", "How many objects is John carrying?", "two"),
            ("Mary grabbed the apple. Mary gave the apple to John.", "How many objects is Mary carrying?", "none"),
            (
                "Sandra took the football. Sandra got the milk. Sandra dropped the football.",
                "How many objects is Sandra carrying?",
                "one",
            ),
        ),
    ),
    "qa8": Guide(
        _instruction("people who take and put down things", "Name all that the person holds in the end."),
        "Answer with the names of the things, commas between them, or with the word nothing; write nothing else.",
        (
            ("John got the milk there. John took the apple there.", "What is John carrying?", "milk,apple"),
            ("Mary grabbed the apple there. Mary left the apple.", "What is Mary carrying?", "nothing"),
            ("Sandra took the football. Daniel got the milk.", "What is Sandra carrying?", "football"),
        ),
    ),
    "qa9": Guide(
        _instruction("where people are and are not", _LATEST),
        _YES_NO_RULE,
        (
            ("Mary is in the office. John is no longer in the garden.", "Is John in the garden?", "no"),
            ("Daniel moved to the kitchen. Sandra is not in the hallway.", "Is Daniel in the kitchen?", "yes"),
        ),
    ),
    "qa10": Guide(
        _instruction("where people are or may be", f"{_LATEST} If a fact leaves two rooms open, either may be."),
        "Answer with one word, yes, no or maybe, and nothing else.",
        (
            ("Fred is either in the park or the school. Bill is in the office.", "Is Fred in the park?", "maybe"),
            ("Julie went to the cinema. Mary moved to the kitchen.", "Is Julie in the cinema?", "yes"),
            ("Bill is either in the bedroom or the office. Fred is in the park.", "Is Bill in the park?", "no"),
        ),
    ),
}
