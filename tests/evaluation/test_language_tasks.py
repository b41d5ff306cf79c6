"""Any task of lm-evaluation-harness: examples that are no questions, filters, groups, texts of its own, packages."""

import json
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM

from titans.data import byte_tokenizer
from titans.errors import TitansError
from titans.evaluation.intervals import wilson
from titans.evaluation.language import evaluate_language
from titans.evaluation.language.result import as_text, in_words
from titans.evaluation.streaming_lm import StreamingLM
from titans.models.write_policy import WritePolicy

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
from titans.evaluation.language import tasks
from titans.evaluation.language.lm import make_lm, special_tokens
from titans.evaluation.language.tasks import Tasks

TASK = """
task: {name}
dataset_path: nowhere
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [right, wrong]
doc_to_target: "{{{{label}}}}"
metric_list: [{{metric: {metric}, aggregation: {aggregation}, higher_is_better: true}}]
{more}
"""


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def questions(count, name="q"):
    return [{"question": f"{name}{n}?", "label": n % 2} for n in range(count)]


@pytest.fixture
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def define(tmp_path, tokenizer_folder, monkeypatch):
    """Define a task of the harness, with its documents."""
    monkeypatch.setattr(tasks, "STOCK", tmp_path)

    def define(name, rows, more="", metric="acc", aggregation="mean"):
        (tmp_path / f"{name}.yaml").write_text(
            TASK.format(name=name, more=more, metric=metric, aggregation=aggregation)
        )
        write(tmp_path / f"{name}.jsonl", rows)
        return tmp_path

    return define


@pytest.fixture
def evaluate(make_model, tmp_path):
    model = make_model("mac", bos_token_id=256, eos_token_id=257, pad_token_id=258).eval()

    def evaluate(*names, data=tmp_path, **options):
        return evaluate_language(StreamingLM(model, byte_tokenizer()), names, data=data, **options)

    evaluate.model = model
    return evaluate


def prompts(loaded):
    """Each question, and the lines of its prompt before it."""
    loaded.task.set_fewshot_seed(0)
    made = [(doc["question"], loaded.task.fewshot_context(doc, loaded.task.config.num_fewshot)) for doc in docs(loaded)]
    return [(question, prompt.removesuffix(question).split("\n\n")[:-1]) for question, prompt in made]


def docs(loaded):
    return list(loaded.task.eval_docs)


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gsm8k")
    for file, word in (("gsm8k.jsonl", "asked"), ("gsm8k_train.jsonl", "shown")):
        write(folder / file, [{"question": f"{word} {n}", "answer": f"so\n#### {n}"} for n in range(6)])
    return folder


def test_examples_come_from_the_split_of_the_task(gsm8k, tokenizer_folder):
    (loaded,), _ = Tasks(["gsm8k"], gsm8k, tokenizer_folder).load("gsm8k")
    assert (loaded.examples, loaded.deviation) == ("5 examples of its split train", "")
    loaded.task.set_fewshot_seed(0)
    for doc in docs(loaded):
        prompt = loaded.task.fewshot_context(doc, 5)
        assert prompt.count("shown") == 5
        assert prompt.count("asked") == 1


def test_questions_are_not_taken_for_examples(gsm8k, tokenizer_folder, tmp_path):
    (tmp_path / "gsm8k.jsonl").write_text((gsm8k / "gsm8k.jsonl").read_text())
    with pytest.raises(TitansError, match=r"5 examples of its split train, .* give them as gsm8k_train.jsonl"):
        Tasks(["gsm8k"], tmp_path, tokenizer_folder).load("gsm8k")


@pytest.mark.parametrize(
    ("splits", "deviation"),
    [
        ("test_split: test\nfewshot_split: test", ""),  # the harness leaves the question out itself
        ("test_split: test", "a question of t left out of its own examples"),
        ("validation_split: dev\nfewshot_split: dev", "a question of t left out of its own examples"),
        ("training_split: x\ntest_split: x", "a question of t left out of its own examples"),
        ("test_split: test\nfewshot_config: {sampler: first_n}", "a question of t left out of its own examples"),
    ],
)
def test_no_question_is_its_own_example(define, tokenizer_folder, splits, deviation):
    folder = define("t", questions(4), f"num_fewshot: 3\n{splits}")
    (loaded,), _ = Tasks(["t"], folder, tokenizer_folder).load("t")
    assert (loaded.examples, loaded.deviation) == ("3 of the other questions as examples", deviation)
    for question, examples in prompts(loaded):
        assert sorted([question, *(example.split(" ")[0] for example in examples)]) == ["q0?", "q1?", "q2?", "q3?"]


