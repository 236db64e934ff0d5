"""vLLM's /tokenize and /detokenize: what the tokenizer makes of texts, chats and ids. Nothing is generated."""
