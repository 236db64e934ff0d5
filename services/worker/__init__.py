"""The worker: one per accelerator. Step plans in, sampled token ids out. Knows no text, no HTTP, no scheduling."""
