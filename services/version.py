"""The version of tandem, and of what its processes say to each other over gRPC. Imports nothing."""

VERSION = "0.1.0"
PROTOCOL = 8  # 8: messages say whether new requests are accepted; an older process would be taken for one that refuses
