"""The forecasting model: against a plain one written out here, and what it promises about scale, gaps and memory."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModel
from typer.testing import CliRunner

from titans import MemoryState, TitansError, load_state, save_state
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig
from titans.persistence.fingerprint import fingerprint

L, H, C, F_, S = 11, 3, 3, 2, 2  # look-back, horizon, channels, covariates of both kinds
SIZES = {
    "context_length": L,
    "horizon": H,
    "num_channels": C,
    "patch_length": 4,
    "patch_stride": 3,  # four patches, of which the first begins two steps before the window
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "sliding_window": 5,
    "segment_length": 3,
    "num_persistent_tokens": 2,
    "memory": {"chunk_size": 3},
}
LAYOUTS = {
    "independent": {},
    "mixed": {"channel_mixing": True},
    "variate": {"tokens": "variate"},
}
VARIANTS = ("lmm", "mac", "mag", "mal", "swa", "none", "gated-deltanet")
EXTRAS = {"num_future_covariates": F_, "num_static_covariates": S, "quantiles": [0.1, 0.5, 0.7]}


@pytest.fixture(scope="module")
def make(make_forecasting):
    """Make a forecasting model with random parameters: `make(layout, variant, dtype, **fields)`."""
    return make_forecasting(SIZES, LAYOUTS, 0.4)


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture(
    scope="module", params=[*(("independent", v) for v in VARIANTS), ("mixed", "lmm"), ("variate", "lmm")], ids="-".join
)
def kind(request):
    return request.param


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def window(batch=2, seed=0, channels=C):
    """Series that differ in level and scale, `[B, L, C]`."""
    level = torch.arange(1, channels + 1, dtype=torch.float64)
    return normal(batch, L, channels, seed=seed) * level + 3 * level


def covariates(batch=2, seed=5):
    return {
        "future_covariates": normal(batch, L + H, F_, seed=seed),
        "static_covariates": normal(batch, S, seed=seed + 1),
    }


def gaps(batch=2, seed=3, density=0.6, channels=C):
    return torch.rand(batch, L, channels, generator=torch.Generator().manual_seed(seed)) < density


# The plain model -------------------------------------------------------------------------------------------


def rms_norm(x, layer):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.weight


def run_blocks(model, tokens, visible):
    """Blocks over one sequence `[N, D]`; mixers see the visible tokens alone, and give nothing to the others."""
    x = tokens
    for block in model.layers:
        for mixer, norm in zip(block.mixers, block.mixer_norms, strict=True):
            y = torch.zeros_like(x)
            if visible:
                y[visible] = mixer(rms_norm(x[visible], norm).unsqueeze(0))[0][0]
            x = x + y
        y, mlp = rms_norm(x, block.feed_forward_norm), block.feed_forward
        x = x + (F.silu(y @ mlp.gate_proj.weight.T) * (y @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    return rms_norm(x, model.norm)


def patch(values, i, count, length, stride):
    """The i-th patch of a list of numbers, the last of which ends the last patch; 0 before the first."""
    end = len(values) - (count - 1 - i) * stride
    return [values[t] if t >= 0 else 0.0 for t in range(end - length, end)]


@torch.no_grad()
def plain(model, past, observed=None, future_covariates=None, static_covariates=None):
    """Forecast `[B, H, C, Q]`, one series, one token and one step at a time."""
    config = model.config
    observed = torch.ones_like(past, dtype=torch.bool) if observed is None else observed
    levels = len(config.quantiles or [0.5])
    out = torch.empty(len(past), config.horizon, past.shape[2], levels, dtype=past.dtype)
    for b in range(len(past)):
        z, means, scales = [], [], []
        for c in range(past.shape[2]):
            there = past[b, observed[b, :, c], c]
            mean = there.mean() if len(there) else torch.tensor(0.0, dtype=past.dtype)
            variance = ((there - mean) ** 2).mean() if len(there) else torch.tensor(0.0, dtype=past.dtype)
            scale = (variance + 1e-5).sqrt()
            if not config.normalize:
                mean, scale = torch.zeros_like(mean), torch.ones_like(scale)
            seen = [(past[b, t, c] - mean) / scale if observed[b, t, c] else 0.0 for t in range(past.shape[1])]
            z.append([float(value) for value in seen])
            means.append(mean)
            scales.append(scale)
        known = None if future_covariates is None else future_covariates[b]
        static = None if static_covariates is None else static_covariates[b]
        y = plain_normalised(model, z, observed[b].T.tolist(), known, static)  # [C, H, Q]
        for c in range(past.shape[2]):
            out[b, :, c] = y[c] * scales[c] + means[c]
    return out


def plain_normalised(model, z, there, known, static):
    """What one normalised series, a list of lists of numbers, is forecast to be: `[C, H, Q]`."""
    config, channels = model.config, len(z)
    levels, h = len(config.quantiles or [0.5]), config.horizon
    count, length, stride = config.num_tokens, config.patch_length, config.patch_stride
    groups = [list(range(channels))] if config.channel_mixing else [[c] for c in range(channels)]
    past_known = [] if known is None else known[: config.context_length].T.tolist()
    y = torch.empty(channels, h, levels, dtype=torch.float64)
    for group in groups:
        if config.tokens == "variate":
            contents = [z[c] for c in group]
            seen = [any(there[c]) for c in group]
            beside = [[x for one in past_known for x in one]] * len(group)
        else:
            contents = [[x for c in group for x in patch(z[c], i, count, length, stride)] for i in range(count)]
            seen = [any(any(patch(there[c], i, count, length, stride)) for c in group) for i in range(count)]
            beside = [[x for one in past_known for x in patch(one, i, count, length, stride)] for i in range(count)]
        tokens = torch.tensor(contents, dtype=torch.float64) @ model.embed.weight.T + model.embed.bias
        if known is not None:
            tokens = tokens + torch.tensor(beside, dtype=torch.float64) @ model.embed_covariates.weight.T
        if static is not None:
            tokens = tokens + model.embed_static.weight @ static
        hidden = run_blocks(model, tokens, [i for i, one in enumerate(seen) if one])
        for place, c in enumerate(group):
            own = hidden[place] if config.tokens == "variate" else hidden.flatten()
            index = 0 if config.tokens == "variate" else place
            rows = slice(index * h * levels, (index + 1) * h * levels)
            head = (model.head.weight[rows] @ own + model.head.bias[rows]).view(h, levels)
            straight = model.linear.weight @ torch.tensor(z[c], dtype=torch.float64) + model.linear.bias
            y[c] = head + straight.unsqueeze(1)
            if known is not None:
                summary = hidden[place] if config.tokens == "variate" else hidden.mean(0)
                effects = model.covariate_effects(summary).view(-1, levels, config.hidden_size)[index]
                for step in range(h):
                    features = F.gelu(model.covariate_features(known[config.context_length + step]))
                    y[c, step] += effects @ features
    return y.sort(-1).values


def test_equals_the_plain_model(make, kind, close):
    model, past = make(*kind, num_hidden_layers=2), window()
    out = model(past)
    close(out.prediction, plain(model, past)[..., 0], 1e-11)
    assert out.quantiles is None
    assert out.loss is None


def test_equals_the_plain_model_with_everything(make, layout, variant, close):
    """Covariates, quantiles, and gaps, by which some channels of some windows have no value at all."""
    model, past, extras = make(layout, variant, **EXTRAS), window(3), covariates(3)
    observed = gaps(3)
    observed[0, :, 1] = False
    observed[1, :5] = False  # a short history
    observed[2] = False
    out = model(past, observed=observed, **extras)
    close(out.quantiles, plain(model, past, observed, **extras), 1e-11)
    close(out.prediction, out.quantiles[..., 1], 0.0)
    model = make(layout, variant, **EXTRAS, normalize=False)
    close(model(past, observed=observed, **extras).quantiles, plain(model, past, observed, **extras), 1e-11)


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (4, 4), (11, 5), (5, 1), (7, 3)])
def test_patches(make, layout, length, stride, close):
    model, past = make(layout, patch_length=length, patch_stride=stride), window()
    close(model(past).prediction, plain(model, past)[..., 0], 1e-11)


# Scale -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(7.0, -50.0), (0.01, 1e4), (100.0, 0.3)])
def test_the_norm_is_reversible(make, layout, close, a, b):
    model, past = make(layout, **EXTRAS), 1e4 * window()  # beside which the norm's 1e-5 is nothing
    extras = covariates()
    expected = model(past, **extras).quantiles
    close(model(a * past + b, **extras).quantiles, a * expected + b, 1e-8)
    other = make(layout, **EXTRAS, normalize=False)
    past = window()
    assert (other(past + 5, **extras).quantiles - other(past, **extras).quantiles - 5).abs().max() > 0.1


def test_channels_are_normalised_apart(make, layout, close):
    model, past = make(layout), 1e4 * window()
    a, b = torch.tensor([3.0, 0.5, 20.0]).double(), torch.tensor([-1e4, 0.0, 7e5]).double()
    close(model(a * past + b).prediction, a * model(past).prediction + b, 1e-8)


def test_constant_channels(make, layout, close):
    """What is forecast lies within the norm's 0.003 around the level, and does so for every level alike."""
    model, past = make(layout), window()
    past[:, :, 1] = 0.0
    zero = model(past).prediction[..., 1]
    past[:, :, 1] = 1.0
    inner = (model(past).prediction[..., 1] - 1) / 1e-5**0.5
    assert zero.abs().max() < 0.0032 * inner.abs().max().clamp(max=100)
    for level in (1.0, -7.0, 1e6):
        past[:, :, 1] = level
        close(model(past).prediction[..., 1] - level, zero, 1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("level", [0.1, 12_345.678, 1e15])
def test_constant_and_nearly_constant_channels_in_float32(make, layout, level, masked):
    model = make(layout, dtype=torch.float32)
    past = torch.full((1, L, C), level)
    past[:, 4, 2] = torch.nextafter(past[:, 4, 2], torch.tensor(torch.inf))
    found = model(past, observed=torch.ones_like(past, dtype=torch.bool) if masked else None).prediction
    assert found.isfinite().all()
    assert (found - level).abs().max() < 0.3 + 1e-5 * abs(level)


@pytest.mark.parametrize("scale", [1e8, 1e17, 1e-8])
def test_large_and_small_numbers_in_float32(make, layout, scale):
    model, past = make(layout, dtype=torch.float32), window().float()
    found = model(past * scale).prediction
    assert found.isfinite().all()
    if scale > 1:
        torch.testing.assert_close(found / scale, model(past * 1e3).prediction / 1e3, rtol=1e-3, atol=1e-3)
    else:  # such numbers count as constants
        still = model(torch.zeros_like(past)).prediction
        torch.testing.assert_close(found, still, rtol=1e-3, atol=1e-6)
    future = found.detach() + scale
    loss = model(past * scale, future).loss
    assert loss.isfinite() == (scale < 1e18)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, 1e25])
