"""vLLM's batch of chats: /v1/chat/completions/batch."""
