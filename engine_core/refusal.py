"""The exception for a request that the core does not take."""


class RequestRefused(ValueError):
    """The request cannot be served. `param` is the field at fault; the text says why.

    `exceeds_context`: prompt and answer are longer than the model's context, so a shorter request may be served.
    """

    def __init__(self, param: str, message: str, *, exceeds_context: bool = False) -> None:
        super().__init__(message)
        self.param = param
        self.exceeds_context = exceeds_context
