"""What stands around models or is done with their states elsewhere: adapters, compiled blocks, `torch.save`."""

import copy
import io

import pytest
import torch

from titans import NeuralMemory, watch


def text(batch, count, seed=0):
    return torch.randint(1, 23, (batch, count), generator=torch.Generator().manual_seed(seed))


pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's


def adapted(model, **options):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    found = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2, **options))
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return found


@pytest.mark.parametrize("options", [
    {"target_modules": "all-linear"},
    {"target_modules": "all-linear", "use_dora": True},
    {"target_modules": ["down_proj"], "modules_to_save": ["mixers.0"]},  # the memory itself, in PEFT's wrapper
], ids=["lora", "dora", "modules_to_save"])  # fmt: skip
def test_adapters(make_model, variant, options, close):
    model, ids = copy.deepcopy(make_model(variant)), text(2, 9)
    plain = model(ids).logits
    tuned = adapted(model, **options)
    whole = tuned(ids)
    assert not torch.allclose(whole.logits, plain)
    start = tuned.base_model.model.initial_state(2)
    first = tuned(ids[:, :4], cache=start)
    rest = tuned(ids[:, 4:], cache=first.cache)
    close(torch.cat([first.logits, rest.logits], 1), whole.logits, 1e-9)
    out = tuned.generate(input_ids=ids, max_new_tokens=3, do_sample=False)
    for i in range(3):
        assert torch.equal(out[:, 9 + i], tuned(out[:, : 9 + i]).logits[:, -1].argmax(-1))


def test_a_copy_that_is_trained_is_watched(make_model):
    model, ids = make_model("mal"), text(2, 7)
    with watch(model) as expected:
        model(ids)
    last = "layers.1.feed_forward.down_proj"  # no memory comes after it
    tuned = adapted(copy.deepcopy(model), target_modules=[last], modules_to_save=["mixers.0"])
    with watch(tuned) as trace:
        tuned(ids)
    assert trace.tokens(1) == expected.tokens(1)


def test_an_adapter_around_the_initial_memory_is_refused(make_model):
    model = adapted(copy.deepcopy(make_model("lmm")), target_modules=[], target_parameters=["initial_weights.0"])
    with pytest.raises(ValueError, match=r"initial_weights stand in a ParamWrapper: .* modules_to_save"):
        model(text(1, 3))


def test_blocks_in_wrappers(make_model, variant, same):
    model = copy.deepcopy(make_model(variant))
    for i, block in enumerate(model.model.layers):
        model.model.layers[i] = torch.compile(block, backend="eager")
    same(list(model.initial_state(2).tensors()), list(make_model(variant).initial_state(2).tensors()))
    assert model.model.empty_state(1).shapes == make_model(variant).model.empty_state(1).shapes


def test_states_go_through_torch_save(make_model, variant, same):
    layer = NeuralMemory(8, 2, rule="chunk", gates="chunk").eval()
    model, ids = make_model(variant), text(2, 9)
    x = torch.randn(2, 5, 8)
    model_state = model(ids[:, :5]).cache.detach()
    for state, go_on in (
        (layer(x)[1].detach(), lambda s: layer(x, s)[0]),
        (model_state, lambda s: model(ids[:, 5:], cache=s).logits),
        (model_state.layers[0][0], lambda s: model.model.layers[0].mixers[0](x.double(), s)[0]),
    ):
        file = io.BytesIO()
        torch.save({"state": state, "step": 3}, file)
        file.seek(0)
        loaded = torch.load(file)["state"]  # weights_only, which is the default
        assert type(loaded) is type(state)
        assert torch.equal(go_on(loaded), go_on(state))
