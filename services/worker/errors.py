"""What ends a worker before it serves: one line for people."""


class ModelError(Exception):
    """The checkpoint or an option cannot be served as it is; the message says what and why."""
