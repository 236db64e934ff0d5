"""Errors of a worker: those that end it, and those that end its link to the engine."""


class ModelError(Exception):
    """The checkpoint or an option cannot be served as it is; the message says what and why, in one line for people."""


class PlanError(Exception):
    """The plan is malformed or does not follow from the one before it. The message is one line for people."""
