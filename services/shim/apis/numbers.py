"""Numbers as the APIs write them."""

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON lacks; OpenAI's value


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def as_written(value: float) -> float:
    """Returns a float32 as a short decimal: 0.7 instead of 0.699999988079071."""
    return float(f"{value:.7g}")
