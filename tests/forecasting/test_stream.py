"""Streams: what is forecast depends on what has come, however it came; the memory is that of windows read in order."""

import copy
import dataclasses

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from titans import TitansError, save_state
from titans.forecasting.stream import STREAM_FILE, ForecastStream

L, H = 6, 2
SIZES = {
    "context_length": L,
    "horizon": H,
    "patch_length": 3,
    "patch_stride": 2,
    "hidden_size": 4,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "sliding_window": 4,
    "segment_length": 3,
    "num_persistent_tokens": 1,
    "memory": {"chunk_size": 2},
}
LAYOUTS = {
    "one": {"num_channels": 1},
    "independent": {"num_channels": 3},
    "mixed": {"num_channels": 3, "channel_mixing": True},
    "variate": {"num_channels": 3, "tokens": "variate"},
}
S = 2


@pytest.fixture(scope="module")
def make(make_forecasting):
    """Make a forecasting model with random parameters: `make(layout, variant, dtype, **fields)`."""
    return make_forecasting(SIZES, LAYOUTS, 0.5)


@pytest.fixture(scope="module", params=LAYOUTS)
def model(request, make):
    return make(request.param)


def series(model, count, rows=S, seed=0, density=0.85):
    """Points `[rows, count, C]` of different levels, with gaps."""
    generator = torch.Generator().manual_seed(seed)
    shape = rows, count, model.config.num_channels
    values = torch.randn(shape, generator=generator, dtype=torch.float64) + torch.arange(1, rows + 1).view(-1, 1, 1)
    return values.where(torch.rand(shape, generator=generator) < density, torch.nan)


def fed(model, points, counts=None, **options):
    """A stream that has been given all points at once."""
    stream = ForecastStream(model, len(points), points.shape[2], **options)
    stream.update(points, counts)
    return stream


def expected(model, points, memory=True):
    """What one series `[n, C]` is forecast to be: whole windows are read in order while one more is left to look at."""
    cache, count = None, len(points)
    padded = torch.cat([points.new_full((L, points.shape[1]), torch.nan), points])
    while memory and count >= 2 * L:
        start = len(points) - count
        window = points[start : start + L].unsqueeze(0)
        cache = model.forecast(window, observed=~window.isnan(), cache=cache, use_cache=True).cache
        count -= L
    window = padded[-L:].unsqueeze(0)
    return model.forecast(window, observed=~window.isnan(), cache=cache).prediction[0]


def state_of(stream):
    """The memory, its counters one for each row."""
    state = stream.held.state
    return [torch.as_tensor(x).expand(state.rows) if isinstance(x, int) else x for x in _leaves(state)]


def _leaves(state):
    from torch.utils import _pytree as pytree

    return pytree.tree_leaves(state)


# What is forecast ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, L, 2 * L - 1, 2 * L, 3 * L - 1, 3 * L, 4 * L + 3])
def test_equals_an_explicit_loop_over_windows(model, close, count):
    points = series(model, count)
    found = fed(model, points).forecast()
    assert found.cache is None
    close(found.prediction, torch.stack([expected(model, one) for one in points]), 1e-9)
    frozen = fed(model, points, memory=False).forecast().prediction
    close(frozen, torch.stack([expected(model, one, memory=False) for one in points]), 1e-11)
    assert ((frozen - found.prediction).abs().max() > 1e-6) == (count >= 2 * L)


@pytest.mark.parametrize("variant", ["mac", "mag", "mal", "swa", "none", "gated-deltanet", "mamba"])
def test_every_variant(make, variant, close, tmp_path):
    model = make(variant=variant)
    points = series(model, 4 * L + 1)
    stream = fed(model, points)
    close(stream.forecast().prediction, torch.stack([expected(model, one) for one in points]), 1e-9)
    pieces = ForecastStream(model, S)
    for start in range(0, points.shape[1], 2):
        pieces.update(points[:, start : start + 2])
    close(pieces.forecast().prediction, stream.forecast().prediction, 1e-9)
    stream.save(tmp_path / "stream")
    loaded = ForecastStream.load(tmp_path / "stream", model)
    assert torch.equal(loaded.forecast().prediction, stream.forecast().prediction)
    assert loaded.memory == stream.memory == (variant != "none")


