"""The questions of BABILong: which are asked, on which stories and texts, and in which words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from titans.data.babi import Story, check_task
from titans.data.babilong import Length, official_stories, simulated_stories
from titans.data.babilong_prompts import bare_prompt, check_shots, prompt
from titans.errors import TitansError

NEW_TOKENS = 20
OFFICIAL_SAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Questions:
    """What to ask.

    Args:
        tasks: of qa1 to qa10.
        lengths: as "0k" and "16k".
        babi: the folder of the official bAbI files. None: stories are made up.
        background: files, a folder, a glob or a hub id of book text; needed for all lengths but 0k.
        shots: examples in the prompt. Default: as many as BABILong gives, two or three.
        bare: ask with context and question alone, for models fine-tuned on such.
        samples: questions of each task at each length.
        seed: of stories, text and places; all models are asked the same as long as they count tokens alike.

    Raises:
        TitansError: one of them cannot be.
    """

    tasks: tuple[str, ...]
    lengths: tuple[str, ...]
    babi: Path | None = None
    background: str | None = None
    shots: int | None = None
    bare: bool = False
    samples: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is known not to work before anything is loaded."""
        for kind, names in (("tasks", self.tasks), ("lengths", self.lengths)):
            if not names or len(set(names)) < len(names):
                raise TitansError(f'the {kind} are "{",".join(names)}", expected different ones, at least one')
        for task in self.tasks:
            check_task(task)
        lengths = [Length.parse(name) for name in self.lengths]
        if self.background is None and any(length.tokens for length in lengths):
            raise TitansError("lengths other than 0k need background text: give the path of books as --background")
        if self.babi is not None and not self.babi.is_dir():
            raise TitansError(f'there is no folder "{self.babi}": expected one with the official bAbI files')
        if self.samples < 1:
            raise TitansError(f"{self.samples} samples are asked for, expected at least 1")
        for task in self.tasks:
            check_shots(task, self.shots)
        if self.bare and self.shots is not None:
            raise TitansError("--bare leaves the examples out: give either that or --shots")

    @property
    def name(self) -> str:
        """What the benchmark may be called."""
        return "BABILong-style" if self.babi is None else "BABILong"

    @property
    def protocol(self) -> str:
        """Say in one line what is done, and where it departs from the published benchmark."""
        examples = f"{self.shots} {'example' if self.shots == 1 else 'examples'}, not as many as BABILong gives"
        stories = (
            "made-up stories" if self.babi is None else "stories of the test files in place of those of en-10k train"
        )
        wording = "no instructions or examples" if self.bare else "wording of instructions and examples"
        deviations = [wording, stories]
        if any(Length.parse(name).tokens for name in self.lengths):
            deviations += [
                "lengths counted in the model's tokens",
                "the text given in place of PG-19",
                "sentences cut by simple rules",
                "stories that fit their context alone",
            ]
        if self.shots is not None:
            deviations.append(examples)
        if "qa7" in self.tasks:
            deviations.append('"one" within "none" is not counted')
        if self.samples != OFFICIAL_SAMPLES:
            deviations.append(
                f"{self.samples} {'question' if self.samples == 1 else 'questions'}, not {OFFICIAL_SAMPLES}"
            )
        return (
            f"protocol: {self.name} (Kuratov et al., 2024), greedy, {NEW_TOKENS} tokens; deviations: "
            f"{', '.join(deviations)}"
        )

    def stories(self, task: str, length: str) -> Iterator[Story]:
        """Yield the stories of a task in the order of the seed, another one at each length."""
        seed = f"{self.seed}/{length}"
        if self.babi is None:
            return simulated_stories(task, seed)
        return official_stories(self.babi, task, seed)

    def prompt(self, task: str, context: str, question: str) -> str:
        """Write the prompt of a question."""
        return bare_prompt(context, question) if self.bare else prompt(task, context, question, self.shots)
