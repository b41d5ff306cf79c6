"""Has `trust_remote_code=True` find the models of the installed package titans-lm.

Every saved model folder holds a copy of this file. Its classes are the package's, derived because transformers marks
the classes that it loads from a folder, and the package's own must stay unmarked.
"""

try:  # so that transformers, which looks for other imports beforehand, does not tell people to install "titans"
    from titans import TitansConfig as Config
    from titans import TitansForCausalLM as ForCausalLM
    from titans import TitansForecastingConfig as ForecastingConfig
    from titans import TitansForForecasting as ForForecasting
    from titans import TitansForSequenceClassification as ForSequenceClassification
    from titans import TitansModel as Model
except ImportError as error:
    raise ImportError(f"this model needs the package titans-lm ({error}): pip install titans-lm") from error


class TitansConfig(Config):
    """The package's configuration."""


class TitansModel(Model):
    """The package's stack of blocks."""

    config_class = TitansConfig


class TitansForCausalLM(ForCausalLM):
    """The package's language model."""

    config_class = TitansConfig


class TitansForSequenceClassification(ForSequenceClassification):
    """The package's classifier of sequences."""

    config_class = TitansConfig


class TitansForecastingConfig(ForecastingConfig):
    """The package's configuration of a forecasting model."""


class TitansForForecasting(ForForecasting):
    """The package's forecasting model."""

    config_class = TitansForecastingConfig
