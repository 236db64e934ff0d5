"""The worker process, one per accelerator: runs step plans, returns sampled token ids. No text, HTTP or scheduling."""
