"""The one exception of this room that means: the file a user gave cannot be used."""


class ModelFileError(ValueError):
    """Says in one sentence what is wrong with which model file, and what to do."""