@settings(max_examples=3)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=5), st.integers(0, 2**16))
@example([1] * 20, 0)
@example([0, 30, 0, 1], 1)
def test_any_split_equals_the_whole(model, close, lengths, seed):
    points = series(model, sum(lengths) + 1, seed=seed)
    stream = ForecastStream(model, S)
    for piece in points.split([*lengths, 1], 1):
        stream.update(piece)
    whole = fed(model, points)
    close(stream.forecast().prediction, whole.forecast().prediction, 1e-9)
    close(state_of(stream), state_of(whole), 1e-9)
    assert torch.equal(stream.seen, whole.seen)


@settings(max_examples=3)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(0, 2**16),
)
@example([[9, 0, 1]] * 4, 0)
def test_series_of_different_lengths(model, close, counts, seed):
    """Each goes on by itself; what stands beyond a count does not matter."""
    counts = torch.tensor([[1, 1, 1], *counts])  # [updates, series]
    totals = counts.sum(0)
    points = series(model, int(totals.max()), rows=3, seed=seed)
    stream, done = ForecastStream(model, 3), torch.zeros(3, dtype=torch.long)
    for count in counts:
        piece = torch.full((3, int(count.max()), points.shape[2]), torch.inf, dtype=torch.float64)
        for row in range(3):
            piece[row, : count[row]] = points[row, done[row] : done[row] + count[row]]
        stream.update(piece, count)
        done += count
    assert torch.equal(stream.seen, totals.clamp(max=L))
    alone = [fed(model, points[row : row + 1, : totals[row]]) for row in range(3)]
    close(stream.forecast().prediction, torch.cat([one.forecast().prediction for one in alone]), 1e-9)
    close(state_of(stream), [torch.cat(parts) for parts in zip(*map(state_of, alone), strict=True)], 1e-9)
    close(fed(model, points, totals).forecast().prediction, stream.forecast().prediction, 1e-9)


def test_a_forecast_leaves_the_stream_as_it_is(model, same):
    points = series(model, 3 * L + 2)
    stream, twin = fed(model, points[:, : 2 * L + 1]), fed(model, points[:, : 2 * L + 1])
    first = stream.forecast().prediction
    same(stream.forecast().prediction, first)
    before = stream.held._replace(points=stream.held.points.clone(), state=stream.held.state.clone())
    stream.forecast()
    assert torch.equal(stream.held.points.nan_to_num(-1), before.points.nan_to_num(-1))
    same(list(stream.held.state.tensors()), list(before.state.tensors()))
    for one in (stream, twin):
        one.update(points[:, 2 * L + 1 :])
    same(stream.forecast().prediction, twin.forecast().prediction)


def test_the_points_that_are_handed_in_are_not_kept_or_changed(model, same):
    points = series(model, 2 * L + 1)
    given_in = points.clone()
    stream = fed(model, given_in)
    assert torch.equal(given_in.nan_to_num(-1), points.nan_to_num(-1))
    found = stream.forecast().prediction
    given_in.fill_(9)
    same(stream.forecast().prediction, found)


def test_old_points_matter_through_the_memory_alone(model):
    points = series(model, 4 * L, density=1)
    other = points.clone()
    other[0, : 2 * L] *= torch.linspace(-3, 3, 2 * L).double().unsqueeze(1)
    found, changed = (fed(model, x).forecast().prediction for x in (points, other))
    assert (found[0] - changed[0]).abs().max() > 1e-6
    assert torch.equal(found[1], changed[1])
    found, changed = (fed(model, x, memory=False).forecast().prediction for x in (points, other))
    assert torch.equal(found, changed)


