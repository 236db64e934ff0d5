"""The tokenizer process: messages and text down to token ids, token ids back up to text. Never loads torch."""