@pytest.mark.parametrize("normalize", [True, False])
def test_observed_values_that_are_no_numbers(make, layout, value, normalize):
    model, past = make(layout, dtype=torch.float32, normalize=normalize), window().float()
    past[1, 2, 0] = value
    if value == 1e25 and not normalize:
        assert model(past).prediction.isfinite().all()
        return
    with pytest.raises(ValueError, match="past_values holds NaN, infinity or numbers too large to be squared"):
        model(past)
    observed = torch.ones_like(past, dtype=torch.bool)
    with pytest.raises(ValueError, match="past_values holds"):
        model(past, observed=observed)
    observed[1, 2, 0] = False
    assert model(past, observed=observed).prediction.isfinite().all()


def test_number_types(make, layout, close):
    """The norm computes in float32 or finer, whatever comes in and whatever the model is."""
    past, extras = window().round(), covariates()
    double = make(layout, **EXTRAS)
    expected = double(past, **extras).quantiles
    for dtype in (torch.int64, torch.int16, torch.float32, torch.bfloat16):
        close(double(past.to(dtype), **extras).quantiles, expected, 1e-5)
    single = make(layout, dtype=torch.float32, **EXTRAS)
    out = single(past + 1e9, past[:, :H], **extras)
    assert out.quantiles.dtype == torch.float64  # as the values: in float32, 1e9 has no units
    close(out.quantiles - 1e9, expected, 1e-2)
    out.loss.backward()
    coarse = single(past.float(), past[:, :H], **extras)  # float64 futures
    assert coarse.prediction.dtype == torch.float32
    coarse.loss.backward()
    half = make(layout, dtype=torch.bfloat16, **EXTRAS)
    out = half(past.float() + 1e4, **extras)
    assert out.quantiles.dtype == torch.float32
    assert (out.quantiles - 1e4 - expected).abs().max() < 0.2 * expected.abs().max()


