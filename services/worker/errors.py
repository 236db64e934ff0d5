"""What a worker cannot go on with."""


class ModelError(Exception):
    """The checkpoint or an option cannot be served as it is; the message says what and why, in one line for people."""


class PlanError(Exception):
    """The plan does not follow from the one before it."""