def test_gaps_as_long_as_windows(model, close):
    points = series(model, 5 * L)
    points[:, L - 1 : 3 * L + 2] = torch.nan
    points[1, -L:] = torch.nan
    stream = ForecastStream(model, S)
    for piece in points.split(4, 1):
        stream.update(piece)
        assert stream.forecast().prediction.isfinite().all()
    close(stream.forecast().prediction, torch.stack([expected(model, one) for one in points]), 1e-9)


# What is held ----------------------------------------------------------------------------------------------


def test_bytes_do_not_grow(make):
    """But for the counters, which one number holds for all rows until there are gaps."""
    model = make()
    stream, points = ForecastStream(model, S), series(model, 200 * L)
    start, sizes = stream.nbytes, set()
    for piece in points.split(10 * L, 1):
        stream.update(piece)
        sizes.add(stream.nbytes)
        assert not any(x.requires_grad for x in stream.held.state.tensors())  # no graph
        assert stream.held.points.shape == (S, 3 * L, points.shape[2])
    assert len(sizes) == 1
    assert start <= max(sizes) < 1.05 * start
    for i in range(6):
        stream.update(series(model, L), torch.tensor([L, i % L]))
        assert stream.nbytes < 1.05 * start


def test_the_mode_does_not_matter_and_is_left(make, same):
    model = make(dropout=0.5)
    points = series(model, 3 * L)
    found = fed(model, points).forecast().prediction
    model.train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    same(fed(model, points).forecast().prediction, found)
    assert [module.training for module in model.modules()] == modes
    assert not found.requires_grad
    with torch.inference_mode():
        stream = fed(model, points[:, : L + 1])
    stream.update(points[:, L + 1 :])
    same(stream.forecast().prediction, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_number_types(make, dtype):
    """Points are kept in float32 or finer; a series of level 10,000 loses nothing."""
    model = make(dtype=dtype)
    points = series(model, 3 * L + 2)
    found = fed(model, (points + 10_000).float() if dtype == torch.float32 else points + 10_000).forecast().prediction
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = fed(make(), points).forecast().prediction
    tolerance = {torch.float32: 0.1, torch.float64: 1e-6, torch.bfloat16: 1.0}[dtype]
    assert (found - 10_000 - exact).abs().max() < tolerance
    counted = torch.arange(9 * S).view(S, 9, 1).expand(-1, -1, 3)
    assert fed(model, counted).forecast().prediction.isfinite().all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("window", [1, 2])
def test_an_interrupted_update_has_read_nothing(make, same, monkeypatch, error, window):
    model = copy.deepcopy(make())
    points = series(model, 6 * L)
    stream = fed(model, points[:, : L + 2])
    before, kept = stream.forecast().prediction, stream.held.points.nan_to_num(-1)
    calls, forecast = [], model.forecast

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == window:
            raise error
        return forecast(*args, **kwargs)

    monkeypatch.setattr(model, "forecast", interrupted)
    with pytest.raises(error):
        stream.update(points[:, L + 2 :])
    assert len(calls) == window
    monkeypatch.undo()
    same(stream.held.points.nan_to_num(-1), kept)
    same(stream.forecast().prediction, before)
    stream.update(points[:, L + 2 :])
    same(stream.forecast().prediction, fed(model, points).forecast().prediction)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(S, 4), (4, 3), (S + 1, 4, 3), (S, 4, 2), (1, S, 4, 3), (3,)])
def test_points_of_another_shape(make, shape):
    stream = ForecastStream(make(), S)
    with pytest.raises(TitansError, match=rf"the shape \([\d, ]+\), expected \[{S}, steps, 3\]"):
        stream.update(torch.zeros(shape))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, 1e30])
def test_points_that_are_no_numbers(make, same, value):
    model = make(dtype=torch.float32)
    points = series(model, 3 * L)
    stream = fed(model, points)
    before = stream.forecast().prediction
    bad = points.clone()
    bad[1, -1, 0] = value
    with pytest.raises(TitansError, match=r"a new point is beyond ±\de\+1\d: scale the series, and let NaN stand"):
        stream.update(bad)
    same(stream.forecast().prediction, before)
    stream.update(bad, torch.tensor([3 * L, 3 * L - 1]))  # it is padding
    bad[1, -1, 0] = 1e17
    stream.update(bad)
    stream.update(points)
    assert stream.forecast().prediction.isfinite().all()


