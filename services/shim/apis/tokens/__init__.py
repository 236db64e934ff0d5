"""vLLM's token in, token out: /inference/v1/generate."""
