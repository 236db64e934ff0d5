"""The error that ends the worker process."""


class ModelError(Exception):
    """The checkpoint or an option cannot be served. The message is one line: what, why, and what to change."""