# Missing values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [torch.nan, 1e30])
def test_what_stands_at_missing_values_does_not_matter(make, kind, same, garbage):
    model, past, observed = make(*kind), window(), gaps()
    observed[0, :, 0] = False
    names = [name for name, _ in model.named_parameters()]

    def run(fill):
        values = torch.where(observed, past, fill).requires_grad_()
        out = model(values, window(seed=9)[:, :H], observed=observed, use_cache=True)
        gradients = torch.autograd.grad(out.loss, [values, *model.parameters()])
        return out.prediction, out.cache, dict(zip(["past", *names], gradients, strict=True))

    expected = run(0.0)
    same(run(garbage), expected)
    assert all(x.isfinite().all() for x in expected[2].values())
    assert (expected[2]["past"][~observed] == 0).all()
    assert (expected[2]["past"][1][observed[1]] != 0).all()


def test_all_observed_is_as_none_given(make, kind, close):
    _, variant = kind
    model, past = make(*kind), window()
    every = torch.ones_like(past, dtype=torch.bool)
    out, expected = model(past, observed=every), model(past)
    close(out.prediction, expected.prediction, 1e-11)
    if variant != "none":
        close(out.cache.layers, expected.cache.layers, 1e-10)


def test_a_gap_is_no_value(make, layout):
    """A gap is neither read as a 0 nor as the mean: it changes the norm and, where a token is empty, the reading."""
    model, past = make(layout), window()
    observed = torch.ones_like(past, dtype=torch.bool)
    observed[:, :6, 0] = False
    found = model(past, observed=observed).prediction[..., 0]
    for fill in (0.0, float(past[0, 6:, 0].mean())):
        filled = torch.where(observed, past, fill)
        assert (model(filled).prediction[..., 0] - found).abs().max() > 1e-3