@pytest.mark.parametrize("counts", [
    torch.tensor([1]), torch.tensor([1, 2, 3]), torch.tensor([-1, 2]), torch.tensor([5, 2]), torch.tensor([[1, 2]]),
    torch.tensor([1.5, 2.0]),
])  # fmt: skip
def test_counts_that_are_none(make, counts):
    stream = ForecastStream(make(), S)
    with pytest.raises(TitansError, match="counts must hold a whole number from 0 to 4 for each of 2 series"):
        stream.update(torch.zeros(S, 4, 3), counts)
    assert torch.equal(stream.seen, torch.zeros(S, dtype=torch.long))


def test_streams_that_cannot_be(make):
    with pytest.raises(TitansError, match="a stream of 0 series of 3 channels: expected at least 1 of each"):
        ForecastStream(make(), 0)
    with pytest.raises(TitansError, match="a stream of 1 series of 0 channels"):
        ForecastStream(make(), 1, 0)
    with pytest.raises(TitansError, match="the stream has 2 channels and the model mixes 3"):
        ForecastStream(make("mixed"), 1, 2)
    assert fed(make("one"), torch.zeros(1, 9, 2)).forecast().prediction.shape == (1, H, 2)  # weights are shared
    with pytest.raises(TitansError, match="there is nothing to forecast from: call update"):
        ForecastStream(make()).forecast()
    stream = ForecastStream(make(), S)
    stream.update(torch.zeros(S, 3, 3), torch.tensor([0, 3]))
    with pytest.raises(TitansError, match="at least one point of each series"):
        stream.forecast()
    single = ForecastStream(make())
    single.update(torch.zeros(0, 3))
    single.update(torch.zeros(1, 3))  # [n, C]
    assert single.seen.tolist() == [1]


COVARIATES = {"num_future_covariates": 2, "num_static_covariates": 1}


@pytest.mark.parametrize("layout", ["independent", "mixed"])
def test_covariates(make, close, same, layout, tmp_path):
    """Each window is read with its own covariates; those of the horizon are handed in with the forecast."""
    model, count = make(layout, **COVARIATES), 3 * L + 2
    points, static = series(model, count, density=1), torch.randn(S, 1).double()
    known = torch.randn(S, count + H, 2, generator=torch.Generator().manual_seed(1)).double()
    stream = ForecastStream(model, S, static_covariates=static)
    for start in range(0, count, 4):
        here = slice(start, min(start + 4, count))
        stream.update(points[:, here], future_covariates=known[:, here])
    found = stream.forecast(known[:, count:]).prediction
    cache = None
    for start in (0, L):  # the covariates of a horizon do not matter to what is learned
        here = slice(start, start + L + H)
        cache = model.forecast(
            points[:, start : start + L], future_covariates=known[:, here], static_covariates=static, cache=cache
        ).cache
    last = {"future_covariates": known[:, -L - H :], "static_covariates": static}
    close(found, model.forecast(points[:, -L:], cache=cache, **last).prediction, 1e-9)
    stream.save(tmp_path / "stream")
    same(ForecastStream.load(tmp_path / "stream", model).forecast(known[:, count:]).prediction, found)
    frozen = ForecastStream(model, S, memory=False, static_covariates=static)
    frozen.update(points, torch.tensor([count, count]), known[:, :count])
    close(frozen.forecast(known[:, count:]).prediction, model.forecast(points[:, -L:], **last).prediction, 1e-11)


