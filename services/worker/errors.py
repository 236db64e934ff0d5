"""An error that ends the worker process, as services.errors.Fatal does."""


class ModelError(Exception):
    """The checkpoint or an option cannot be served here. The message is one line: what, why, and what to change."""