def test_a_channel_without_values(make, close):
    """Its forecast is that of nothing, within the norm's 0.003; other channels do not notice it."""
    model, past = make(), window()
    observed = torch.ones_like(past, dtype=torch.bool)
    observed[:, :, 2] = False
    found = model(past, observed=observed).prediction
    inner = plain_normalised(model, [[0.0] * L] * C, [[False] * L] * C, None, None)
    close(found[..., 2], 1e-5**0.5 * inner[2, :, 0].expand(2, H), 1e-11)
    close(found[..., :2], model(past[..., :2]).prediction, 1e-11)


def test_nothing_observed_leaves_the_memory_as_it_was(make, variant, same):
    if variant == "none":
        pytest.skip("no memory")
    model, past = make("independent", variant), window()
    before = model(past).cache
    after = model(past, observed=torch.zeros_like(past, dtype=torch.bool), cache=before).cache
    same(_memories(after), _memories(before))


def _memories(state):
    """Its floating-point tensors; counters may be one for all rows or one for each."""
    return [x for x in state.tensors() if x.is_floating_point()]


# Rows and channels -----------------------------------------------------------------------------------------


def test_rows_are_independent(make, kind, close):
    model, past, extras, observed = make(*kind, **EXTRAS), window(3), covariates(3), gaps(3)
    out = model(past, observed=observed, **extras)
    changed = past.clone()
    changed[1:] = -5 * changed[1:] + 70
    others = {name: torch.cat([x[:1], 3 - x[1:]]) for name, x in extras.items()}
    found = model(changed, observed=torch.cat([observed[:1], ~observed[1:]]), **others).quantiles
    close(found[0], out.quantiles[0], 1e-12)  # not equal to the bit: without padding mixers calculate otherwise
    assert not torch.equal(found[1], out.quantiles[1])
    for row in range(3):
        here = slice(row, row + 1)
        own = model(past[here], observed=observed[here], **{name: x[here] for name, x in extras.items()})
        close(own.quantiles, out.quantiles[here], 1e-11)
        rows = len(next(own.cache.tensors(), ()))
        if rows:
            close(_memories(own.cache), _memories(out.cache.select(rows * row + torch.arange(rows))), 1e-10)


