"""`python -m tests.zeromq.flooded`: a socket with the options of this edge reads little, while one peer after the other
sends much and goes away. libzmq aborts this process if it has stopped reading from such a peer."""

import zmq

from services.zeromq.socket_options import prepare

NUM_PEERS, NUM_FRAMES, READ, PAUSE_MS = 14, 3000, 500, 100  # libzmq stops at 1,000 frames by default


def main() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        prepare(socket, 2**20)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(NUM_PEERS):
            with zmq.Context() as own, own.socket(zmq.DEALER) as peer:
                prepare(peer, 2**20)
                peer.setsockopt(zmq.LINGER, 0)
                peer.setsockopt(zmq.SNDHWM, 0)
                peer.connect(f"tcp://127.0.0.1:{port}")
                for _ in range(NUM_FRAMES):
                    peer.send(b"x" * 100)
                assert not peer.poll(PAUSE_MS), "an answer came"
            for _ in range(READ):  # the peer is gone
                socket.recv_multipart()
        while socket.poll(300):
            socket.recv_multipart()
    print("survived")


if __name__ == "__main__":
    main()
