"""Training and scoring on synthetic tasks, against counts made by hand and single passes over whole sequences."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from titans.data.packing import IGNORED
from titans.data.synthetic.registry import make_task
from titans.data.synthetic.task import Size, SyntheticTask, parse_sizes
from titans.errors import TitansError
from titans.evaluation import model_zoo
from titans.evaluation.intervals import wilson
from titans.evaluation.synthetic import score, train_and_score
from titans.evaluation.synthetic_training import Budget, generator_for, train_on
from titans.models.write_policy import WritePolicy
from titans.training.fit import Diverged, parameter_groups
from titans.training.objective import Objective, WriteGates

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "sliding_window": 8, "segment_length": 8}
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
MODELS = {
    "lmm": {"variant": "lmm", "memory": {"chunk_size": 4}, **SIZES},
    "mac": {"variant": "mac", "memory": {"chunk_size": 4}, **SIZES},
    "gated-deltanet": {"variant": "gated-deltanet", **SIZES},
    "llama": {**LLAMA, **HEADS},
}
MQAR = make_task("mqar", {"vocabulary": 16})


def fresh(name, vocab_size=16, seed=0, **fields):
    return model_zoo.make_model({**MODELS[name], **fields}, vocab_size, seed)


class Fixed(SyntheticTask):
    """Asks for the token itself at every position but the first."""

    name, kind, vocab_size, chance = "fixed", "state", 4, 0.25

    def batch(self, rows, size, generator):
        ids = torch.randint(4, (rows, size.length), generator=generator)
        labels = ids.clone()
        labels[:, 0] = IGNORED
        return ids, labels


class Answerer(torch.nn.Module):
    """Answers every token with itself, but 3 with 0; a Hugging Face model as far as anyone asks."""

    device = torch.device("cpu")
    config = SimpleNamespace(vocab_size=4)

    def forward(self, input_ids, use_cache):
        answers = torch.where(input_ids == 3, 0, input_ids)
        return SimpleNamespace(logits=F.one_hot(answers, 4).double().log())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("piece_length", [1, 5, 100])
def test_score_equals_one_pass_over_whole_sequences(name, piece_length):
    model = fresh(name, initializer_range=0.5)
    size = Size(30, 3)
    result = score(model, MQAR, size, sequences=40, piece_length=piece_length)
    ids, labels = MQAR.batch(40, size, generator_for(0, "test", size))
    with torch.no_grad():
        logits = model(ids).logits
    asked = labels != IGNORED
    right = (logits.argmax(-1) == labels) & asked
    assert result.asked == 120 == int(asked.sum())
    assert result.correct == int(right.sum())
    assert result.loss == pytest.approx(float(F.cross_entropy(logits[asked], labels[asked])), rel=1e-4)
    last = [max(t for t in range(30) if asked[row, t]) for row in range(40)]
    assert result.final == sum(bool(right[row, t]) for row, t in enumerate(last))
    assert (result.low, result.high) == wilson(result.correct, 120)
    assert result.scaled == pytest.approx((result.accuracy - 1 / 8) / (7 / 8))


def test_score_under_a_write_policy():
    """Writing everything is what happens without a policy; writing nothing is not."""
    model = fresh("lmm", initializer_range=0.5)
    plain, always, never = (
        score(model, MQAR, Size(30, 3), sequences=8, piece_length=9, policy=policy)
        for policy in (None, WritePolicy("always"), WritePolicy("never"))
    )
    assert always.loss == pytest.approx(plain.loss, rel=1e-6)
    assert never.loss != pytest.approx(plain.loss, rel=1e-3)


def test_counts_of_a_known_answerer():
    size = Size(25)
    ids, _ = Fixed().batch(64, size, generator_for(0, "test", size))
    wrong = int((ids[:, 1:] == 3).sum())
    model = Answerer().train()
    model.forward = lambda input_ids, use_cache, honest=model.forward: SimpleNamespace(
        logits=honest(input_ids, use_cache).logits.clamp(min=-20)
    )
    result = score(model, Fixed(), size, sequences=64)
    assert model.training
    assert (result.asked, result.correct) == (64 * 24, 64 * 24 - wrong)
    assert result.final == int((ids[:, -1] != 3).sum())
    assert result.loss * result.asked == pytest.approx(20 * wrong, rel=1e-3)
    assert (result.low, result.high) == wilson(result.accuracy * 64, 64)  # a trial is a sequence
    assert result.scaled == pytest.approx(1 - wrong / result.asked / 0.75)


def test_a_model_that_is_not_finite_is_refused():
    with pytest.raises(TitansError, match="diverged"):
        score(Answerer(), Fixed(), Size(25), sequences=8)  # minus infinity where 3 is asked


@pytest.mark.parametrize("name", ["lmm", "llama"])
def test_training_learns_and_reports(name):
    sizes, seen = parse_sizes(["4-8"]), []
    model = fresh(name, 2)
    before = score(model, make_task("parity"), Size(6))
    budget = Budget(steps=60, batch=16, learning_rate=1e-2)
    training = train_on(model, make_task("parity"), sizes, budget, progress=lambda *point: seen.append(point))
    after = score(model, make_task("parity"), Size(6))
    assert after.loss < 0.9 * before.loss
    assert not model.training
    assert (training.steps, len(seen), seen[-1][0]) == (60, 60, 1.0)
    assert 60 * 16 * 4 < training.tokens < 60 * 16 * 8
    assert [step for step, _ in training.curve] == sorted({math.ceil(k * 60 / 50) for k in range(1, 51)})
    assert training.curve[-1][1] < 0.9 * training.curve[0][1]


def record(seed, name="lmm", curriculum=False):
    """All that a model reads in training."""
    read = []

    class Recorder(type(MQAR)):
        def batch(self, *arguments):
            made = super().batch(*arguments)
            read.append(made[0])
            return made

    train_on(fresh(name), Recorder(16), parse_sizes(["16/2", "8/1"]), Budget(8, 2, curriculum=curriculum), seed)
    return read


def test_every_model_reads_the_same(same):
    same(record(3, "lmm"), record(3, "llama"))
    assert not torch.equal(torch.cat([x.flatten() for x in record(3)])[:16], record(4)[0].flatten()[:16])


def test_curriculum_takes_sizes_in_order():
    assert [x.shape[1] for x in record(0, curriculum=True)] == [16] * 4 + [8] * 4
    assert sorted({x.shape[1] for x in record(0)}) == [8, 16]


def test_test_questions_are_none_of_the_training():
    size = Size(64, 4)
    drawn = [MQAR.batch(2, size, generator_for(0, part, size))[0] for part in ("train", "validation", "test")]
    assert len({tuple(x.flatten().tolist()) for x in drawn}) == 3


def test_the_learning_rate_rises_and_falls():
    budget = Budget(steps=100, batch=1, learning_rate=2.0)
    rates = [budget.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert 0 < rates[99] < 0.002
    assert Budget(100, 1, 2.0, schedule="constant", warm_up=0).rate(77) == 2.0


def test_the_price_of_writing_comes_late():
    prices = [Objective(write_cost=0.5).price((step + 1) / 100) for step in range(100)]
    assert prices[:50] == [0.0] * 50
    assert prices[54] == pytest.approx(0.25)
    assert prices[59:] == [pytest.approx(0.5)] * 41


@pytest.mark.parametrize(("name", "smaller"), [("lmm", True), ("gated-deltanet", False)])
def test_a_price_parts_the_write_gates(name, smaller):
    """Where there are any; other models are trained as without it."""
    found = []
    for cost in (0.0, 5.0):
        model = fresh(name)
        budget = Budget(60, 4, learning_rate=1e-2, schedule="constant", write_cost=cost)
        train_on(model, MQAR, [Size(16, 2)], budget)
        with torch.no_grad(), WriteGates(model) as gates:
            model(torch.arange(16)[None])
            found.append((float(gates.spread()), [p.detach() for p in model.parameters()]))
    (free, one), (priced, other) = found
    assert priced < 0.85 * free if smaller else all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", ["lmm", "mac", "llama"])
def test_training_in_pieces(name):
    """Pieces change no loss, and end the gradients of Titans models; one as long as the sequence changes nothing."""
    size, models = Size(24, 3), [fresh(name) for _ in range(3)]
    for model, piece_length in zip(models, (None, 5, 24), strict=True):
        curve = train_on(model, MQAR, [size], Budget(1, 4, piece_length=piece_length)).curve
        models[0].loss = getattr(models[0], "loss", curve[0][1])
        assert curve[0][1] == pytest.approx(models[0].loss, rel=1e-5)
    whole, pieces, one = ([p.grad for p in model.parameters()] for model in models)
    assert all(map(torch.equal, whole, one))
    assert all(map(torch.equal, whole, pieces)) == (name == "llama")


def test_weights_decay_and_vectors_do_not():
    layer = torch.nn.Linear(3, 3)
    for p in layer.parameters():
        torch.nn.init.ones_(p)
        p.grad = torch.zeros_like(p)  # what changes is decay alone
    torch.optim.AdamW(parameter_groups(layer, 0.1), lr=0.5).step()
    assert layer.weight.flatten().tolist() == pytest.approx([0.95] * 9)
    assert layer.bias.tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["lmm", "llama"])
def test_divergence_is_named(name):
    model = fresh(name)
    with torch.no_grad():
        model.get_input_embeddings().weight[3:] = torch.inf
    with pytest.raises(Diverged, match="diverged at step 1: "):
        train_on(model, MQAR, [Size(16, 2)], Budget(5, 4))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("batch", 0),
        ("learning_rate", 0),
        ("learning_rate", math.nan),
        ("weight_decay", -1),
        ("clip", math.inf),
        ("warm_up", 1),
        ("write_cost", -1),
        ("write_cost", math.nan),
        ("piece_length", 0),
        ("schedule", "linear"),
    ],
)
def test_budgets_that_do_not_work(field, value):
    with pytest.raises(TitansError, match=f"{field} is .*, expected"):
        Budget(**{"steps": 1, "batch": 1, field: value})


def test_a_vocabulary_that_is_too_small():
    with pytest.raises(TitansError, match="the model has 8 tokens and mqar 16"):
        train_on(fresh("lmm", 8), MQAR, [Size(16, 2)], Budget(1, 1))


def test_result_saves_numbers_and_plot(tmp_path):
    result = train_and_score(
        lambda seed: fresh("lmm", seed=seed),
        MQAR,
        [Size(16, 2)],
        [Size(16, 2), Size(48, 4)],
        Budget(3, 2),
        seeds=(1, 2),
        name="tiny",
        sequences=4,
    )
    result.save(tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "synthetic.json").read_text())
    assert [run["seed"] for run in saved["runs"]] == [1, 2]
    first = result.runs[0].scores[1]
    assert saved["runs"][0]["scores"][1]["accuracy"] == first.accuracy == first.correct / 16
    assert saved["runs"][0]["training"]["tokens"] == 3 * 2 * 16
    assert saved["parameters"] == fresh("lmm").num_parameters()
    assert result.mean("48/4") == (first.accuracy + result.runs[1].scores[1].accuracy) / 2
    assert (tmp_path / "new" / "synthetic.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["synthetic.json", "synthetic.png"]
    assert result.runs[0].training.curve != result.runs[1].training.curve


def test_seeds_must_differ():
    with pytest.raises(TitansError, match="expected different numbers"):
        train_and_score(lambda seed: None, MQAR, [Size(16, 2)], [Size(16, 2)], Budget(1, 1), seeds=(1, 1))


class TestModelZoo:
    def test_the_seed_decides_the_model_and_nothing_else(self, same):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first, second, other = (fresh("mac", seed=seed).state_dict() for seed in (1, 1, 2))
        assert torch.equal(torch.rand(3), expected)
        same(dict(first), dict(second))
        assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])

    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("name", MODELS)
    def test_embeddings_are_not_counted(self, name, tied):
        counts = {model_zoo.count({**MODELS[name], "tie_word_embeddings": tied}, size) for size in (16, 1000)}
        model = fresh(name, tie_word_embeddings=tied)
        assert counts == {model.num_parameters() - 16 * 16 * (1 if tied else 2)}

    @pytest.mark.parametrize("name", ["lmm", "mac", "gated-deltanet"])
    def test_matched_in_size(self, name):
        fields = model_zoo.matched(MODELS[name], 16, 9000)
        assert model_zoo.count(fields, 16) == pytest.approx(9000, rel=0.003)
        assert model_zoo.matched({**MODELS[name], "intermediate_size": 5}, 16, 9000)["intermediate_size"] == 5
        with pytest.raises(TitansError, match="parameters remain without feed-forward layers, but 100 are asked for"):
            model_zoo.matched(MODELS[name], 16, 100)

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"variant": "lmn"}, "variant='lmn' is unknown"),
            ({"hiden_size": 3}, 'did you mean "model.hidden_size"'),
            ({"hidden_size": "wide"}, "expected int"),
            ({"variant": "lmm", "preset": "lmm-tiny"}, "not by several"),
            ({"model_type": "nothing"}, "does not work"),
            ({"model_type": "llama", "hiden_size": 3}, 'no "hiden_size"'),
        ],
    )
    def test_fields_that_do_not_work(self, fields, sentence):
        with pytest.raises(TitansError, match=sentence):
            model_zoo.make_model(fields, 16)
