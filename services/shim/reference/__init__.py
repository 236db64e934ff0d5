"""The API described by its own code: /openapi.json, /docs and docs/api.md."""
