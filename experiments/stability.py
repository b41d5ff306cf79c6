"""How a chunk of equal unit keys moves the matrix memory: the growth per token that each bound on the gates allows.

Distance to the solution and surprise are mapped linearly by a chunk; see docs/lab-notes/stability.md.
"""

from __future__ import annotations

import numpy as np

MOMENTA = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
Gates = tuple[np.ndarray, np.ndarray]  # eta and theta of each token of a chunk


def chunk_map(eta: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the 2 x 2 map of (distance, surprise) over one chunk; every gradient is taken at the chunk's start."""
    columns = []
    for distance, surprise in ((1.0, 0.0), (0.0, 1.0)):
        here = distance
        for e, t in zip(eta, theta, strict=True):
            surprise = e * surprise - 2 * t * distance
            here += surprise
        columns.append((here, surprise))
    return np.array(columns).T


def growth(chunks: list[Gates]) -> float:
    """Return the growth per token when the chunks repeat for ever."""
    product = np.eye(2)
    for eta, theta in chunks:
        product = chunk_map(eta, theta) @ product
    return float(max(abs(np.linalg.eigvals(product))) ** (1 / sum(len(eta) for eta, _ in chunks)))


def constant(c: float, b: int, scaled: bool) -> float:
    """Return the largest growth per chunk over all constant momenta, with theta = c/b or c (1 - eta)/b."""
    cases = [(np.full(b, eta), np.full(b, c / b * (1 - eta if scaled else 1))) for eta in MOMENTA]
    return max(growth([case]) ** b for case in cases)


def changing(theta_max: float, eta_max: float, b: int, rng: np.random.Generator, trials: int = 3000) -> float:
    """Search for gates inside the bounds that repeat with a period of up to 8 chunks and grow the most per token."""

    def draw() -> Gates:
        kind, here = rng.integers(3), np.arange(b)
        if kind == 0:
            low = rng.random(b) < rng.random()
        elif kind == 1:
            low = (here < rng.integers(0, b + 1)) ^ (rng.random() < 0.5)
        else:
            low = np.full(b, rng.random() < 0.5)
        eta = np.where(low, 0.0, eta_max)
        step = np.where(low, 1.0, rng.choice([0.0, 0.5, 1.0]))
        return eta, theta_max * (1 - eta) * step

    return max(growth([draw() for _ in range(rng.integers(1, 9))]) for _ in range(trials))


def main() -> None:
    """Print both tables of docs/lab-notes/stability.md."""
    print("Constant gates: growth per chunk")
    for b in (1, 16, 64):
        for c in (0.01, 0.5, 1.0, 1.5):
            plain, scaled = constant(c, b, scaled=False), constant(c, b, scaled=True)
            print(f"  b = {b:2}  c = {c:4.2f}   theta = c/b: {plain:8.4f}   theta = c (1 - eta)/b: {scaled:8.4f}")
    print("Changing gates, theta <= (1 - eta) theta_max: growth per token")
    rng = np.random.default_rng(0)
    for b in (1, 4, 16, 64):
        for c in (0.5, 1.0):
            for cost in (0, 1, 2):
                worst = changing(c / b, max(0.0, 1 - cost * c / b), b, rng)
                print(f"  b = {b:2}  theta_max = {c:3.1f}/b   eta_max = 1 - {cost} theta_max: {worst:7.4f}")


if __name__ == "__main__":
    main()
