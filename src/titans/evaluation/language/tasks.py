"""The task definitions of lm-evaluation-harness, with their documents from the hub or from local files."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from lm_eval import tasks as stock
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from titans.data.hub import hub_or_cache
from titans.data.language_tasks import LocalTask, local_names, local_rows, local_task
from titans.error_text import first_line
from titans.errors import TitansError
from titans.evaluation.language.examples import keep_questions_out

STOCK = Path(stock.__file__).parent  # the folder of the harness's definitions
LOCAL_TASK = """include: {include}
task: {name}
tag: null
custom_dataset: !function titans.evaluation.language.tasks.local_dataset
dataset_kwargs: {{local: {local}}}
"""


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


class Tasks:
    """The harness's task definitions; those of which a folder has documents take them from there.

    Args:
        names: the tasks, groups and tags that will be asked for.
        data: a folder with documents. None: all are from the hub.
        folder: holds the tokenizer in whose tokens tasks count that make their own texts, as RULER's; definitions with
            local documents are written here.
        lengths: of these texts, in tokens. None: the tasks' own.
        seed: of these texts. Default 0, as the harness's command has it.

    Raises:
        TitansError: one of the names is none of the harness, or a file is damaged.
    """

    def __init__(
        self, names: Sequence[str], data: Path | None, folder: Path, lengths: Sequence[int] | None = None, seed: int = 0
    ) -> None:
        self._data, self._tokenizer, self._seed = data, folder, seed
        self._asked = {name: local for name in names if (local := self._local(name)) is not None}
        metadata: dict[str, Any] = {"tokenizer": str(folder), "pretrained": str(folder)}
        if lengths is not None:
            metadata["max_seq_lengths"] = list(lengths)
        with quiet():
            found = _folders(names)
            written = [] if data is None else [_write_definitions(data, folder / "tasks")]
            paths = [*(found or [STOCK]), *written]
            self._manager = TaskManager(include_path=paths, include_defaults=False, metadata=metadata)
        for name in names:
            if name not in self._manager.task_index:
                raise TitansError(f'"{name}" is no task of lm-evaluation-harness (lm-eval ls tasks shows all)')

    def load(self, name: str) -> tuple[list[LoadedTask], list[Any]]:
        """Make what goes by a name, with its data.

        Args:
            name: what the harness calls it.

        Returns:
            The task, or all of a group or tag; and the groups with a score of their own, the smaller ones first.

        Raises:
            TitansError: the data cannot be had or lack a field that the task asks for, a package is missing, or there
                are no examples for a prompt but the questions themselves.
        """
        if name in ("ruler", "ruler_vt"):
            _check_variables(str(self._tokenizer))
        hub = hub_or_cache() if name not in self._asked else contextlib.nullcontext()
        try:
            with quiet(), hub, _seeded(self._seed):
                found = self._manager.load([self._spec(name)])
        except TitansError:
            raise
        except Exception as error:  # a definition is code of its own
            raise self._refused(name, error) from error
        tasks = []
        for task in found["tasks"].values():
            with running(task.task_name):
                tasks.append(LoadedTask(task, self._local(task.task_name), *keep_questions_out(task)))
        groups = sorted(found.get("groups", {}).values(), key=lambda group: len(group.get_all_tasks()))
        return tasks, [group for group in groups if group.has_aggregation]

    def _local(self, name: str) -> LocalTask | None:
        return None if self._data is None else local_task(self._data, name)

    def _spec(self, name: str) -> Any:
        """The name; of a task that is a class, a subclass that takes its documents from a file where there is one."""
        made = (self._manager.task_index[name].cfg or {}).get("class")
        if made is None or name not in self._asked:
            return name
        module, _, kind = made.rpartition(".")  # the class as the path of its file and its name
        module = ".".join(Path(module).relative_to(STOCK).parts)
        base = getattr(importlib.import_module(f"{stock.__name__}.{module}"), kind)
        if base.download is not ConfigurableTask.download:
            raise TitansError(f"{name} makes its documents itself, and takes none from a file")
        documents = Dataset.from_list(self._asked[name].rows)

        def download(task: Any, *args: Any, **options: Any) -> None:
            task.dataset = {"test": documents, "validation": documents}

        return {"task": name, "class": type(kind, (base,), {"download": download})}

    def _refused(self, name: str, error: Exception) -> TitansError:
        """Say what the task that could not be loaded wanted: packages, its file, or the hub."""
        reason = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, ImportError):
            return TitansError(f"{name} cannot be loaded: it needs further packages ({first_line(error)})")
        if name in self._asked:
            return TitansError(f"{self._asked[name].path} is no data of the task {name}: {reason}")
        if isinstance(error, OSError):
            return TitansError(
                f"cannot load the data of {name} from the hub ({reason}): check the network, or give a folder with the "
                "data as --data"
            )
        return TitansError(f"{name} cannot be loaded: {reason}")


def local_dataset(local: dict[str, Any], **_: Any) -> dict[str, Dataset]:
    """Return the splits of a task, of documents in local files; definitions name this as their `custom_dataset`.

    Args:
        local: what `_write_definitions` says: the folder, the task's name, the split of the questions and that of the
            examples of a prompt, of which a file `TASK_SPLIT.jsonl` has the documents, and how many a prompt has.
        **_: what the harness hands to all tasks.

    Raises:
        TitansError: prompts have examples, and there is no file with such.
    """
    folder, name, split = Path(local["folder"]), local["task"], local["examples"]
    found = local_task(folder, name)
    assert found is not None
    dataset = dict.fromkeys(filter(None, (*local["splits"], split)), Dataset.from_list(found.rows))
    if split is not None and split != local["asked"]:
        rows = local_rows(folder, f"{name}_{split}.jsonl")
        if rows is not None:
            dataset[split] = Dataset.from_list(rows)
        elif local["shots"]:
            raise TitansError(
                f"{name} begins each prompt with {local['shots']} examples of its split {split}, which must not come "
                f"from the questions in {found.path}: give them as {name}_{split}.jsonl in the same folder"
            )
    return dataset


def _write_definitions(data: Path, folder: Path) -> Path:
    """Define anew, in a folder, the tasks of which there are local documents."""
    folder.mkdir(exist_ok=True)
    names = sorted(local_names(data))
    index = TaskManager(include_path=_folders(names, all_of_them=False), include_defaults=False).task_index
    for name in names:
        config = index[name].cfg if name in index else None
        if config is None or "class" in config or not isinstance(config.get("task"), str):
            continue
        splits = [config.get(f"{part}_split") for part in ("test", "validation", "training")]
        shots = config.get("fewshot_config") or {}
        declared = None if shots.get("samples") else splits[2] or splits[1] or splits[0]
        local = {
            "folder": str(data),
            "task": name,
            "splits": splits,
            "asked": splits[0] or splits[1],
            "examples": shots.get("split") or config.get("fewshot_split") or declared,
            "shots": config.get("num_fewshot") or 0,
        }
        text = LOCAL_TASK.format(include=json.dumps(str(index[name].yaml_path)), name=name, local=json.dumps(local))
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    return folder


def _folders(names: Sequence[str], all_of_them: bool = True) -> list[Path]:
    """Find the folders that define tasks, as reading all definitions takes long.

    Returns:
        The folders; nothing where all names are wanted and one is not found, which may be a group or a tag.
    """
    pattern = re.compile(rf"^task:[ ]*[\"']?({'|'.join(map(re.escape, names)) or '(?!)'})[\"']?[ ]*(?:#.*)?$", re.M)
    found: dict[str, Path] = {}
    for path in sorted(STOCK.rglob("*.yaml")):
        for name in pattern.findall(path.read_text("utf-8", errors="replace")):
            found.setdefault(name, path.parent)
    return [] if all_of_them and len(found) < len(set(names)) else sorted(set(found.values()))


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


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Run the harness on a task in silence, and turn what it fails with into one sentence.

    Args:
        name: of the task.

    Yields:
        Nothing.

    Raises:
        TitansError: the body failed; one of ours passes unchanged.
    """
    try:
        with quiet():
            yield
    except TitansError:
        raise
    except Exception as error:  # a task is code of its own
        raise TitansError(f"{name} fails: {type(error).__name__}: {first_line(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the messages and bars of the harness and of the data sets away, as we show our own.

    Yields:
        Nothing.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
