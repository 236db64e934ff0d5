"""A worker process without a model. It speaks the real ZeroMQ messages of a worker.

With --step-ms it answers one plan per step time, as an accelerator would. With 0 it answers as soon as the client has
received all but the last few tokens; a worker further ahead would only fill queues. At the end it writes when it sent
each token: an array [streams, tokens] of nanoseconds on CLOCK_MONOTONIC, which all processes of a machine share.
"""

import argparse
import signal
import sys
import time

import numpy as np
import numpy.typing as npt

from engine_core.kv_groups import FULL
from engine_core.step_plan import StepPlan, unpack_i32
from engine_core.worker_messages import ModelFacts, SamplingDefaults
from loadtest.engine.simulated_worker import SimulatedWorker
from services.process.shell import exit_with_parent
from services.security.secret import read_secret
from services.worker.engine_link import EngineGone, EngineLink

BLOCK_SIZE = 16
VOCAB_SIZE = 1024
PROMPT_LEN = 2
REQUEST_LEN = 1024  # tokens that a request of request_client.py has at most
NO_STREAM = -1
MAX_AHEAD = 4  # tokens of each stream that are sent but not received, without --step-ms
POLL_SECONDS = 0.0005  # between two reads of the received count
DIGIT_0, BASE = 300, 700  # a prompt is its stream's number in base 700; each digit is a token of whole characters


def prompt_of(stream: int) -> list[int]:
    """Returns the token ids [PROMPT_LEN] that stand for the number of a stream."""
    return [DIGIT_0 + digit for digit in divmod(stream, BASE)]


def facts(num_streams: int, num_tokens: int) -> ModelFacts:
    """Returns the facts of a model, as a worker registers it. Its KV cache has room for all streams together."""
    max_model_len = max(PROMPT_LEN + num_tokens + 1, REQUEST_LEN)
    return ModelFacts(
        served_model_names=("instant",),
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(),
        block_size=BLOCK_SIZE,
        num_blocks=num_streams * (max_model_len // BLOCK_SIZE + 2),
        kv_groups=(FULL,),
        max_logprobs=0,
        sampling_defaults=SamplingDefaults(),
        tokenizer_digest="",
        numerics_id="instant",
        weights_version="instant",
    )


class SendTimes:
    """When each token of a stream was sent: `sent` [streams, tokens] in ns; 0 for a token that was not sent.

    A request whose prompt names no stream has no times.
    """

    def __init__(self, num_streams: int, num_tokens: int) -> None:
        self.sent = np.zeros((num_streams, num_tokens), dtype=np.int64)
        self.num_sent = 0
        self._streams = np.zeros(num_streams, dtype=np.int32)  # by slot

    def record(self, plan: StepPlan, moment: int) -> None:
        """Records `moment`, in ns, for each token that `plan` samples."""
        for new in plan.new_requests:
            prompt = unpack_i32(new.prompt_token_ids) - DIGIT_0
            self._streams[new.slot] = prompt[0] * BASE + prompt[1] if len(prompt) == PROMPT_LEN else NO_STREAM
        sampled = np.flatnonzero(unpack_i32(plan.sampled))
        rows = sampled[self._streams[unpack_i32(plan.slots)[sampled]] != NO_STREAM]
        streams = self._streams[unpack_i32(plan.slots)[rows]]
        self.sent[streams, unpack_i32(plan.output_indices)[rows]] = moment
        self.num_sent += len(rows)


def received_count(file: str) -> npt.NDArray[np.int64]:
    """Returns the number of tokens that the client has received: [1], in memory shared by all that map `file`."""
    return np.memmap(file, dtype=np.int64, mode="r+", shape=(1,))


def run(link: EngineLink, args: argparse.Namespace, times: SendTimes) -> None:
    """Registers, then answers plans and records in `times` when. Never returns: raises EngineGone when the connection
    is lost, and Fatal if the engine refuses the worker for good."""
    received = received_count(args.received_file)
    worker = SimulatedWorker(args.num_streams, np.array(args.token_ids, dtype=np.int32))
    due = 0.0
    link.hello()
    link.limits()
    link.register(facts(args.num_streams, args.num_tokens))
    while True:
        plan = link.next_plan()
        result = worker.execute(plan)
        if args.step_ms:
            due = max(due, time.monotonic()) + args.step_ms / 1000  # a step begins when the last one has ended
            time.sleep(max(0.0, due - time.monotonic()))
        while not args.step_ms and times.num_sent - received[0] > MAX_AHEAD * args.num_streams:
            time.sleep(POLL_SECONDS)
        moment = time.monotonic_ns()
        link.done(result)
        times.record(plan, moment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, help="ZeroMQ endpoint of the engine")
    parser.add_argument("--cluster-secret-file", help="needed for a TCP endpoint")
    parser.add_argument("--file", required=True, help="receives the send times, as .npy")
    parser.add_argument("--received-file", required=True, help="holds the number of tokens received by the client")
    parser.add_argument("--num-streams", type=int, required=True)
    parser.add_argument("--num-tokens", type=int, required=True, help="of each stream")
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--token-ids", type=int, nargs="+", required=True, help="tokens of every answer")
    parser.add_argument("--parent-death-fd", type=int, required=True)
    parser.add_argument("--progress-fd", type=int, help="not used: this worker counts no progress")
    args = parser.parse_args()
    exit_with_parent(args.parent_death_fd)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    times = SendTimes(args.num_streams, args.num_tokens)
    secret = read_secret(args.cluster_secret_file) if args.cluster_secret_file else None
    link = EngineLink(args.engine, secret)
    try:
        run(link, args, times)
    except EngineGone:
        pass
    finally:
        np.save(args.file, times.sent)
        link.close()


if __name__ == "__main__":
    main()