def test_covariates_that_do_not_fit(make):
    with pytest.raises(TitansError, match=r"the static covariates are missing, expected \[2, 1\]"):
        ForecastStream(make(**COVARIATES), S)
    with pytest.raises(TitansError, match=r"the static covariates are of the shape \(2, 1\), expected none"):
        ForecastStream(make(), S, static_covariates=torch.zeros(S, 1))
    with pytest.raises(TitansError, match="one of the static covariates is NaN or infinite"):
        ForecastStream(make(**COVARIATES), S, static_covariates=torch.full((S, 1), torch.nan))
    stream = ForecastStream(make(**COVARIATES), S, static_covariates=torch.zeros(S, 1))
    for known in (None, torch.zeros(S, 3, 2), torch.zeros(S, 4, 1), torch.full((S, 4, 2), torch.inf)):
        with pytest.raises(TitansError, match="the future covariates "):
            stream.update(torch.zeros(S, 4, 3), future_covariates=known)
    assert stream.seen.tolist() == [0, 0]
    stream.update(torch.zeros(S, 4, 3), future_covariates=torch.zeros(S, 4, 2))
    with pytest.raises(TitansError, match=r"the future covariates are missing, expected \[2, 2, 2\]"):
        stream.forecast()
    with pytest.raises(TitansError, match=r"the future covariates are of the shape \(2, 4, 2\), expected none"):
        ForecastStream(make(), S).update(torch.zeros(S, 4, 3), future_covariates=torch.zeros(S, 4, 2))


def test_forks_go_on_by_themselves(model, same):
    points = series(model, 4 * L)
    stream = fed(model, points[:, : L + 2])
    twin = stream.fork()
    twin.update(points[:, L + 2 :])
    same(stream.forecast().prediction, fed(model, points[:, : L + 2]).forecast().prediction)
    stream.update(points[:, L + 2 :])
    same(stream.forecast().prediction, twin.forecast().prediction)


