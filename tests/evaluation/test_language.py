"""lm-evaluation-harness on our models: its numbers are those that a direct computation gives, with right intervals."""

import json
import logging
import math

import pytest
import torch

from titans.data import byte_tokenizer
from titans.errors import TitansError
from titans.evaluation.intervals import wilson
from titans.evaluation.language import TABLE, LanguageResult, Metric, TaskResult, evaluate_language
from titans.evaluation.language.intervals import combined, interval
from titans.evaluation.streaming_lm import StreamingLM
from titans.models.write_policy import WritePolicy

WORDS = ("mass", "the sea", "a longer answer", "no", "thirty-two", "x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of three tasks."""
    pytest.importorskip("lm_eval")
    folder = tmp_path_factory.mktemp("data")
    rows = [{"goal": f"goal {n}", "sol1": WORDS[n], "sol2": WORDS[-1 - n]} for n in range(6)]
    (folder / "piqa_valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "piqa_valid-labels.lst").write_text("1\n0\n1\n0\n0\n1\n")
    texts = [f"In the {word} there is a last word" for word in WORDS]
    (folder / "lambada_test.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "wikitext-2.test.txt").write_text(
        " = One = \n \n The lobster , a crab . \n \n = Two = \n \n" + " Word @-@ by word ." * 5
    )
    return folder


@pytest.fixture
def evaluate(make_model, folder):
    """Evaluate a tiny model on the local documents."""
    model = make_model("mac", bos_token_id=256, eos_token_id=257, pad_token_id=258).eval()

    def evaluate(*tasks, policy=None, **options):
        return evaluate_language(StreamingLM(model, byte_tokenizer(), policy=policy), tasks, data=folder, **options)

    evaluate.model = model
    return evaluate


def log_likelihood(model, context, rest, state=None):
    """The log-likelihood of a text after another, from one forward pass without padding."""
    before = list(context.encode()) or [256]
    ids = torch.tensor([before + list(rest.encode())])
    with torch.no_grad():
        scores = model(ids, cache=state).logits.log_softmax(-1)[0]
    return sum(float(scores[i - 1, ids[0, i]]) for i in range(len(before), ids.shape[1]))


def test_the_write_policy_is_followed_said_and_kept(evaluate, tmp_path):
    always = evaluate("lambada_openai", folder=tmp_path / "always")
    never = evaluate("lambada_openai", batch_size=2, policy=WritePolicy("never"), folder=tmp_path / "never")
    right, state = [], WritePolicy("never").start(evaluate.model.initial_state(1))
    for word in WORDS:
        right.append(log_likelihood(evaluate.model, f"In the {word} there is a last", " word", state))
    found = never.tasks[0].metrics["perplexity"].value
    assert found == pytest.approx(math.exp(-sum(right) / len(right)), rel=1e-5)
    assert found != pytest.approx(always.tasks[0].metrics["perplexity"].value, rel=1e-5)
    assert "memories written by --write always" in always.protocol
    assert "memories written by --write never" in never.protocol
    with pytest.raises(TitansError, match=r"other settings \(write"):
        evaluate("lambada_openai", folder=tmp_path / "never")


def test_numbers_are_those_of_a_direct_computation(evaluate, folder):
    piqa, lambada, wikitext = evaluate("piqa", "lambada_openai", "wikitext", batch_size=4).tasks
    right = []
    rows = [json.loads(line) for line in (folder / "piqa_valid.jsonl").read_text().splitlines()]
    for row, label in zip(rows, (1, 0, 1, 0, 0, 1), strict=True):
        scores = [
            log_likelihood(evaluate.model, f"Question: {row['goal']}\nAnswer:", f" {row[key]}")
            for key in ("sol1", "sol2")
        ]
        right.append(scores.index(max(scores)) == label)
    assert piqa.metrics["acc"].value == sum(right) / 6
    assert (piqa.metrics["acc"].low, piqa.metrics["acc"].high) == wilson(sum(right), 6)
    likelihoods = [log_likelihood(evaluate.model, f"In the {word} there is a last", " word") for word in WORDS]
    assert lambada.metrics["perplexity"].value == pytest.approx(math.exp(-sum(likelihoods) / 6), rel=1e-4)
    pages = [
        " = One =\n\nThe lobster, a crab.\n\n",
        " = Two =\n\n" + "Word-by word. " * 4 + "Word-by word .",
    ]
    total = sum(log_likelihood(evaluate.model, "", page) for page in pages)
    words = 11 + 29  # pieces between white space of the articles as they are, the empty ones at the ends too
    assert wikitext.metrics["word_perplexity"].value == pytest.approx(math.exp(-total / words), rel=1e-4)


def test_the_machine_is_not_asked(evaluate, monkeypatch, capfd):
    from lm_eval import evaluator

    asked = []
    for report in ("get_git_commit_hash", "add_env_info"):
        monkeypatch.setattr(evaluator, report, lambda *_: asked.append(1))
    evaluate("piqa", limit=1)
    assert capfd.readouterr().err == ""
    assert not asked


def test_intervals():
    shares = interval(0.75, [1, 1, 0, 1])
    assert (shares.low, shares.high) == wilson(3, 4)
    assert shares.standard_error == pytest.approx(0.25)  # sqrt(0.75 * 0.25 / 3)
    mean = interval(2.0, [1.0, 3.0])
    assert (mean.standard_error, mean.low) == pytest.approx((1.0, 2 - 1.96))
    perplexity = interval(math.exp(2), [-1.0, -3.0])
    assert perplexity.standard_error == pytest.approx(math.exp(2))
    assert (perplexity.low, perplexity.high) == pytest.approx((math.exp(0.04), math.exp(3.96)))
    weighted = interval(math.exp(1.5), [(-1.0, 1), (-5.0, 3)])  # residuals 0.5 and -0.5
    assert weighted.standard_error / weighted.value == pytest.approx(math.sqrt(0.5 * 2) / 4)
    assert interval(1.5 / math.log(2), [(-1.0, 1), (-5.0, 3)]).standard_error == pytest.approx(0.25 / math.log(2))
    for value, measured in ((0.4, [1, 1, 0, 1]), (0.0, [(1, 0), (0, 0)]), (9.0, [("a", "b"), ("c", "d")])):
        assert interval(value, measured) == Metric(value)  # not known how that comes about


def test_intervals_of_groups():
    two = combined(0.5, [(0.25, interval(1.0, [1] * 4)), (0.75, interval(1 / 3, [1, 0, 0] * 4))])
    (low, _), (below, above) = wilson(4, 4), wilson(4, 12)
    assert two.low == pytest.approx(0.5 - math.hypot(0.25 * (1 - low), 0.75 * (1 / 3 - below)))
    assert two.high == pytest.approx(0.5 + 0.75 * (above - 1 / 3))
    assert two.standard_error == pytest.approx(0.75 * math.sqrt(2 / 9 / 11))
    assert combined(0.5, [(0.5, interval(0.0, [0] * 9)), (0.5, Metric(1.0))]) == Metric(0.5)


@pytest.mark.slow
def test_documents_are_drawn_with_the_seed_alone(evaluate):
    drawn = {seed: evaluate("lambada_openai", limit=2, seed=seed) for seed in (1, 2)}
    assert all(one.tasks[0].documents == 2 and one.tasks[0].of == 6 for one in drawn.values())
    assert len({one.tasks[0].metrics["perplexity"].value for one in drawn.values()}) > 1
    assert evaluate("lambada_openai", limit=2, seed=2).tasks == drawn[2].tasks
    assert "not all documents, but some drawn with seed 2" in drawn[2].protocol


@pytest.mark.slow
def test_prompts_are_whole_and_those_that_are_cut_are_counted(evaluate):
    whole = evaluate("lambada_openai")
    assert whole.tasks[0].cut == 0
    assert whole.protocol.endswith("deviations: none")
    cut = evaluate("lambada_openai", max_length=30)  # 3 texts have more than 31 bytes
    assert cut.tasks[0].cut == sum(len(f"In the {word} there is a last word") > 31 for word in WORDS)
    assert cut.tasks[0].metrics["perplexity"].value != whole.tasks[0].metrics["perplexity"].value
    assert f"{cut.tasks[0].cut} prompts of lambada_openai_local cut on the left" in cut.protocol
    choices = evaluate("piqa", max_length=30)  # "Question: goal 0\nAnswer:" has 24 bytes, before two answers each
    cuts = [any(len(answer) + 1 > 7 for answer in (WORDS[n], WORDS[-1 - n])) for n in range(6)]
    assert choices.tasks[0].cut == sum(cuts) == 4


@pytest.mark.slow
def test_finished_tasks_are_not_repeated(evaluate, tmp_path, monkeypatch):
    from lm_eval.api import task

    done, before = [], (task.tqdm, logging.getLogger("lm_eval").level)
    first = evaluate("piqa", folder=tmp_path, progress=lambda share, task: done.append((task, share)))
    assert done[-1] == ("piqa", 1.0)
    assert (task.tqdm, logging.getLogger("lm_eval").level) == before  # silenced for a while only
    done.clear()
    both = evaluate("piqa", "lambada_openai", folder=tmp_path, progress=lambda share, task: done.append((task, share)))
    assert [share for task, share in done if task == "piqa"] == [0.0]  # announced, but not done again
    assert both.tasks[0] == first.tasks[0]
    with pytest.raises(TitansError, match="other settings \\(seed"):
        evaluate("piqa", folder=tmp_path, seed=1)
    both.save(tmp_path / "new")
    kept = json.loads((tmp_path / "new" / "language.json").read_text())
    assert kept["tasks"][0]["metrics"]["acc"]["value"] == first.tasks[0].metrics["acc"].value
    assert kept["protocol"] == both.protocol
    assert (tmp_path / "new" / "language.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_trained_anew_is_another(evaluate, tmp_path):
    evaluate("piqa", folder=tmp_path, limit=1)
    with torch.no_grad():
        evaluate.model.lm_head.weight[0, 0] += 1
    with pytest.raises(TitansError, match="other settings \\(weights"):
        evaluate("piqa", folder=tmp_path, limit=1)


def test_average_is_of_the_eight_accuracies():
    def result(names):
        tasks = [
            TaskResult(name, 9, 9, 0, {metric: Metric(float(n)) for metric in TABLE[name]})
            for n, name in enumerate(TABLE)
            if name in names
        ]
        return LanguageResult("m", "0", 2048, 0, "", tuple(tasks))

    assert result(TABLE).average == sum(range(1, 9)) / 8
    assert result(set(TABLE) - {"wikitext"}).average == sum(range(1, 9)) / 8
    assert result(set(TABLE) - {"boolq"}).average is None


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        (["piqa", "piqa"], {}, "give each once"),
        ([], {}, "one at least"),
    ],
)
def test_what_cannot_be_done_is_refused(evaluate, tasks, options, message):
    with pytest.raises(TitansError, match=message):
        evaluate(*tasks, **options)


@pytest.mark.parametrize("task", ["piqa", "lambada_openai", "wikitext"])
def test_damaged_weights_are_refused(evaluate, task):
    with torch.no_grad():
        evaluate.model.model.norm.weight[:] = math.nan
    with pytest.raises(TitansError, match=r"^the model answers NaN: its weights are damaged"):
        evaluate(task)


def test_an_infinite_metric_is_refused(evaluate):
    surely = torch.full((259,), -math.inf).index_fill(0, torch.tensor([0]), 0.0)  # no text has this byte
    evaluate.model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + surely)
    with pytest.raises(TitansError, match="gives perplexity inf: the model's weights are damaged"):
        evaluate("lambada_openai")
