"""The version of tandem, and of what its processes say to each other over gRPC. Imports nothing."""

VERSION = "0.1.0"
PROTOCOL = 9  # 9: workers keep the first KV cache's size, in the record that the launcher keeps as well
