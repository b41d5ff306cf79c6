import copy
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from titans.errors import TitansError
from titans.evaluation.forecasting import score_forecasts
from titans.evaluation.forecasting_models import DLinear
from titans.forecasting.training import fit_windows
from titans.forecasting.windows import Windows

GENERATOR = torch.Generator().manual_seed(0)
TIME = torch.arange(400)[:, None]
SERIES = torch.sin(TIME * 2 * torch.pi / torch.tensor([8, 12])) + 0.1 * torch.randn(400, 2, generator=GENERATOR)
TRAIN, VALIDATION = Windows(SERIES[:300], 24, 6), Windows(SERIES[276:], 24, 6)


def dlinear(seed=0):
    torch.manual_seed(seed)
    return DLinear(24, 6, 5)


def by(loss):
    """A step with some loss."""

    def step(model, past, future):
        prediction = model(past)
        return prediction, loss(prediction, future)

    return step


def train(seed=0, **options):
    model = dlinear()
    settings = {"epochs": 3, "learning_rate": 0.01, **options}
    return model, fit_windows(model, TRAIN, VALIDATION, seed=seed, **settings)


def test_learns_and_reports_what_it_left():
    before = score_forecasts(dlinear(), VALIDATION).mse
    model, history = train(epochs=8, decay="cosine")
    assert history.validation_mse == score_forecasts(model, VALIDATION).mse < 0.1 * before
    assert history.epochs[-1].training_loss < history.epochs[0].training_loss
    assert history.stopped == "epochs"
    assert model.training


def test_validates_without_dropout():
    model = nn.Sequential(nn.Dropout(0.5), dlinear())
    history = fit_windows(model, TRAIN, VALIDATION, epochs=2, learning_rate=0.01)
    assert history.validation_mse == pytest.approx(score_forecasts(model, VALIDATION).mse, rel=1e-6)


def test_same_seed_same_weights(same):
    with_dropout = nn.Sequential(nn.Dropout(0.2), dlinear())
    twins = [copy.deepcopy(with_dropout) for _ in range(3)]
    for twin, seed in zip(twins, (1, 1, 2), strict=True):
        torch.rand(seed)  # what was drawn before does not matter
        fit_windows(twin, TRAIN, VALIDATION, epochs=2, learning_rate=0.01, seed=seed)
    same(twins[0].state_dict(), twins[1].state_dict())
    assert not torch.equal(twins[0][1].trend.weight, twins[2][1].trend.weight)


def test_draws_nothing_from_the_generator_outside(same):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = DLinear(24, 6, 5)
    torch.manual_seed(5)
    fit_windows(model, TRAIN, VALIDATION, epochs=1)
    same(torch.rand(3), expected)


@pytest.mark.parametrize(("decay", "clip", "weight_decay"), [("halve", None, 0.0), ("cosine", 0.05, 0.3)])
def test_equals_a_loop_written_out(decay, clip, weight_decay, close):
    model, history = train(epochs=3, patience=9, decay=decay, clip=clip, weight_decay=weight_decay, batch_size=100)
    twin = dlinear()
    optimizer = torch.optim.AdamW(twin.parameters(), weight_decay=weight_decay)
    torch.manual_seed(0)
    steps = 0
    for epoch in range(3):
        for index in torch.randperm(271).split(100):
            half, cosine = 0.5**epoch, (1 + torch.cos(torch.tensor(torch.pi * steps / 9)).item()) / 2
            optimizer.param_groups[0]["lr"] = 0.01 * (half if decay == "halve" else cosine)
            past, future = TRAIN.batch(index)
            optimizer.zero_grad()
            F.mse_loss(twin(past), future).backward()
            if clip:
                nn.utils.clip_grad_norm_(twin.parameters(), clip)
            optimizer.step()
            steps += 1
    assert history.best == 3  # otherwise the comparison would be with other weights
    close(dict(model.state_dict()), dict(twin.state_dict()), 1e-6)
    if decay == "halve":
        assert [epoch.learning_rate for epoch in history.epochs] == [0.01, 0.005, 0.0025]


