"""The largest messages of the ZeroMQ edge, in bytes. Imports no ZeroMQ: limits of requests follow from them."""

MAX_RESULT_BYTES = 64 * 2**20  # the result of 65,536 requests with 20 logprobs each has 11 MB
MAX_PLAN_BYTES = 2**30  # 1,024 resumed requests with 256 thousand tokens each fit
