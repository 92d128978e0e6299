"""The exceptions of this room: the file a user gave cannot be used, or written."""


class ModelFileError(ValueError):
    """Says in one sentence what is wrong with which model file, and what to do."""


class NoSpaceError(ModelFileError):
    """A file has no room on its disk."""
