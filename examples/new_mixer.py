"""A mixer of your own in every Titans model: one class, one call of `register_mixer`.

The mixer below is an exponential moving average with a learned decay per channel. Registered, it trains, streams, saves
and is counted as the package's own are; here in a hybrid with attention, three blocks to one.

    python examples/new_mixer.py
"""

import argparse
import tempfile

import torch
from torch import Tensor, nn

from titans import TitansConfig, TitansForCausalLM, register_mixer
from titans.layers.mixer import Mixer, valid
from titans.models.flops import flops_per_token
from titans.ops.state import State


class MovingAverageState(State):
    """The average so far, `[B, D]`."""

    mean: Tensor


class MovingAverage(Mixer):
    """`m_t = a m_{t-1} + (1 - a) x_t`, with `a = sigmoid(decay)`, then a linear layer.

    Args:
        hidden_size: width D.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.decay = nn.Parameter(torch.empty(hidden_size))
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.reset_parameters()

    @classmethod
    def from_config(cls, config, **options):
        """Build it from a `TitansConfig`."""
        return cls(config.hidden_size, **options)

    def reset_parameters(self) -> None:
        """Start with averages over about two to a hundred tokens."""
        nn.init.uniform_(self.decay, 0.0, 4.5)

    def empty_state(self, batch_size: int) -> MovingAverageState:
        """An average of nothing is 0."""
        return MovingAverageState(self.decay.new_zeros(batch_size, self.hidden_size))

    def flops(self, context: int) -> float:
        """Two multiplications and an addition for each channel."""
        return 3 * self.hidden_size

    def mix(self, x: Tensor, state: MovingAverageState, lengths: Tensor | None) -> tuple[Tensor, MovingAverageState]:
        """Token by token, as the equation reads; padding, on the right, changes nothing."""
        decay, mean, outputs = self.decay.sigmoid(), state.mean, []
        mask = valid(x, lengths)
        for t in range(x.shape[1]):
            following = torch.lerp(x[:, t], mean, decay)
            mean = following if mask is None else torch.where(mask[:, t, None], following, mean)
            outputs.append(mean)
        return self.o_proj(torch.stack(outputs, 1)), MovingAverageState(mean)


register_mixer("moving_average", MovingAverage)


def main() -> None:
    """Train a hybrid on a small text, go on from a saved copy, and show that pieces give what the whole gives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = TitansConfig(
        layers=["moving_average", "moving_average", "moving_average", "attention"],
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        sliding_window=16,
    )
    model = TitansForCausalLM(config)
    ids = torch.tensor([list(b"the memory reads the text and the text is read by the memory. " * 4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(args.steps):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = TitansForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :100])
        rest = model(ids[:, 100:], cache=first.cache)
    difference = (torch.cat([first.logits, rest.logits], 1) - whole).abs().max()
    print(f"two pieces and the whole differ by {difference:.1e}")
    print(f"a token takes {flops_per_token(config, 1024):,} operations; a state {rest.cache.nbytes:,} bytes")


if __name__ == "__main__":
    main()
