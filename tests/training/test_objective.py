"""The price on writing and the cut into pieces are the same in `fit`, in `Trainer` and in recipes."""

import pytest
import torch
import torch.nn.functional as F

from titans import TitansConfig, TitansForCausalLM
from titans.data import IndexedDataset, PieceDataset
from titans.errors import TitansError
from titans.training.arguments import StreamTrainingArguments
from titans.training.fit import fit
from titans.training.objective import Objective, WriteGates, logits_at, split_pieces
from titans.training.trainer import StreamTrainer

IDS = torch.randint(40, (1, 25), generator=torch.Generator().manual_seed(3))


def make(variant="lmm"):
    torch.manual_seed(0)
    return TitansForCausalLM(
        TitansConfig(
            variant=variant,
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            segment_length=8,
            memory={"chunk_size": 4},
            num_persistent_tokens=2,
        )
    )


def trained(folder, **options):
    """One step of `Trainer` on the document of IDS, as a whole: the gradients and the loss."""
    model, gradients = make(options.pop("variant", "lmm")), {}
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: gradients.update({name: p.grad.clone()}))
    arguments = StreamTrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=1,
        learning_rate=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    dataset = PieceDataset(IndexedDataset.from_lists([IDS[0].tolist()]), 24, 1, carry_state=True)
    trainer = StreamTrainer(model, arguments, dataset)
    trainer.train()
    return dict(sorted(gradients.items())), trainer.state.log_history[0]["loss"]


def by_fit(**options):
    """The same by `fit`."""
    model, losses, gradients = make(), [], {}
    objective = Objective(**options)

    def parts(model, moment):
        return (terms.loss + terms.price for terms in objective.parts(model, IDS[:, :-1], IDS[:, 1:], 1.0))

    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: gradients.update({name: p.grad.clone()}))
    optimizer = torch.optim.SGD(model.parameters())
    after_step = lambda moment, loss: losses.append(loss)  # noqa: E731
    fit(model, parts, optimizer, steps=1, rate=lambda moment: 0.0, after_step=after_step)
    return dict(sorted(gradients.items())), losses[0]


@pytest.mark.parametrize("options", [
    {}, {"write_cost": 0.5}, {"piece_length": 7}, {"write_cost": 0.5, "piece_length": 7}
])  # fmt: skip
def test_trainer_and_fit_agree(tmp_path, options, close):
    gradients, loss = trained(tmp_path, **options)
    others, other = by_fit(**options)
    assert loss == pytest.approx(other, rel=1e-6)
    close(gradients, others, 1e-6)


def test_the_loss_rises_by_the_price(tmp_path):
    model = make().train()
    with torch.no_grad(), WriteGates(model) as gates:
        model(IDS[:, :-1])
        price = 0.5 * float(gates.spread())
    for losses in ([trained(tmp_path, write_cost=cost)[1] for cost in (0.0, 0.5)], [
        by_fit(write_cost=cost)[1] for cost in (0.0, 0.5)
    ]):  # fmt: skip
        assert losses[1] - losses[0] == pytest.approx(price, rel=1e-5)


def test_gradients_end_at_pieces_and_the_state_goes_on(tmp_path, close):
    gradients, loss = trained(tmp_path, piece_length=7)
    model, state, total = make().train(), None, 0.0
    for ids, labels in zip(IDS[:, :-1].split(7, 1), IDS[:, 1:].split(7, 1), strict=True):
        output = model(ids, cache=state, use_cache=True)
        part = F.cross_entropy(output.logits[0], labels[0], reduction="sum") / 24
        part.backward()
        state, total = output.cache.detach(), total + float(part.detach())
    assert loss == pytest.approx(total, rel=1e-6) == pytest.approx(trained(tmp_path)[1], rel=1e-6)
    by_hand = {name: p.grad for name, p in sorted(model.named_parameters()) if p.grad is not None}
    close(gradients, by_hand, 1e-6)
    whole, _ = trained(tmp_path)
    assert any(not torch.allclose(whole[name], gradients[name], rtol=1e-3) for name in gradients)


@pytest.mark.parametrize("variant", ["lmm", "mac"])
def test_the_price_goes_with_activation_checkpointing(tmp_path, variant, close):
    options = {"variant": variant, "write_cost": 0.5}
    close(trained(tmp_path, activation_checkpointing=True, **options), trained(tmp_path, **options), 1e-6)


def test_pieces_of_padded_rows():
    model = make().eval()
    mask = torch.arange(24)[None] < torch.tensor([24, 9])[:, None]
    batch = {"input_ids": IDS[:, :-1].expand(2, -1), "attention_mask": mask.long()}
    whole, cache, parts = model(**batch).logits, None, []
    for piece in split_pieces(batch, 10):
        logits, output = logits_at(model, piece["attention_mask"].bool(), **piece, cache=cache, use_cache=True)
        parts.append((piece["attention_mask"].bool(), logits))
        cache = output.cache
    found = torch.cat([torch.zeros(*m.shape, 40).masked_scatter(m[..., None], x) for m, x in parts], 1)
    torch.testing.assert_close(found[mask], whole[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("field", "value"), [("write_cost", -1), ("write_cost", float("inf")), ("piece_length", 0)])
def test_objectives_that_do_not_work(field, value):
    with pytest.raises(TitansError, match=f"{field} is .*, expected"):
        Objective(**{field: value})
