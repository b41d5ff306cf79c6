"""Has `trust_remote_code=True` find the models of the installed package titans-lm.

Every saved model folder holds a copy of this file. Its classes are the package's, derived because transformers marks
the classes that it loads from a folder, and the package's own must stay unmarked.
"""

import titans


class TitansConfig(titans.TitansConfig):
    """The package's configuration."""


class TitansModel(titans.TitansModel):
    """The package's stack of blocks."""

    config_class = TitansConfig


class TitansForCausalLM(titans.TitansForCausalLM):
    """The package's language model."""

    config_class = TitansConfig