def test_examples_that_are_asked_are_left_out(define, tokenizer_folder):
    folder = define("t", questions(4), "num_fewshot: 3\ntest_split: test\nfewshot_split: dev")
    write(folder / "t_dev.jsonl", [*questions(3, "other"), *questions(4)])
    (loaded,), _ = Tasks(["t"], folder, tokenizer_folder).load("t")
    assert loaded.deviation == "4 examples of t left out, as they are asked themselves"
    assert all(len(examples) == 3 and "q" not in "".join(examples) for _, examples in prompts(loaded))
    numbered = [{**row, "idx": 100 + n} for n, row in enumerate([*questions(3, "other"), *questions(4)])]
    write(folder / "t_dev.jsonl", numbered)
    (renumbered,), _ = Tasks(["t"], folder, tokenizer_folder).load("t")
    assert renumbered.deviation == loaded.deviation
    assert prompts(renumbered) == prompts(loaded)
    write(folder / "t_dev.jsonl", questions(3))
    with pytest.raises(TitansError, match="there are only the 3 questions themselves"):
        Tasks(["t"], folder, tokenizer_folder).load("t")


def test_each_filter_has_its_interval_and_no_documents_of_its_own(evaluate, gsm8k, monkeypatch):
    monkeypatch.setattr(StreamingLM, "generate", lambda *_: iter(b"so\n#### 2\nor 3"))
    result = evaluate("gsm8k", data=gsm8k)
    (task,) = result.tasks
    assert (task.documents, task.of) == (6, 6)
    assert set(task.metrics) == {"exact_match,strict-match", "exact_match,flexible-extract"}
    for metric in task.metrics.values():
        assert (metric.value, metric.low, metric.high) == (pytest.approx(1 / 6), *wilson(1, 6))
    assert result.protocol == (
        f"protocol: lm-evaluation-harness {result.harness}, prompts without bos, "
        "memories written by --write always, 5 examples of its split train in the prompts of gsm8k_local; "
        "deviations: none"
    )


def test_metrics_that_note_labels_and_predictions_have_no_interval(define, evaluate):
    define("t", questions(4), "test_split: test", metric="mcc", aggregation="matthews_corrcoef")
    (task,) = evaluate("t").tasks
    assert list(task.metrics) == ["mcc"]
    assert task.metrics["mcc"].low is None


