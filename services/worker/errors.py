"""The error that ends a worker."""


class ModelError(Exception):
    """The checkpoint or an option cannot be served as it is; the message says what and why, in one line for people."""
