"""`titans evaluate recall` and `titans evaluate state`: train a new model on a synthetic task and test it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from titans.cli._arguments import make_results_folder, whole_numbers
from titans.cli._loading import best_device
from titans.cli._progress import log_line, progress_bar
from titans.cli._tables import print_table, save_result
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.evaluation.synthetic import SyntheticResult

Variant = Annotated[str | None, typer.Option(help="The variant of the model: lmm, mac, … Default lmm.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="A preset in place of a variant and sizes.")]
HiddenSize = Annotated[int | None, typer.Option(min=1, help="Width. Default 64, or the preset's.")]
Layers = Annotated[int | None, typer.Option(min=1, help="Blocks. Default 2, or the preset's.")]
Heads = Annotated[int | None, typer.Option(min=1, help="Heads. Default 2, or the preset's.")]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Other fields of TitansConfig, as memory.depth=1; may be repeated."
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Optimizer steps.")]
Batch = Annotated[int, typer.Option(min=1, help="Sequences of each step.")]
Rate = Annotated[float, typer.Option(help="Peak learning rate.")]
Curriculum = Annotated[bool, typer.Option("--curriculum", help="Train at one size after the other, not at all mixed.")]
Seeds = Annotated[str, typer.Option(help="Train once with each, separated by commas.")]
Sequences = Annotated[int, typer.Option(min=1, help="Test sequences at each size.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write synthetic.json and synthetic.png here.")]


def recall(
    task: Annotated[str, typer.Option(help="mqar, forgetting-mqar or needle.")] = "mqar",
    variant: Variant = None,
    preset: Preset = None,
    hidden_size: HiddenSize = None,
    layers: Layers = None,
    heads: Heads = None,
    fields: Fields = None,
    train: Annotated[str, typer.Option(help="Length/pairs to train at, separated by commas.")] = "64/5",
    lengths: Annotated[str, typer.Option(help="Length/pairs to test at.")] = "64/5,128/8,256/16",
    vocabulary: Annotated[int, typer.Option(help="Tokens in all; published results are for 8,192.")] = 8192,
    steps: Steps = 1000,
    batch: Batch = 32,
    learning_rate: Rate = 3e-3,
    curriculum: Curriculum = False,
    seeds: Seeds = "0",
    sequences: Sequences = 256,
    out: Out = None,
) -> None:
    """Train a new model to recall what it has read, and test it at several lengths.

    mqar: pairs of key and value, then each key among filler: what was its value? forgetting-mqar: half of the keys are
    stated again, and the last value counts. needle: one of several facts far apart is asked for at the end.

    [bold]Example:[/] titans evaluate recall --task mqar --variant lmm --vocabulary 64 --train 32/4 --lengths 32/4,64/8
    """
    model = _model(variant, preset, hidden_size, layers, heads, fields)
    budget = {"steps": steps, "batch": batch, "learning_rate": learning_rate, "curriculum": curriculum}
    options = {"vocabulary": vocabulary}
    _train_and_test("recall", task, options, model, (train, lengths), budget, seeds, sequences, out)


def state(
    task: Annotated[str, typer.Option(help="parity, modular-addition, a5, s5 or walk.")] = "parity",
    variant: Variant = None,
    preset: Preset = None,
    hidden_size: HiddenSize = None,
    layers: Layers = None,
    heads: Heads = None,
    fields: Fields = None,
    train: Annotated[str, typer.Option(help="Lengths to train at: a range, or several separated by commas.")] = "3-40",
    lengths: Annotated[str, typer.Option(help="Lengths to test at.")] = "40,80,160,256,480",
    modulus: Annotated[int | None, typer.Option(help="Of modular-addition and walk. Default 5.")] = None,
    steps: Steps = 1000,
    batch: Batch = 32,
    learning_rate: Rate = 3e-3,
    curriculum: Curriculum = False,
    seeds: Seeds = "0",
    sequences: Sequences = 256,
    out: Out = None,
) -> None:
    """Train a new model to follow a state, and test it at several lengths, up to 12 times those of the training.

    The answer at every position is the running product: of bits (parity), numbers (modular-addition), permutations (a5,
    s5), or steps to the left and right (walk).

    [bold]Example:[/] titans evaluate state --task parity --variant mamba2 --steps 500
    """
    model = _model(variant, preset, hidden_size, layers, heads, fields)
    budget = {"steps": steps, "batch": batch, "learning_rate": learning_rate, "curriculum": curriculum}
    options = {} if modulus is None else {"modulus": modulus}
    _train_and_test("state", task, options, model, (train, lengths), budget, seeds, sequences, out)


def _model(
    variant: str | None, preset: str | None, hidden_size: int | None, layers: int | None, heads: int | None,
    fields: Sequence[str] | None,
) -> dict[str, Any]:  # fmt: skip
    """Put the fields of the model together."""
    from titans.io.recipe import apply_override

    if variant is not None and preset is not None:
        raise TitansError("give the model either as --variant or as --preset")
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": layers, "num_attention_heads": heads}
    model: dict[str, Any] = {"preset": preset} if preset is not None else {"variant": variant or "lmm"}
    if preset is None:
        model |= {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model |= {name: value for name, value in sizes.items() if value is not None}
    for field in fields or []:
        apply_override(model, field)
    if variant is None and "layers" in model:  # which say all that a variant says
        model.pop("variant", None)
    return model


def _train_and_test(
    kind: str,
    task: str,
    options: dict[str, Any],
    model: dict[str, Any],
    sizes: tuple[str, str],
    budget: dict[str, Any],
    seeds: str,
    sequences: int,
    out: Path | None,
) -> None:
    from titans.data.synthetic import TASKS, make_task, parse_sizes
    from titans.evaluation.model_zoo import make_model
    from titans.evaluation.synthetic import train_and_score
    from titans.evaluation.synthetic_training import Budget

    if task in TASKS and TASKS[task].kind != kind:
        raise TitansError(f"{task} is a {TASKS[task].kind} task: use titans evaluate {TASKS[task].kind}")
    make_results_folder(out)
    made = make_task(task, options)
    train, test = (parse_sizes(words.split(",")) for words in sizes)
    numbers = whole_numbers(seeds, "seeds")
    with progress_bar() as progress:
        bars = {seed: progress.add_task(f"seed {seed}", total=1.0) for seed in numbers}

        def shown(seed: int) -> Any:
            return lambda share, loss: progress.update(
                bars[seed], completed=share, description=f"seed {seed}: {loss:.3f} nats per answer"
            )

        result = train_and_score(
            lambda seed: make_model(model, made.vocab_size, seed).to(best_device()),
            made,
            train,
            test,
            Budget(**budget),
            seeds=numbers,
            name=str(model.get("preset") or model.get("variant") or model.get("layers")),
            sequences=sequences,
            finished=log_line,
            progress=shown,
        )
    _print(result)
    save_result(result, out, "synthetic")


def _print(result: SyntheticResult) -> None:
    last = [] if result.kind == "recall" else ["at the last position"]
    rows = [["size", "seed", "right answers", "95 % interval", *last, "0 = chance", "nats per answer"]]
    for size in dict.fromkeys(score.size for run in result.runs for score in run.scores):
        for run in result.runs:
            for score in run.scores:
                if score.size == size:
                    interval = f"{score.low:.1%} – {score.high:.1%}"
                    final = [f"{score.final_accuracy:.1%}"] if last else []
                    cells = [f"{score.accuracy:.1%}", interval, *final, f"{score.scaled:.3f}", f"{score.loss:.3f}"]
                    rows.append([size, str(run.seed), *cells])
        if len(result.runs) > 1:
            rows.append([size, "mean", f"{result.mean(size):.1%}", *[""] * (len(rows[0]) - 3)])
    print_table(rows, f"{result.task}: {result.model}, {result.parameters:,} parameters")
    trained = result.runs[0].training
    speed = sum(run.training.tokens for run in result.runs) / sum(run.training.seconds for run in result.runs)
    typer.echo(f"trained  {trained.steps:,} steps, {trained.tokens:,} tokens a seed, {speed:,.0f} tokens/s")
    typer.echo(f"chance   {result.chance:.3g}")
    typer.echo(result.protocol)
