"""Largest eigenvalue of the map that a chunk of equal tokens makes of the matrix memory (docs/stability.md)."""

import numpy as np

MOMENTA = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)


def largest_eigenvalue(theta: float, eta: float, b: int) -> float:
    """Return the modulus of the largest eigenvalue of (distance, surprise) over one chunk of b equal unit keys."""
    steps = range(1, b + 1)
    reached = theta * sum(eta ** (j - i) for i in steps for j in range(i, b + 1))
    kept = theta * sum(eta ** (b - i) for i in steps)
    step = [[1 - 2 * reached, sum(eta**j for j in steps)], [-2 * kept, eta**b]]
    return float(max(abs(np.linalg.eigvals(step))))


def main() -> None:
    """Print the worst case over the momentum for both ways to bound the step."""
    for b in (1, 16, 64):
        print(f"chunk of {b}")
        for c in (0.01, 0.1, 0.5, 1.0, 1.5):
            plain = max(largest_eigenvalue(c / b, eta, b) for eta in MOMENTA)
            scaled = max(largest_eigenvalue(c * (1 - eta) / b, eta, b) for eta in MOMENTA)
            print(f"  c = {c:4.2f}   theta = c/b: {plain:8.4f}   theta = c (1 - eta)/b: {scaled:8.4f}")


if __name__ == "__main__":
    main()
