"""The shim process: OpenAI JSON over HTTP to typed requests, text back to JSON and SSE. Token ids are opaque."""