def test_tasks_that_are_classes_take_documents_from_files(evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr(StreamingLM, "generate", lambda self, ids, *_: iter(ids[-2:]))
    write(tmp_path / "squad_completion.jsonl", [{"text": f"the text v{n}", "value": f"v{n // 2}"} for n in range(4)])
    (task,) = evaluate("squad_completion").tasks
    assert (task.task, task.documents, task.metrics["contains"].value) == ("squad_completion_local", 4, 0.25)
    assert task.metrics["contains"].low == wilson(1, 4)[0]


def test_numpy_s_truth_values_are_shares(define, evaluate, monkeypatch):
    from lm_eval.api.task import ConfigurableTask

    define("t", questions(4), "test_split: test")
    monkeypatch.setattr(ConfigurableTask, "process_results", lambda self, doc, _: {"acc": np.bool_(doc["label"])})
    (task,) = evaluate("t").tasks
    assert (task.metrics["acc"].low, task.metrics["acc"].high) == wilson(2, 4)


GROUP = """
group: g
task: [a, b, {group: inner, task: [c]}]
aggregate_metric_list: [{metric: acc, weight_by_size: %s}]
"""


@pytest.mark.parametrize("weighted", [True, False])
def test_groups_have_the_score_of_their_tasks(define, evaluate, weighted):
    for name, count in (("a", 2), ("b", 6), ("c", 4)):
        folder = define(name, questions(count, name), "test_split: test")
    (folder / "g.yaml").write_text(GROUP % str(weighted).lower())
    said, shares, results = [], [], folder / "results"
    result = evaluate("g", folder=results, finished=said.append, progress=lambda share, name: shares.append(share))
    *parts, group = result.tasks
    assert [part.task for part in parts] == ["a_local", "b_local", "c_local"]
    assert all(part.group == "g" for part in parts)
    assert (group.task, group.documents, group.of, group.subtasks) == ("g_local", 12, 12, 3)
    accuracies = [part.metrics["acc"].value for part in parts]
    expected = sum(a * n for a, n in zip(accuracies, (2, 6, 4), strict=True)) / 12 if weighted else sum(accuracies) / 3
    assert group.metrics["acc"].value == pytest.approx(expected)
    assert group.metrics["acc"].low < expected < group.metrics["acc"].high
    assert [sentence.split(":")[0] for sentence in said] == ["a_local", "b_local", "c_local", "g_local"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    result.save(results)
    assert evaluate("g", folder=results, finished=said.append).tasks == result.tasks
    assert len(said) == 4  # nothing was done again


def test_a_group_goes_on_after_its_last_finished_task(define, evaluate, tmp_path):
    for name in ("a", "b", "c"):
        define(name, questions(2, name), "test_split: test")
    (tmp_path / "g.yaml").write_text(GROUP % "true")

    def stop(sentence):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate("g", folder=tmp_path / "results", finished=stop)
    said = []
    evaluate("g", folder=tmp_path / "results", finished=said.append)
    assert [sentence.split(":")[0] for sentence in said] == ["b_local", "c_local", "g_local"]


@pytest.fixture
def few_words(monkeypatch):
    """RULER's generator with few words: of all that it has it makes a million at its import."""
    nltk, wonderwords = (pytest.importorskip(name) for name in ("nltk", "wonderwords"))
    words = SimpleNamespace(_categories={"nouns": ["sea", "hill"], "adjectives": ["blue", "high"], "verbs": []})
    monkeypatch.setattr(wonderwords, "RandomWord", lambda: words)
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)
    modules = [f"lm_eval.tasks.ruler.{name}" for name in ("prepare_niah", "niah_utils")]
    before = [sys.modules.pop(name, None) for name in modules]
    yield
    for name, module in zip(modules, before, strict=True):
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.mark.usefixtures("few_words")
def test_ruler_makes_texts_of_the_length_asked_for_in_the_model_s_tokens(evaluate, monkeypatch, capfd):
    tokens = []
    monkeypatch.setattr(StreamingLM, "generate", lambda self, ids, *_: tokens.append(len(ids)) or iter(()))
    said = []
    result = evaluate("niah_single_1", data=None, lengths=[900], limit=3, finished=said.append)
    (task,) = result.tasks
    assert (task.documents, task.of) == (3, 500)
    assert task.metrics["900"].value == 0
    assert set(task.metrics) == {"900"}  # RULER says -1 of the other lengths
    assert (task.metrics["900"].low, task.metrics["900"].high) == wilson(0, 3)
    assert all(600 < count < 900 for count in tokens)
    assert capfd.readouterr() == ("", "")
    assert said == ["niah_single_1: 3 documents, found at 900 tokens 0.0%"]
    metric = task.metrics["900"]
    shown = [as_text("900", number) for number in (metric.value, metric.low, metric.high)]
    assert [in_words("900"), *shown] == ["found at 900 tokens", "0.0%", "0.0%", "56.2%"]


@pytest.mark.usefixtures("few_words")
def test_ruler_s_texts_are_those_of_the_harness_with_the_seed(tokenizer_folder):
    from lm_eval.tasks import TaskManager

    def made(seed):
        (loaded,), _ = Tasks(["niah_single_1"], None, tokenizer_folder, [900], seed).load("niah_single_1")
        return docs(loaded)

    ours = [made(seed) for seed in (0, 0, 1)]
    assert ours[0] == ours[1] != ours[2]
    before = random.getstate()
    random.seed(0)
    found = TaskManager(
        include_path=str(tasks.STOCK / "ruler"),
        include_defaults=False,
        metadata={"tokenizer": str(tokenizer_folder), "max_seq_lengths": [900]},
    ).load(["niah_single_1"])
    random.setstate(before)
    assert list(found["tasks"]["niah_single_1"].eval_docs) == ours[0]


@pytest.mark.usefixtures("few_words")
def test_variable_tracking_in_bytes_is_refused_where_the_harness_would_not_end(evaluate):
    with pytest.raises(TitansError, match=r"ruler_vt .+ must have 500 at most: titans evaluate ruler --tasks vt"):
        evaluate("ruler_vt", data=None)


def test_missing_packages_are_named(evaluate, monkeypatch):
    for name in ("jieba", "fuzzywuzzy", "rouge"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TitansError, match=r"longbench_narrativeqa cannot be loaded: it needs further packages .*jieba"):
        evaluate("longbench_narrativeqa")


def test_the_protocol_says_what_the_tokenizer_adds():
    pytest.importorskip("lm_eval")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=259, **sizes))
    said = []
    for template in (None, "<|bos|> $A", "<|bos|> $A <|eos|>"):
        tokenizer = byte_tokenizer()
        if template is not None:
            special = [("<|bos|>", 256), ("<|eos|>", 257)]
            tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(template, None, special)
        said.append(special_tokens(make_lm(StreamingLM(model, tokenizer), 1, None, False)))
    assert said == [
        "prompts without bos",
        "prompts after <|bos|>, which the tokenizer adds",
        "prompts after <|bos|> and before <|eos|>, which the tokenizer adds",
    ]


def test_answers_are_written_in_pieces_and_are_those_of_one_pass(evaluate):
    texts = ["a", "some longer words that go on", "one, two, three: " * 3]
    settings = {"until": ["\n\n", "e"], "max_gen_toks": 12}
    requests = [SimpleNamespace(args=(text, settings), doc_id=n, task_name="t") for n, text in enumerate(texts)]
    lm = StreamingLM(evaluate.model, byte_tokenizer(), piece_length=7)
    streaming, whole = (make_lm(lm, size, None, False) for size in (1, 2))
    lengths = []
    forward = evaluate.model.forward
    evaluate.model.forward = lambda ids, **options: lengths.append(ids.shape[1]) or forward(ids, **options)
    answers = streaming.generate_until(requests)
    assert max(lengths) == 7
    del evaluate.model.forward
    assert answers == whole.generate_until(requests)
    assert len(set(answers)) == 3
    never = StreamingLM(evaluate.model, byte_tokenizer(), policy=WritePolicy("never"))
    again = [make_lm(never, size, None, False).generate_until(requests) for size in (1, 2)]
    assert again[0] == again[1] != answers
    limited = make_lm(lm, 1, 30, False)
    limited.generate_until(requests)
    assert limited.cut == {texts[1], texts[2]}
