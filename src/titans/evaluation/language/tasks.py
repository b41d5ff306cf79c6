"""The task definitions of lm-evaluation-harness: found, and loaded with their data, from the hub or from files."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from titans.data.hub import hub_or_cache
from titans.data.language_tasks import LocalTask, local_task
from titans.errors import TitansError
from titans.evaluation.language.examples import give_local, keep_questions_out
from titans.evaluation.language.harness import quiet, refused

# Where the tasks of the usual table are; others are looked for.
FOLDERS = {
    "arc_challenge": "arc",
    "arc_easy": "arc",
    "boolq": "super_glue/boolq",
    "hellaswag": "hellaswag",
    "lambada_openai": "lambada",
    "piqa": "piqa",
    "social_iqa": "siqa",
    "wikitext": "wikitext",
    "winogrande": "winogrande",
}


@dataclasses.dataclass(frozen=True)
class LoadedTask:
    """A task with its data.

    Args:
        task: the harness's object.
        local: its documents, where they come from a file.
        examples: how many a prompt has, and where they are from; empty where it has none.
        deviation: what was changed so that no question is among its own examples; empty where nothing.
    """

    task: Any
    local: LocalTask | None
    examples: str
    deviation: str

    @property
    def name(self) -> str:
        """What the harness calls it."""
        name: str = self.task.task_name
        return name


@dataclasses.dataclass(frozen=True)
class LoadedTasks:
    """What goes by one name.

    Args:
        tasks: one, or those of a group or tag.
        groups: the harness's objects of the groups with a score of their own, the smaller ones first.
    """

    tasks: list[LoadedTask]
    groups: list[Any]


class Tasks:
    """The harness's task definitions.

    Args:
        names: the tasks, groups and tags that will be asked for.
        data: a folder with documents. None: all are from the hub.
        tokenizer: the folder of that in whose tokens texts are counted that tasks make themselves, as RULER's; it must
            be there as long as tasks are loaded.
        lengths: of these texts, in tokens. None: the tasks' own.
        seed: of these texts. Default 0, as the harness's command has it.

    Raises:
        TitansError: one of the names is none of the harness.
    """

    def __init__(
        self,
        names: Sequence[str],
        data: Path | None,
        tokenizer: Path,
        lengths: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        self._data, self._tokenizer, self._seed = data, tokenizer, seed
        metadata: dict[str, Any] = {"tokenizer": str(tokenizer), "pretrained": str(tokenizer)}
        if lengths is not None:
            metadata["max_seq_lengths"] = list(lengths)
        with quiet():
            self._manager = _manager(names, metadata)
        for name in names:
            self._local(name)  # a damaged file is known before any work is done
            if name not in self._manager.task_index:
                raise TitansError(f'"{name}" is no task of lm-evaluation-harness (lm-eval ls tasks shows all)')

    def load(self, name: str) -> LoadedTasks:
        """Make what goes by a name, with its data.

        Args:
            name: what the harness calls it.

        Returns:
            The task, or all of a group.

        Raises:
            TitansError: the data cannot be had or lack a field that the task asks for, a package is missing, or there
                are no examples for a prompt but the questions themselves.
        """
        downloads = contextlib.redirect_stderr(io.StringIO())  # NLTK's, which tell of themselves
        hub = hub_or_cache() if self._local(name) is None else contextlib.nullcontext()
        made, drawn = self._local_data(name), _seeded(self._seed)
        with quiet(), downloads, hub, drawn, made as given, _refused_data(name, given):
            found = self._manager.load([name])
        tasks = []
        for task in found["tasks"].values():
            local = given.get(task.task_name)
            if local is None and self._local(task.task_name) is not None:
                raise TitansError(f"{task.task_name} makes its documents itself, and takes none from a file")
            with refused(f"{task.task_name} fails"):
                tasks.append(LoadedTask(task, local, *keep_questions_out(task)))
        groups = list(found.get("groups", {}).values())
        groups.sort(key=lambda group: len(group.get_all_tasks()))
        return LoadedTasks(tasks, [group for group in groups if group.has_aggregation])

    def _local(self, name: str) -> LocalTask | None:
        return None if self._data is None else local_task(self._data, name)

    @contextlib.contextmanager
    def _local_data(self, asked: str) -> Iterator[dict[str, LocalTask | None]]:
        """Give the tasks that are made in the body their documents from files, as far as there are any.

        Args:
            asked: the name of a task that does not know its own yet, as those do that are classes.

        Yields:
            By name of each task that is being made: its documents, or None where they come from elsewhere.
        """
        from lm_eval.api.task import ConfigurableTask

        given: dict[str, LocalTask | None] = {}
        download = ConfigurableTask.download

        def get(task: Any, *args: Any, **options: Any) -> None:
            name = task.config.task or asked
            local = given[name] = self._local(name)
            if local is None or self._data is None:
                if name == "ruler_vt":
                    _check_variables(str(self._tokenizer))
                download(task, *args, **options)
            else:
                give_local(task, name, local, self._data)

        try:
            ConfigurableTask.download = get
            yield given
        finally:
            ConfigurableTask.download = download


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Have the texts that tasks make drawn with a seed, and leave the random numbers of others alone."""
    before, numbers = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numbers)