class Drifting(nn.Module):
    """Forecasts a number that Adam, with a constant gradient, moves away from the best one, past it."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(-0.22))

    def forward(self, past):
        return self.level.expand(len(past), 1, 1)


def test_stops_on_patience_with_the_best_weights():
    zeros = Windows(torch.zeros(10, 1), 1, 1)  # 9 windows: one step an epoch
    model = Drifting()
    history = fit_windows(
        model, zeros, zeros, step=by(lambda p, _: -p.mean()), epochs=50, learning_rate=0.1, decay="cosine", patience=2
    )
    levels = [epoch.validation_mse**0.5 for epoch in history.epochs]
    assert levels == pytest.approx([0.12, 0.02, 0.08, 0.18], abs=0.005)
    assert (history.best, history.stopped) == (2, "patience")
    assert model.level.item() == pytest.approx(-levels[1], rel=1e-6)


def test_steps_of_a_model(same):
    def step(model, past, future):
        output = model(past_values=past, future_values=future)
        return output.prediction, output.loss

    class Outputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = dlinear()

        def forward(self, past_values, future_values):
            prediction = self.net(past_values)
            return SimpleNamespace(prediction=prediction, loss=F.l1_loss(prediction, future_values))

    own = Outputs()
    history = fit_windows(own, TRAIN, VALIDATION, step=step, epochs=2, learning_rate=0.01)
    plain, expected = train(epochs=2, step=by(F.l1_loss))
    same(own.net.state_dict(), plain.state_dict())
    assert [e.validation_mse for e in history.epochs] == [e.validation_mse for e in expected.epochs]
    other, _ = train(epochs=2)
    assert not torch.equal(plain.trend.weight, other.trend.weight)


def test_ends_in_time_and_after_one_step_at_least():
    class Slow(DLinear):
        def forward(self, past):
            time.sleep(0.01)
            return super().forward(past)

    seen = []
    start = time.monotonic()
    history = fit_windows(
        Slow(24, 6, 5), TRAIN, VALIDATION, epochs=1000, seconds=0.5, progress=lambda *p: seen.append(p)
    )
    assert time.monotonic() - start < 3
    assert history.stopped == "seconds"
    assert seen[-1][0] > 0.5
    shortest = fit_windows(dlinear(), TRAIN, VALIDATION, seconds=1e-9, progress=lambda *p: seen.append(p))
    assert (len(shortest.epochs), shortest.stopped) == (1, "seconds")


def test_progress_says_how_far_it_is():
    seen = []
    train(epochs=2, batch_size=100, progress=lambda share, text: seen.append((share, text)))
    assert [share for share, _ in seen] == pytest.approx([*(step / 6 for step in range(1, 7)), 1])
    assert seen[0][1].startswith("epoch 1, validation MSE 0.")
    assert seen[-2][1].startswith("epoch 2, validation MSE 0.")


def test_leaves_no_window_out_of_an_epoch():
    class Recorder(Windows):
        def batch(self, index):
            seen.extend(index.tolist())
            return super().batch(index)

    seen = []
    fit_windows(dlinear(), Recorder(SERIES[:300], 24, 6), VALIDATION, epochs=1, batch_size=100)
    assert sorted(seen) == list(range(271))
    assert seen != sorted(seen)


def test_keeps_the_weights_it_came_with_where_training_makes_them_worse(same):
    model = dlinear()
    fit_windows(model, TRAIN, VALIDATION, epochs=8, learning_rate=0.01, decay="cosine")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = score_forecasts(model, VALIDATION).mse
    history = fit_windows(model, TRAIN, VALIDATION, step=by(lambda p, y: -F.mse_loss(p, y)), epochs=5, patience=2)
    assert (history.best, len(history.epochs), history.start_mse) == (0, 2, expected)
    same(dict(model.state_dict()), before)


def test_shorter_epochs_and_weights_that_are_not_trained():
    steps = []
    model = dlinear()
    model.trend.requires_grad_(False)
    before = model.trend.weight.clone()
    options = {"epochs": 2, "learning_rate": 0.01, "batch_size": 16, "epoch_steps": 3}
    fit_windows(model, TRAIN, VALIDATION, progress=lambda *p: steps.append(p), weight_decay=0.1, **options)
    assert len(steps) == 2 * 3 + 1  # and that it has ended
    assert torch.equal(model.trend.weight, before)


def test_refuses_a_training_that_cannot_work():
    with pytest.raises(TitansError, match=r"diverged at step 1: the loss is nan, .* lower the learning rate"):
        train(step=by(lambda prediction, _: prediction.sum() * float("nan")))
    for name in ("epochs", "batch_size", "patience", "learning_rate", "seconds"):
        with pytest.raises(TitansError, match=f"{name} is 0, expected more than 0"):
            train(**{name: 0})
    with pytest.raises(TitansError, match="decay is 'linear', expected one of halve, cosine"):
        train(decay="linear")
