"""What becomes of each flag of `vllm serve` that is given to `tandem serve`."""
