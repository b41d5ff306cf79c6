"""Titans: neural long-term memory that learns while the model reads (Behrouz, Zhong, Mirrokni, 2025)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from titans import _registration

if TYPE_CHECKING:
    from titans.errors import TitansError
    from titans.forecasting.forecaster import TitansForecaster
    from titans.forecasting.stream import ForecastStream
    from titans.layers.memory_config import MemoryConfig
    from titans.layers.neural_memory import NeuralMemory
    from titans.layers.registry import register_mixer
    from titans.models.configuration import TitansConfig
    from titans.models.forecasting import TitansForForecasting
    from titans.models.forecasting_configuration import TitansForecastingConfig
    from titans.models.memory_state import MemoryState
    from titans.models.modeling import TitansForCausalLM, TitansModel
    from titans.models.presets import from_preset, presets
    from titans.models.sequence_classification import TitansForSequenceClassification
    from titans.models.watching import watch
    from titans.models.write_policy import WritePolicy
    from titans.ops import associative_memory, initial_state
    from titans.persistence.state_file import load_state, save_state
    from titans.persistence.store import MemoryStore

__version__ = "0.1.0.dev0"

__all__ = [
    "ForecastStream",
    "MemoryConfig",
    "MemoryState",
    "MemoryStore",
    "NeuralMemory",
    "TitansConfig",
    "TitansError",
    "TitansForCausalLM",
    "TitansForForecasting",
    "TitansForSequenceClassification",
    "TitansForecaster",
    "TitansForecastingConfig",
    "TitansModel",
    "WritePolicy",
    "__version__",
    "associative_memory",
    "from_preset",
    "initial_state",
    "load_state",
    "presets",
    "register_mixer",
    "save_state",
    "watch",
]

_HOME = {
    "ForecastStream": "titans.forecasting.stream",
    "MemoryConfig": "titans.layers.memory_config",
    "MemoryState": "titans.models.memory_state",
    "MemoryStore": "titans.persistence.store",
    "NeuralMemory": "titans.layers.neural_memory",
    "TitansConfig": "titans.models.configuration",
    "TitansError": "titans.errors",
    "TitansForCausalLM": "titans.models.modeling",
    "TitansForForecasting": "titans.models.forecasting",
    "TitansForSequenceClassification": "titans.models.sequence_classification",
    "TitansForecaster": "titans.forecasting.forecaster",
    "TitansForecastingConfig": "titans.models.forecasting_configuration",
    "TitansModel": "titans.models.modeling",
    "WritePolicy": "titans.models.write_policy",
    "associative_memory": "titans.ops",
    "from_preset": "titans.models.presets",
    "initial_state": "titans.ops",
    "load_state": "titans.persistence.state_file",
    "presets": "titans.models.presets",
    "register_mixer": "titans.layers.registry",
    "save_state": "titans.persistence.state_file",
    "watch": "titans.models.watching",
}


def __getattr__(name: str) -> Any:
    """Import public names when first used, so that `import titans` costs nothing that is not needed."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'titans' has no attribute {name!r}")


_registration.install()
