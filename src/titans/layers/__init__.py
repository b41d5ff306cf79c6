"""nn.Modules built on the ops: token mixers and their parts. Importing the package registers its mixers."""

import titans.layers.ttt  # noqa: F401  # registers its settings of the neural memory
from titans.layers.delta_net import DeltaNet
from titans.layers.full_attention import FullAttention
from titans.layers.gated_delta_net import GatedDeltaNet
from titans.layers.gated_linear_attention import GatedLinearAttention
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.memory_as_context import MemoryAsContext
from titans.layers.memory_as_gate import MemoryAsGate
from titans.layers.memory_config import MemoryConfig
from titans.layers.mixer import Mixer
from titans.layers.neural_memory import NeuralMemory
from titans.layers.registry import register_mixer
from titans.layers.retention import Retention
from titans.layers.sliding_window_attention import SlidingWindowAttention

__all__ = [
    "DeltaNet",
    "FullAttention",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "Mamba",
    "Mamba2",
    "MemoryAsContext",
    "MemoryAsGate",
    "MemoryConfig",
    "Mixer",
    "NeuralMemory",
    "Retention",
    "SlidingWindowAttention",
    "register_mixer",
]
