"""The version of tandem, and of what its processes say to each other over gRPC. Imports nothing."""

VERSION = "0.1.0"
PROTOCOL = 7  # 7: heartbeats; an older process sends none, and would be taken for hung
