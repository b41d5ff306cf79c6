"""Models of the paper's own forms train, go on from a state, and load as they were saved."""

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM


@pytest.mark.parametrize("variant", ["lmm", "mac", "mag", "mal"])
def test_a_model_of_the_papers_forms(variant, close, tmp_path):
    torch.manual_seed(0)
    memory = {"chunk_size": 4, "theta_max": 0.1}
    config = TitansConfig.paper(
        variant=variant, vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, segment_length=5,
        sliding_window=5, num_persistent_tokens=2, initializer_range=0.2, memory=memory,
    )  # fmt: skip
    model = TitansForCausalLM(config).double()
    ids = torch.randint(31, (4, 23))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]

    model.eval()
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :9], use_cache=True)
        rest = model(ids[:, 9:], cache=first.cache).logits
        close(torch.cat([first.logits, rest], 1), whole, 1e-9)
        model.save_pretrained(tmp_path)
        loaded = TitansForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
        assert loaded.config.paper_form
        assert loaded.config.memory == model.config.memory
        close(loaded(ids).logits, whole, 1e-12)
