"""The options of every gRPC channel: large messages, and keepalive pings that detect a dead peer in three seconds.

`grpc.keepalive_timeout_ms` has no effect in grpcio 1.85, so `grpc.http2.ping_timeout_ms` is set instead.
https://grpc.github.io/grpc/core/group__grpc__arg__keys.html
"""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
SHARED_OPTIONS = [  # of channels and servers
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CHANNEL_OPTIONS = [
    *SHARED_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]