def test_channels_are_independent(make, variant, close, same):
    model, past, observed = make("independent", variant), window(channels=5), gaps(channels=5)
    found = model(past, observed=observed).prediction  # of any number of channels
    order = torch.tensor([3, 0, 4, 2, 1])
    close(model(past[..., order], observed=observed[..., order]).prediction, found[..., order], 1e-11)
    for c in range(5):
        close(model(past[..., [c]], observed=observed[..., [c]]).prediction, found[..., [c]], 1e-11)
    past[..., 1:] *= -3
    same(model(past, observed=observed).prediction[..., 0], found[..., 0])


@pytest.mark.parametrize("layout", ["mixed", "variate"])
def test_channels_mix(make, layout, variant):
    model, past = make(layout, variant), window()
    found = model(past).prediction
    changed = past.clone()
    changed[:, 5, 0] += 4
    effect = (model(changed).prediction - found).abs().amax((0, 1))  # of the first channel on each
    alone = layout == "variate" and variant == "none"  # which has nothing that mixes tokens
    assert ((effect > 1e-4) == torch.tensor([True, not alone, not alone])).all()
    if layout == "variate":  # later channels do not matter to earlier ones
        changed = past.clone()
        changed[:, 5, 2] += 4
        assert torch.equal(model(changed).prediction[..., :2], found[..., :2])


# Covariates ------------------------------------------------------------------------------------------------


def test_covariates_of_a_step_act_on_that_step(make, kind):
    model, past, extras = make(*kind, **EXTRAS), window(), covariates()
    found = model(past, **extras).quantiles
    for step in range(H):
        known = extras["future_covariates"].clone()
        known[:, L + step, 1] += 1
        changed = model(past, **{**extras, "future_covariates": known}).quantiles
        differs = (changed != found).flatten(2).any(-1)
        assert differs.tolist() == [[i == step for i in range(H)]] * 2


@pytest.mark.parametrize("step", [0, 5, L - 1])
def test_covariates_of_the_window_and_of_the_series_act(make, layout, step):
    model, past, extras = make(layout, **EXTRAS), window(), covariates()
    found = model(past, **extras).quantiles
    known = extras["future_covariates"].clone()
    known[0, step, 0] += 1
    changed = model(past, **{**extras, "future_covariates": known}).quantiles
    assert (changed[0] != found[0]).all()
    assert torch.equal(changed[1], found[1])
    static = extras["static_covariates"].clone()
    static[1, 1] += 1
    changed = model(past, **{**extras, "static_covariates": static}).quantiles
    assert (changed[1] != found[1]).all()
    assert torch.equal(changed[0], found[0])


@pytest.mark.parametrize("name", ["future_covariates", "static_covariates"])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_covariates_that_are_no_numbers(make, name, value):
    extras = covariates()
    extras[name][1, -1, ...] = value
    with pytest.raises(ValueError, match=f"{name} holds NaN or infinity: fill in what is not known"):
        make(**EXTRAS)(window(), **extras)


# Losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "formula"), [
    ("mse", lambda e: e**2),
    ("mae", abs),
    ("huber", lambda e: 0.5 * e**2 if abs(e) < 1 else abs(e) - 0.5),
])  # fmt: skip
def test_losses(make, loss, formula, close):
    model, past = make(loss=loss), window()
    future = model(past).prediction.detach() + 2 * normal(2, H, C, seed=4)
    out = model(past, future)
    errors = (future - out.prediction).flatten().tolist()
    close(out.loss, torch.tensor(sum(map(formula, errors)) / len(errors), dtype=torch.float64), 1e-12)
    assert any(abs(e) < 1 for e in errors)
    assert any(abs(e) > 1 for e in errors)
    close(model(past).prediction, out.prediction, 0.0)


@pytest.mark.parametrize("fields", [{}, {"loss": "huber"}, {"quantiles": [0.2, 0.5]}])
def test_missing_futures_do_not_count(make, fields, close):
    model, past, future = make(**fields), window(), window(seed=1)[:, :H]
    future[1, 1:, 0] = torch.nan
    future[0, :, 2] = torch.nan
    model.zero_grad()
    loss = model(past, future).loss
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    prediction = model(past).prediction.detach()
    each = [model(past[b : b + 1, :, [c]], future[b : b + 1, :, [c]]) for b in range(2) for c in range(C)]
    counts = (~future.isnan()).sum(1).flatten()
    close(loss, sum(one.loss * n for one, n in zip(each, counts, strict=True)) / counts.sum(), 1e-11)
    if not fields:
        close(loss, (future - prediction).square().nanmean(), 1e-11)
    assert model(past, torch.full_like(future, torch.nan)).loss.item() == 0


