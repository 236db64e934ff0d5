"""The processes: shim, tokenizer, engine, worker, and the launcher that runs them as one tree."""
