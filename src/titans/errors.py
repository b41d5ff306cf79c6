"""The one exception that Titans raises for mistakes its user can correct."""


class TitansError(ValueError):
    """A mistake in what the user handed in: a shape, a configuration, a file, a state or a recipe.

    The message is one clear sentence that says what was wrong, what was expected and what to do. The
    command line prints it without a traceback and exits with status 2.

    Args:
        message: the sentence that the user reads.
    """
