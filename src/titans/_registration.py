"""Make Titans known to Hugging Face's Auto classes, without importing transformers for those who do not use it.

`import titans` must be enough for `AutoModelForCausalLM.from_pretrained` to know a Titans folder, and must not cost the
seconds that importing transformers takes. So where transformers is not loaded yet, registration waits until it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

CONFIGURATIONS = "transformers.models.auto.configuration_auto"
MODELS = "transformers.models.auto.modeling_auto"
# What our models import. Each may be half-way through importing MODELS when that is done, and only
# then, once the last of them is complete, can our models be imported.
NEEDED = (
    MODELS,
    "transformers.generation.utils",
    "transformers.modeling_layers",
    "transformers.modeling_utils",
)
OURS = (
    "titans.models.stack",
    "titans.models.modeling",
    "titans.models.sequence_classification",
    "titans.models.forecasting",
)


def install() -> None:
    """Register what can be registered now, and watch for the rest."""
    register()
    sys.meta_path.insert(0, _Watcher())


def register(executed: str = "") -> None:
    """Register the configuration and the models with those Auto classes that are loaded.

    Args:
        executed: a module that counts as complete, though its import is still being wound up.
    """

    def complete(name: str) -> bool:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        return name == executed or not getattr(spec, "_initializing", False)

    if CONFIGURATIONS in sys.modules and complete(CONFIGURATIONS):
        configuration = importlib.import_module("titans.models.configuration")
        forecasting = importlib.import_module("titans.models.forecasting_configuration")
        for config in (configuration.TitansConfig, forecasting.TitansForecastingConfig):
            sys.modules[CONFIGURATIONS].__dict__["AutoConfig"].register(config.model_type, config, exist_ok=True)
    if MODELS in sys.modules and all(complete(name) for name in (*NEEDED, *OURS)):
        modeling = importlib.import_module("titans.models.modeling")
        auto = sys.modules[MODELS].__dict__
        auto["AutoModel"].register(modeling.TitansConfig, modeling.TitansModel, exist_ok=True)
        auto["AutoModelForCausalLM"].register(modeling.TitansConfig, modeling.TitansForCausalLM, exist_ok=True)
        classification = importlib.import_module("titans.models.sequence_classification")
        auto["AutoModelForSequenceClassification"].register(
            modeling.TitansConfig, classification.TitansForSequenceClassification, exist_ok=True
        )
        forecasting = importlib.import_module("titans.models.forecasting")
        auto["AutoModel"].register(forecasting.TitansForecastingConfig, forecasting.TitansForForecasting, exist_ok=True)


class _Watcher(MetaPathFinder):
    """Has `register` called after each watched module has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (CONFIGURATIONS, *NEEDED, *OURS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(Loader):
    """Loads a module as its own loader does, then registers."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        register(module.__name__)