def test_the_pinball_loss(make, layout, close):
    levels = [0.05, 0.3, 0.5, 0.95]
    model, past, future = make(layout, quantiles=levels), window(), window(seed=1)[:, :H]
    out = model(past, future)
    total, count = 0.0, 0
    for q, level in enumerate(levels):
        for y, found in zip(future.flatten().tolist(), out.quantiles[..., q].flatten().tolist(), strict=True):
            total += level * (y - found) if y >= found else (1 - level) * (found - y)
            count += 1
    expected = torch.tensor(2 * total / count, dtype=torch.float64)  # twice: at level 0.5 the mean absolute error
    close(out.loss, expected, 1e-12)
    close(out.prediction, out.quantiles[..., 2], 0.0)
    alone = make(layout, quantiles=[0.5])(past, future)
    close(alone.loss, (alone.prediction - future).abs().mean(), 1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_quantiles_never_cross(make, layout, seed):
    model = make(layout, quantiles=[0.01, 0.2, 0.5, 0.8, 0.99])
    out = model(10 * window(16, seed))
    assert (out.quantiles.diff(dim=-1) >= 0).all()
    assert (out.quantiles.diff(dim=-1) > 0).any()


def test_quantiles_are_calibrated():
    """Of noise around a level that the window shows, the levels hold what they say."""
    torch.manual_seed(0)
    config = {**SIZES, "context_length": 4, "horizon": 1, "num_hidden_layers": 1, "num_channels": 1}
    model = TitansForForecasting(
        TitansForecastingConfig(**config, variant="none", quantiles=[0.1, 0.5, 0.8], normalize=False)
    )
    level = torch.randn(2000, 1, 1)
    past, future = level.expand(-1, 4, -1), level + torch.randn(2000, 1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        loss = model(past[:1000], future[:1000]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    below = (future[1000:, ..., None] <= model.forecast(past[1000:]).quantiles).float().mean((0, 1, 2))
    torch.testing.assert_close(below, torch.tensor([0.1, 0.5, 0.8]), rtol=0, atol=0.06)


def test_every_parameter_gets_a_gradient(make, kind):
    model = make(*kind, **EXTRAS).train()
    model.zero_grad()
    extras = covariates(4)
    out = model(window(4), window(4, seed=2)[:, :H], gaps(4, density=0.9), **extras)
    assert out.cache is None  # in training
    out.loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert (p.grad != 0).any(), name


def test_gradients_are_those_of_finite_differences(make, layout):
    model, extras, observed = make(layout, **EXTRAS), covariates(1), gaps(1)
    past, future = window(1), window(1, seed=2)[:, :H]
    inputs = [x.requires_grad_() for x in (past, *extras.values())]
    model(past, future, observed, *inputs[1:]).loss.backward()
    for x in inputs:
        direction = normal(*x.shape, seed=8)
        if x is past:
            direction = direction * observed
        found = []
        for sign in (1, -1):
            moved = [y + sign * 1e-6 * direction if y is x else y for y in inputs]
            with torch.no_grad():
                found.append(model(moved[0], future, observed, *moved[1:]).loss)
        expected = (found[0] - found[1]) / 2e-6
        torch.testing.assert_close((x.grad * direction).sum(), expected, rtol=1e-4, atol=1e-6)


def test_gradient_checkpointing_changes_no_gradient(make, variant, close):
    model = copy.deepcopy(make("independent", variant)).train()

    def gradients():
        model.zero_grad()
        model(window(), window(seed=2)[:, :H], gaps()).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = gradients()
    model.activation_checkpointing_enable()
    close(gradients(), expected, 1e-11)


# Modes -----------------------------------------------------------------------------------------------------


def test_forecast_is_forward_in_evaluation(make, layout, same):
    model, past = make(layout, dropout=0.4), window()
    expected = model(past)
    model.train()
    model.layers[0].eval()  # as of one that is frozen
    modes = {name: module.training for name, module in model.named_modules()}
    assert len(set(modes.values())) == 2
    same(model.forecast(past).prediction, expected.prediction)
    assert not model.forecast(past, future_values=past[:, :H]).loss.requires_grad
    with pytest.raises(ValueError, match="past_values has shape"):
        model.forecast(past[0])
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_dropout(make, layout):
    model, past = make(layout, dropout=0.4), window()
    assert torch.equal(model(past).prediction, model(past).prediction)
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(past).prediction, model(past).prediction)
    model.dropout.eval()
    assert torch.equal(model(past).prediction, model(past).prediction)  # and no other


# Cache -----------------------------------------------------------------------------------------------------


def test_windows_read_one_after_the_other(make, kind, same, close):
    """The second window goes on where the first ended: as its blocks do, whatever lies between."""
    _, variant = kind
    model, first, second = make(*kind), window(), window(seed=1)
    before = model(first).cache
    assert isinstance(before, MemoryState)
    kept = before.clone()
    out = model(second, cache=before)
    same(before.layers, kept.layers)
    assert before.tokens == kept.tokens == model.config.num_tokens
    assert out.cache.tokens == 2 * model.config.num_tokens
    fresh = model(second)
    start = model.initial_state(len(next(before.tensors(), second)))
    close(model(second, cache=start).prediction, fresh.prediction, 1e-12)
    if variant == "none":
        assert torch.equal(out.prediction, fresh.prediction)
        return
    assert (out.prediction - fresh.prediction).abs().max() > 1e-6
    for other in (before, fresh.cache):
        assert any(not torch.equal(a, b) for a, b in zip(_memories(out.cache), _memories(other), strict=True))
    # The blocks read both windows' tokens as one sequence.
    with torch.no_grad():
        tokens = [model(x, output_hidden_states=True).hidden_states[0] for x in (first, second)]
        hidden, state, _ = model.read(torch.cat(tokens, 1), None, None, True)
        seen = model(second, cache=before, output_hidden_states=True)
    close(seen.hidden_states[-1], hidden[:, model.config.num_tokens :], 1e-9)
    close(seen.prediction, out.prediction, 1e-12)
    close(_memories(out.cache), _memories(state), 1e-9)


def test_use_cache(make):
    model, past = make(), window()
    assert model(past).cache is not None
    assert model(past, use_cache=False).cache is None
    assert copy.deepcopy(model).train()(past).cache is None
    assert copy.deepcopy(model).train()(past, use_cache=True).cache is not None
    assert make(use_cache=False)(past).cache is None
    assert torch.equal(model(past, use_cache=False).prediction, model(past).prediction)


@pytest.mark.parametrize("batch", [1, 3, 4])  # 4 is twice 2, and rows must not be repeated as those of beams are
def test_caches_of_other_series(make, layout, batch):
    model = make(layout)
    cache = model(window(2)).cache
    with pytest.raises(ValueError, match=r"the cache holds \d memories and the window \d+ (channels of )?series: pass"):
        model(window(batch), cache=cache)


def test_other_caches(make, same):
    model, past = make(), window()
    with pytest.raises(ValueError, match="the state is a list: expected a MemoryState"):
        model(past, cache=[])
    for other in (make(num_hidden_layers=2), make(variant="swa"), make(hidden_size=16)):
        with pytest.raises(ValueError, match=r"another configuration|expected a NeuralMemoryState"):
            model(past, cache=other(past).cache)
    with pytest.raises(ValueError, match="the cache holds 6 memories and the window 4 channels"):
        model(window(channels=2), cache=model(past).cache)


# Saving and loading ----------------------------------------------------------------------------------------


def test_save_and_load(make, kind, tmp_path, close, same):
    model, past, extras = make(*kind, **EXTRAS), window(), covariates()
    model.save_pretrained(tmp_path)
    expected = model(past, **extras)
    for kind in (TitansForForecasting, AutoModel):
        other = kind.from_pretrained(tmp_path, dtype=torch.float64).eval()
        assert type(other) is TitansForForecasting
        same(dict(other.state_dict()), dict(model.state_dict()))
        close(other(past, **extras).prediction, expected.prediction, 1e-11)
        assert fingerprint(other) == fingerprint(model)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is TitansForecastingConfig
    assert {name: getattr(config, name) for name in config.hints()} == {
        name: getattr(model.config, name) for name in config.hints()
    }


def test_every_parameter_is_initialised_when_none_is_saved(kind, tmp_path):
    layout, variant = kind
    torch.manual_seed(0)
    config = TitansForecastingConfig(**{**SIZES, **LAYOUTS[layout], "variant": variant, **EXTRAS})
    fresh = TitansForForecasting(config)
    fresh.save_pretrained(tmp_path, state_dict={"linear.bias": fresh.linear.bias.detach().clone()})
    torch.manual_seed(1)
    loaded = TitansForForecasting.from_pretrained(tmp_path)
    for (name, p), q in zip(loaded.named_parameters(), fresh.parameters(), strict=True):
        assert p.isfinite().all(), name
        assert torch.equal(p, q) if q.numel() == 1 or q.std() == 0 else 0.3 < p.std() / q.std() < 3, name


def test_fingerprints_tell_models_apart(make):
    model = copy.deepcopy(make())
    before = fingerprint(model)
    assert fingerprint(make()) == before
    assert fingerprint(make(horizon=4)) != before
    with torch.no_grad():
        model.embed.bias.add_(1)
    assert fingerprint(model) != before


def test_states_are_saved(make, variant, tmp_path, close):
    if variant == "none":
        pytest.skip("no state")
    model, past, path = make("independent", variant), window(), tmp_path / "state"
    state = model(past).cache
    save_state(state, path)
    loaded = load_state(path, model)
    close(model(past, cache=loaded).prediction, model(past, cache=state).prediction, 1e-12)
    other = make("independent", variant, loss="mae")
    with pytest.raises(TitansError, match=r"another configuration \(loss\)"):
        load_state(path, other)


def test_info_of_a_folder(make, tmp_path):
    """Whether it tells about the model or that it cannot, it does not fall over."""
    from titans.cli import app

    make(dtype=torch.float32).save_pretrained(tmp_path)
    result = CliRunner().invoke(app, ["info", str(tmp_path)])
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit | TitansError)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "message"), [
    ({"past_values": torch.zeros(2, L)}, "past_values has shape (2, 11): expected [batch, 11, channels]"),
    ({"past_values": torch.zeros(2, L - 1, C)}, "past_values has shape (2, 10, 3): expected [batch, 11, channels]"),
    ({"past_values": torch.zeros(0, L, C)}, "past_values has shape (0, 11, 3): expected"),
    ({"past_values": torch.zeros(2, L, 0)}, "past_values has shape (2, 11, 0): expected"),
    ({"future_values": torch.zeros(2, H + 1, C)}, "future_values has shape (2, 4, 3): expected [2, 3, 3]"),
    ({"future_values": torch.zeros(1, H, C)}, "future_values has shape (1, 3, 3): expected [2, 3, 3]"),
    ({"future_values": torch.zeros(2, H, 1)}, "future_values has shape (2, 3, 1): expected [2, 3, 3]"),
    ({"observed": torch.ones(2, L).bool()}, "observed has shape (2, 11): expected [2, 11, 3]"),
    ({"observed": torch.ones(2, L, 1).bool()}, "observed has shape (2, 11, 1): expected [2, 11, 3]"),
    ({"observed": torch.ones(2, L, C)}, "observed is torch.float32: expected torch.bool"),
    ({"future_covariates": None}, "future_covariates has shape None: expected [2, 14, 2]"),
    ({"future_covariates": torch.zeros(2, H, F_)}, "future_covariates has shape (2, 3, 2): expected [2, 14, 2]"),
    ({"future_covariates": torch.zeros(2, L + H, 1)}, "future_covariates has shape (2, 14, 1): expected [2, 14, 2]"),
    ({"static_covariates": None}, "static_covariates has shape None: expected [2, 2]"),
    ({"static_covariates": torch.zeros(1, S)}, "static_covariates has shape (1, 2): expected [2, 2]"),
    ({"static_covariates": torch.zeros(2, S + 1)}, "static_covariates has shape (2, 3): expected [2, 2]"),
])  # fmt: skip
def test_shapes_that_do_not_fit(make, layout, change, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        make(layout, **EXTRAS)(**{"past_values": window(), **covariates(), **change})


def test_covariates_and_channels_that_the_model_does_not_know(make, layout):
    model = make(layout)
    for name, x in covariates().items():
        shape = re.escape(str(tuple(x.shape)))
        with pytest.raises(ValueError, match=f"{name} has shape {shape}: expected none"):
            model(window(), **{name: x})
    if layout != "independent":
        with pytest.raises(ValueError, match="past_values holds 2 channels: this model mixes 3"):
            model(window(channels=2))
