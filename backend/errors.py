"""The one exception that means: what the user asked for cannot be done."""


class SpecfitError(Exception):
    """Says in one sentence what is wrong, where, and what to do. Commands exit with code 2."""