# Files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("count", [0, 3, 3 * L + 2])
def test_save_and_load_in_the_middle_of_a_window(model, same, tmp_path, count, memory):
    points = series(model, count + 2 * L + 1)
    counts = torch.tensor([count, count // 2])
    stream = fed(model, points[:, :count], counts, memory=memory)
    stream.save(tmp_path / "stream")
    loaded = ForecastStream.load(tmp_path / "stream", model)
    assert (loaded.memory, loaded.nbytes) == (stream.memory, stream.nbytes)
    assert torch.equal(loaded.seen, stream.seen)
    for _ in range(2):
        for one in (stream, loaded):
            one.update(points[:, count:])
        same(loaded.forecast().prediction, stream.forecast().prediction)
    stream.save(tmp_path / "stream")  # over the old one
    same(ForecastStream.load(tmp_path / "stream", model).forecast().prediction, stream.forecast().prediction)
    assert [path.name for path in tmp_path.iterdir()] == ["stream"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load_of_other_types(make, same, tmp_path, dtype):
    model = make(dtype=dtype)
    stream = fed(model, series(model, 3 * L + 1))
    stream.save(tmp_path / "stream")
    other = copy.deepcopy(model)  # another object of the same weights
    same(ForecastStream.load(tmp_path / "stream", other).forecast().prediction, stream.forecast().prediction)


@pytest.mark.parametrize("memory", [True, False])
def test_damaged_files(make, tmp_path, memory):
    model, path = make(dtype=torch.float32), tmp_path / "stream"
    fed(model, series(model, 3 * L), memory=memory).save(path)
    whole = path.read_bytes()
    cuts = [0, 1, 7, 8, 9, 100, *range(0, len(whole), 1 + len(whole) // 20), len(whole) - 1]
    flips = [*range(0, 700, 41), *range(700, len(whole), 1 + len(whole) // 30), len(whole) - 1]
    damaged = [whole[:cut] for cut in cuts]
    damaged += [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at in flips for bit in (1, 128)]
    damaged += [whole + b"x", b"x" * 5000, b"\xff" * 5000, whole[::-1], (2**63).to_bytes(8, "little") + whole[8:]]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(TitansError, match="stream: ") as caught:
            ForecastStream.load(path, model)
        assert "\n" not in str(caught.value)


def test_foreign_files(make, tmp_path):
    model, path = make(), tmp_path / "stream"
    stream = fed(model, series(model, 3 * L))
    with pytest.raises(TitansError, match=r"cannot read the stream file .*: is the path right"):
        ForecastStream.load(path, model)
    with pytest.raises(TitansError, match="cannot read the stream file"):
        ForecastStream.load(tmp_path, model)
    save_state(stream.held.state, path)
    with pytest.raises(TitansError, match=r"no stream file, or a damaged one .its format is 'titans-memory-state'"):
        ForecastStream.load(path, model)
    safetensors.torch.save_file({"points": torch.zeros(2)}, path)
    with pytest.raises(TitansError, match="no stream file"):
        ForecastStream.load(path, model)


def test_files_whose_parts_do_not_fit(make, tmp_path):
    model, path = make(), tmp_path / "stream"
    stream = fed(model, series(model, 3 * L))
    stream.save(path)
    tensors, metadata = STREAM_FILE.load(path.read_bytes())
    fed(model, series(model, 3 * L, rows=3)).save(path)
    other, _ = STREAM_FILE.load(path.read_bytes())
    points, filled = tensors["points"], tensors["filled"]
    huge = points.clone()
    huge[0, 0, 0] = torch.inf
    kept = next(name for name in tensors if name.startswith("memory.") and tensors[name].dim() > 2)

    def refused(tensors, message, **changed):
        path.write_bytes(STREAM_FILE.dump(tensors, {**metadata, **changed}))
        with pytest.raises(TitansError, match=f"stream: .*{message}"):
            ForecastStream.load(path, model)

    for changed in (
        {name: x for name, x in other.items() if name.startswith("memory.")},
        {"points": other["points"]},
        {"filled": other["filled"]},
        {"points": points[:, 1:].contiguous()},
        {"points": points[..., :2].contiguous()},
        {"points": points.float()},
        {"points": points[:0]},
        {"points": points[0]},
        {"points": huge},
        {"filled": filled.float()},
        {"filled": filled - 100},
        {"filled": filled + L},
        {kept: tensors[kept].bfloat16()},
        {kept: tensors[kept][..., 1:].contiguous()},
        {"memory.more": points.clone()},
    ):
        refused({**tensors, **changed}, "")
    for name in ("points", "filled"):
        refused({key: x for key, x in tensors.items() if key != name}, f"damaged .'{name}'")
    refused(tensors, "integers", integers="[1]")
    refused(tensors, "another model", fingerprint="0-0")
    path.write_bytes(dataclasses.replace(STREAM_FILE, version="1").dump(tensors, metadata))
    with pytest.raises(
        TitansError, match="has version '1' and this is Titans for version 2: use the Titans that wrote"
    ):
        ForecastStream.load(path, model)


@pytest.mark.parametrize("memory", [True, False])
def test_streams_of_other_models(make, tmp_path, memory):
    model, path = make(), tmp_path / "stream"
    fed(model, series(model, 3 * L), memory=memory).save(path)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.linear.bias.add_(1)
    for other in (changed, make(horizon=3), make("mixed"), make(dtype=torch.float32), make(variant="none")):
        with pytest.raises(TitansError, match=r"belongs to (another model|a model of)"):
            ForecastStream.load(path, other)


def test_weights_that_change_meanwhile(make, tmp_path):
    model = copy.deepcopy(make())
    stream = fed(model, series(model, 3 * L))
    with torch.no_grad():
        model.linear.bias.add_(1)
    with pytest.raises(TitansError, match="weights have changed since this state's stream began"):
        stream.save(tmp_path / "stream")
    assert not list(tmp_path.iterdir())


def test_a_memory_that_does_not_learn_stays(make, close):
    model = make()
    points = series(model, 8 * model.config.context_length)
    half = points.shape[1] // 2
    stream = fed(model, points[:, :half])
    state = stream.held.state
    stream.update(points[:, half:], learn=False)
    assert stream.held.state is state
    window = points[:, -model.config.context_length :]
    expected = model.forecast(window, observed=window.isfinite(), cache=state, use_cache=False)
    close(stream.forecast().prediction, expected.prediction, 1e-10)
    learning = fed(model, points)
    assert not torch.allclose(learning.forecast().prediction, expected.prediction, atol=1e-6)
