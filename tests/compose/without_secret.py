"""Runs in a container on the network of compose.yaml, with tandem installed but without the secret.

Tries every port with every protocol, and prints one JSON object: attempt -> whether the port answered.
"""

import json
import secrets
import urllib.error
import urllib.request

import grpc
import zmq
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine_core.worker_messages import PROTOCOL, WorkerHello, encode
from services.security import curve, tls
from services.security.credential_files import TLS_OPTIONS
from services.security.secret import ClusterSecret

SECONDS = 3
GUESS = ClusterSecret(secrets.token_bytes(32))


def http(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def rpc(channel: grpc.Channel) -> bool:
    with channel:
        try:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
            return True
        except grpc.RpcError as error:
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def zeromq(address: str, *, guessing: bool) -> bool:
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        if guessing:
            curve.configure_client(peer, GUESS)
        peer.connect(f"tcp://{address}")
        peer.send(encode(WorkerHello(PROTOCOL, 1, 0)))
        return bool(peer.poll(1000 * SECONDS))


answers = {f"shim {path}": http(f"http://shim:8000{path}") for path in ("/health", "/metrics", "/v1/models")}
for role, port in (("tokenizer", 9001), ("engine", 9002), ("worker", 9003)):
    answers |= {f"{role} {path}": http(f"http://{role}:{port}{path}") for path in ("/health", "/metrics")}
for address in ("tokenizer:8001", "engine:8002"):
    credentials = tls.channel_credentials(GUESS)
    answers[f"{address} without TLS"] = rpc(grpc.insecure_channel(address))
    answers[f"{address} with another secret"] = rpc(grpc.secure_channel(address, credentials, TLS_OPTIONS))
for guessing in (False, True):
    answers[f"engine:8003 {'with another secret' if guessing else 'without CURVE'}"] = zeromq(
        "engine:8003", guessing=guessing
    )
print(json.dumps(answers))
