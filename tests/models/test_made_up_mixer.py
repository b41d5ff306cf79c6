"""A mixer from outside the package, and blocks that a user lists, do all that the variants do."""

import pytest
import torch
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from tests.invariants import PROPERTIES, WIDTH, of_mixer, of_model
from titans import MemoryStore, TitansConfig, TitansForCausalLM, WritePolicy, load_state, save_state
from titans.cli import app
from titans.data import byte_tokenizer
from titans.layers.registry import MIXERS
from titans.models.flops import flops_per_token
from titans.serving.app import Limits, create_app
from titans.serving.engine import Engine
from titans.serving.metrics import Metrics
from titans.serving.service import Service

SIZES = {
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "sliding_window": 5,
    "num_persistent_tokens": 2,
    "memory": {"chunk_size": 3},
}
BLOCKS = {
    "made up": ["leaky_average", ["leaky_average", "memory"]],
    "3:1": ["gated_delta_net", "gated_delta_net", "gated_delta_net", "attention"],
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The made-up mixer is known while these tests run."""
    from tests.models import made_up_mixer

    yield made_up_mixer
    MIXERS.pop("leaky_average")


@pytest.fixture(scope="module", params=BLOCKS)
def make_config(request):
    return lambda **fields: TitansConfig(
        **{**SIZES, "layers": BLOCKS[request.param], "num_hidden_layers": len(BLOCKS[request.param]), **fields}
    )


@pytest.fixture(scope="module")
def model(make_config, scrambled):
    return scrambled(TitansForCausalLM(make_config(vocab_size=23)))


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
def test_invariants_of_the_layer(registered, scrambled, check):
    check(of_mixer(scrambled(registered.LeakyAverage(WIDTH))))


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
def test_invariants_of_the_model(model, check):
    check(of_model(model))


def test_training_lowers_the_loss(make_config):
    torch.manual_seed(0)
    model = TitansForCausalLM(make_config(vocab_size=23)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ids = torch.arange(5).repeat(2, 4)
    losses = []
    for _ in range(20):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_a_text_generated_with_a_carried_state_is_that_of_the_whole(model):
    ids = torch.randint(23, (1, 14), generator=torch.Generator().manual_seed(0))
    whole = model.generate(ids, max_new_tokens=9, do_sample=False)
    with torch.no_grad():
        state = model(ids[:, :8]).cache
    rest = model.generate(ids[:, 8:], cache=state, max_new_tokens=9, do_sample=False)
    assert rest[0, 6:].tolist() == whole[0, 14:].tolist()


def test_models_are_saved_and_loaded(model, same, close, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = TitansForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert loaded.config.layers == model.config.layers
    same(dict(loaded.state_dict()), dict(model.state_dict()))
    ids = torch.arange(9).view(1, 9)
    with torch.no_grad():
        close(loaded(ids).logits, model(ids).logits, 1e-11)


def test_every_parameter_is_initialised_on_loading(make_config, tmp_path):
    """Where a folder lacks weights, layers initialise theirs by `reset_parameters`."""
    fresh = TitansForCausalLM(make_config(vocab_size=23))
    fresh.save_pretrained(tmp_path, state_dict={"model.norm.weight": fresh.model.norm.weight.detach().clone()})
    loaded = TitansForCausalLM.from_pretrained(tmp_path)
    for (name, p), q in zip(loaded.named_parameters(), fresh.parameters(), strict=True):
        assert p.isfinite().all(), name
        if name.endswith("leak"):
            assert torch.equal(p, q)


def test_states_are_saved_and_loaded(model, same, tmp_path):
    with torch.no_grad():
        state = model(torch.arange(10).view(2, 5)).cache
    save_state(state, tmp_path / "a.state")
    same(load_state(tmp_path / "a.state", model), state)


def test_it_is_served(make_config, tmp_path):
    """A memory goes on without the history."""
    torch.manual_seed(0)
    model = TitansForCausalLM(make_config(vocab_size=259, bos_token_id=256, eos_token_id=257, pad_token_id=258)).eval()
    with torch.no_grad():
        model.lm_head.weight[:32] = model.lm_head.weight[127:] = 0  # what it says is text
    metrics = Metrics()
    store = MemoryStore(tmp_path / "memories", model)
    engine = Engine(model, byte_tokenizer(), max_batch=4)
    service = Service(engine, store, WritePolicy("always"), None, 4, metrics=metrics)
    with TestClient(create_app(service, "tiny", None, metrics, Limits()), base_url="http://localhost") as client:

        def complete(prompt, **fields):
            request = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
            answer = client.post("/v1/completions", json=request)
            assert answer.status_code == 200, answer.text
            return answer.json()

        first, second = (complete(prompt, memory="work") for prompt in ("hello", "and more"))
        text = first["choices"][0]["text"]
        assert second["choices"][0]["text"] == complete(f"hello{text}and more")["choices"][0]["text"]
        assert second["memory"]["tokens"] == 1 + len("hello") + 8 + len("and more") + 8


def test_it_is_counted(make_config, tmp_path):
    config = make_config(vocab_size=23)
    model = TitansForCausalLM(config).eval()
    with torch.no_grad():
        size = model(torch.arange(3).view(1, 3)).cache.nbytes
    model.save_pretrained(tmp_path)
    result = CliRunner().invoke(app, ["info", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = dict(line.strip().split("  ", 1) for line in result.output.splitlines() if "  " in line.strip())
    assert lines["state"].split()[0] == f"{size:,}", result.output
    assert lines["FLOPs a token"].strip().startswith(f"{flops_per_token(config, 4096):,},")


def test_operations_by_hand(registered):
    """One block of the made-up mixer: two projections and the average, three of the feed-forward layer, the head."""
    config = TitansConfig(**SIZES, layers=["leaky_average"], num_hidden_layers=1, vocab_size=23)
    assert flops_per_token(config, 100) == 2 * (2 * 16 * 16 + 3 * 16 * 24 + 16 * 23) + 4 * 16


# The invariants see what is wrong ---------------------------------------------------------------------------


def broken(registered, change):
    """The made-up mixer with another `mix`."""

    class Broken(registered.LeakyAverage):
        def mix(self, x, state, lengths):
            return change(super().mix, x, state, lengths)

    return Broken


def looks_ahead(mix, x, state, lengths):
    y, state = mix(x, state, lengths)
    return y + x.mean(1, keepdim=True), state


def forgets_between_calls(mix, x, state, lengths):
    return mix(x, state.map(torch.zeros_like), lengths)


def reads_padding(mix, x, state, lengths):
    return mix(x.nan_to_num(1.0), state, None)


def mixes_rows(mix, x, state, lengths):
    y, state = mix(x, state, lengths)
    return y + y.detach().nan_to_num().mean(0, keepdim=True), state


def writes_into_the_state(mix, x, state, lengths):
    state.average.add_(1)
    return mix(x, state, lengths)


def cuts_gradients(mix, x, state, lengths):
    return mix(x, state.detach(), lengths)


@pytest.mark.parametrize(("change", "found"), [
    (looks_ahead, "causal_and_remembering"),
    (forgets_between_calls, "any_split_equals_one_call"),
    (reads_padding, "padding_anywhere_and_ragged_rows"),
    (mixes_rows, "rows_are_independent"),
    (writes_into_the_state, "the_state_handed_in_is_unchanged"),
    (cuts_gradients, "gradients_cross_a_split"),
])  # fmt: skip
def test_the_invariants_find(registered, scrambled, change, found):
    mixer = scrambled(broken(registered, change)(WIDTH))
    with pytest.raises(AssertionError):
        PROPERTIES[found](of_mixer(mixer))