def _check_variables(tokenizer: str) -> None:
    """Refuse RULER's variable tracking where the harness would look for an example without end, deaf to Ctrl-C.

    The example of its prompts must have 500 tokens at most, and five lines of noise are the least that it has.
    """
    from lm_eval.tasks.ruler import vt_utils

    with _seeded(0):
        text, _ = vt_utils.generate_input_output(5, 1, 4, is_icl=True)
    if len(vt_utils.get_tokenizer(tokenizer)(text).input_ids) + 30 > 500:
        raise TitansError(
            "ruler_vt of lm-evaluation-harness does not fit into the tokens of this model, as its example must have "
            "500 at most: titans evaluate ruler --tasks vt asks the same"
        )


@contextlib.contextmanager
def _refused_data(name: str, given: dict[str, LocalTask | None]) -> Iterator[None]:
    """Say what the task that was being made when the body failed wanted: its file, packages, or the hub."""
    try:
        with refused(name):
            yield
    except TitansError as error:
        cause = error.__cause__
        if cause is None:  # a sentence of ours
            raise
        reason = str(error).removeprefix(f"{name}: ")
        task, local = next(reversed(given.items()), (name, None))
        if local is not None:
            raise TitansError(f"{local.path} is no data of the task {task}: {reason}") from cause
        if isinstance(cause, OSError):
            what = f"the data of {task}" if given else f"what {task} needs"
            raise TitansError(
                f"cannot load {what} from the hub ({reason}): check the network, or give a folder with the data as "
                "--data"
            ) from cause
        raise TitansError(f"{task} cannot be loaded: {reason}") from cause


def _manager(names: Sequence[str], metadata: dict[str, Any]) -> Any:
    """Make what knows the definitions: of the folders that have the names, or of all."""
    from lm_eval.tasks import TaskManager

    folders = [str(folder) for folder in _folders(names)]
    if folders:
        some = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
        if all(_is_complete(some.task_index, name) for name in names):
            return some
    return TaskManager(metadata=metadata)


def _folders(names: Sequence[str]) -> list[Path]:
    """The folders whose files define the names: reading all of the harness's definitions takes several times as long.

    Returns:
        Nothing where one of them is not found; it may be a tag.
    """
    from lm_eval import tasks

    root = Path(tasks.__file__).parent
    if all(name in FOLDERS for name in names):
        return sorted({root / FOLDERS[name] for name in names})
    defines = re.compile(rf"^(?:task|group):[ ]*[\"']?({'|'.join(map(re.escape, names))})[\"']?[ ]*(?:#.*)?$", re.M)
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.yaml")):
        for name in defines.findall(path.read_text("utf-8", errors="replace")):
            found.setdefault(name, path.parent)
    return sorted(set(found.values())) if len(found) == len(set(names)) else []


def _is_complete(index: Any, name: str) -> bool:
    """Tell whether an index of some folders has a name and, of a group, all that belongs to it."""
    if name not in index or index[name].yaml_path is None:  # a tag, which tasks of any folder may bear
        return False
    return _has_members(index, (index[name].cfg or {}).get("task"))


def _has_members(index: Any, members: Any) -> bool:
    """Tell whether an index has the tasks and groups that the definition of a group lists."""
    if not isinstance(members, list):  # a task's own name
        return True
    for member in members:
        name = member if isinstance(member, str) else member.get("group", member.get("task"))
        defined_here = isinstance(member, dict) and isinstance(member.get("task"), list) and name not in index
        if not (_has_members(index, member["task"]) if defined_here else _is_complete(index, name)):
            return False
    return True
