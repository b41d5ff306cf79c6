"""A memory layer in a module of your own: a classifier of sensor streams that remembers what it read long ago.

Each stream begins with a pulse on one of two channels, then noise for as long as you like; asked at the end, the module
says which channel it was. Streams are read piece by piece, with the state carried on.

    python examples/memory_in_your_module.py
"""

import argparse

import torch
from torch import nn

from titans import NeuralMemory


class PulseClassifier(nn.Module):
    """Channels in, memory, class out."""

    def __init__(self, channels: int = 2, hidden_size: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(channels, hidden_size)
        self.memory = NeuralMemory(hidden_size, num_heads=2, chunk_size=16)
        self.head = nn.Linear(hidden_size, 2)

    def forward(self, x, state=None):
        """Read `[B, T, channels]`; returns logits `[B, 2]` after the last sample, and the state."""
        h = self.embed(x)
        y, state = self.memory(h, state)
        return self.head((h + y)[:, -1]), state


def streams(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, after a pulse of four samples on the channel of the class, before a question: both channels at -3."""
    labels = torch.randint(2, (count,))
    x = 0.1 * torch.randn(count, length, 2)
    x[torch.arange(count), :4, labels] = 3.0
    x[:, -1] = -3.0
    return x, labels


def main() -> None:
    """Train on streams of 64 samples, test on streams of 1,024 that are read in pieces of 100."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = PulseClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(args.steps):
        x, labels = streams(32, 64)
        loss = nn.functional.cross_entropy(model(x)[0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    x, labels = streams(64, 1024)
    state = None
    with torch.no_grad():
        for piece in x.split(100, 1):
            logits, state = model(piece, state)
    print(f"right after 1,024 samples: {(logits.argmax(-1) == labels).float().mean():.0%}")
    print(f"state of a stream: {state.nbytes // 64:,} bytes, however long it is")


if __name__ == "__main__":
    main()
