"""What all tests share: quiet, repeatable hypothesis, one thread, and comparisons that say how far off they are."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import comparison
from titans.models.configuration import merge_fields

settings.register_profile(
    "titans",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("titans")
torch.set_num_threads(1)

SOURCE = Path(__file__).parents[1] / "src"
# Run in processes of their own: as `python -m titans.cli`, and from the folder of a saved model.
ELSEWHERE = {"titans.cli.__main__", "titans.models.modeling_titans"}
IMPORTED = pytest.StashKey[set]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Gather what each of several processes has imported; see below."""
    node.config.stash.setdefault(IMPORTED, set()).update(getattr(node, "workeroutput", {}).get("imported", ()))


def pytest_sessionfinish(session):
    """Refuse a run of all tests, of `make test` too, in which a module of the package was not even imported."""
    config = session.config
    imported = config.stash.setdefault(IMPORTED, set())
    imported.update(name for name in sys.modules if name.partition(".")[0] == "titans")
    if hasattr(config, "workeroutput"):
        config.workeroutput["imported"] = sorted(imported)
    elif config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword:
        paths = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
        names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
        if session.exitstatus == pytest.ExitCode.OK and (unseen := sorted(names - imported - ELSEWHERE)):
            print(f"\nno test imports {', '.join(unseen)}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


# Tiny models of every variant, with random parameters under which their memories matter.
SIZES = {
    "vocab_size": 23,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "sliding_window": 5,
    "segment_length": 4,
    "num_persistent_tokens": 2,
    "num_memory_tokens": 2,
    "memory": {"expansion": 2, "chunk_size": 3},
}
VARIANTS = ("lmm", "mac", "mag", "mal", "transformer", "swa", "rmt", "gated-deltanet")
# Their states are of the same kinds as those above, and their layers are tested with every switch.
BASELINES = ("retnet", "gla", "deltanet", "mamba", "mamba2")
ALIKE = (*BASELINES, "ttt-linear", "gated-deltanet-h2", "mag-channelwise", "mal-bare")
TOKEN = {"memory": {"rule": "token", "depth": 1}}
BARE = {"num_persistent_tokens": 0, "memory": {"use_short_conv": False, "momentum": False, "forgetting": False}}
MODELS = {  # layers alone are tested with every switch; here, with each variant, those that change its state
    **{variant: {"variant": variant} for variant in (*VARIANTS, *BASELINES, "ttt-linear")},
    "gated-deltanet-h2": {"variant": "gated-deltanet-h2", "num_hidden_layers": 3},
    "lmm-token": {"variant": "lmm", **TOKEN},
    "mac-retrieved": {"variant": "mac", "num_retrieved_tokens": 3},
    "mac-chunk-gates": {"variant": "mac", "memory": {"rule": "chunk", "gates": "chunk"}},
    "mag-channelwise": {"variant": "mag", "memory": {"channelwise_forgetting": True, "depth": 1, "num_heads": 1}},
    "mal-bare": {"variant": "mal", **BARE, "tie_word_embeddings": False},
}


@pytest.fixture(scope="session")
def byte_sizes():
    """The configuration of a tiny model that reads bytes, but for its variant."""
    return {
        "vocab_size": 259,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "segment_length": 8,
        "sliding_window": 8,
        "memory": {"chunk_size": 4},
        "num_persistent_tokens": 2,
    }


@pytest.fixture(scope="session")
def close():
    """Compare two trees of numbers: `close(actual, expected, tolerance)`."""
    return comparison.close


@pytest.fixture(scope="session")
def same():
    """Assert that two trees of numbers are equal bit for bit: `same(actual, expected)`."""
    return comparison.same


@pytest.fixture(scope="session")
def scrambled():
    """Give a module random parameters under which everything matters: memories that learn and forget, open gates.

    Freshly initialised models hardly use their memories, and a test on them could not fail.
    """
    from titans.layers.neural_memory import FORGET_BIAS, NeuralMemory

    def scrambled(module, seed=0, dtype=torch.float64, scale=0.6):
        generator = torch.Generator().manual_seed(seed)
        module = module.to(dtype).eval()
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64))
                if p.dim() == 1:
                    p.add_(0.5)
            for layer in module.modules():
                if isinstance(layer, NeuralMemory) and layer.gate_sizes[2]:
                    layer.gates.bias[-layer.gate_sizes[2] :] -= FORGET_BIAS + 2.5  # alpha around 0.1
        return module

    return scrambled


@pytest.fixture(scope="session")
def stream():
    """Run a mixer or a model piece by piece: `stream(step, lengths)` with `step(start, stop, state) -> (y, state)`."""
    return comparison.stream


@pytest.fixture(scope="session")
def make_model(scrambled):
    """Make a model: `make_model(variant, dtype=torch.float64, fresh=False, **fields)`; fresh: as initialised."""

    from titans import TitansConfig, TitansForCausalLM

    def make_model(variant, dtype=torch.float64, fresh=False, **fields):
        torch.manual_seed(0)
        model = TitansForCausalLM(TitansConfig(**merge_fields({**SIZES, "variant": variant}, fields)))
        if fresh:
            return model.to(dtype).eval()
        model = scrambled(model, dtype=dtype)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)  # clear preferences, so that a greedy choice is never a tie
        return model

    return make_model


@pytest.fixture(scope="session")
def make_forecasting(scrambled):
    """Make what makes forecasting models with random parameters: `make(layout, variant, dtype, **fields)`."""

    from titans.models.forecasting import TitansForForecasting
    from titans.models.forecasting_configuration import TitansForecastingConfig

    def make_forecasting(sizes, layouts, scale):
        made = {}

        def make(layout="independent", variant="lmm", dtype=torch.float64, **fields):
            key = layout, variant, dtype, str(fields)
            if key not in made:
                config = TitansForecastingConfig(**{**sizes, **layouts[layout], "variant": variant, **fields})
                made[key] = scrambled(TitansForForecasting(config), dtype=dtype, scale=scale)
            return made[key].eval()

        return make

    return make_forecasting


def _params(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in names]


@pytest.fixture(scope="session", params=_params(MODELS))
def model(request, make_model):
    """Every variant, and every switch at least once."""
    return make_model(**MODELS[request.param])


@pytest.fixture(scope="session", params=_params((*VARIANTS, *BASELINES)))
def variant(request):
    return request.param
