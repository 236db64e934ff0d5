"""A tokenizer's stream to an engine. The test writes and reads its messages one by one."""

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub


async def open_stream(channel: object, hello: pb.Hello) -> object:
    """Opens a stream to the engine at `channel`. Returns it after the exchange of hellos."""
    call = EngineServiceStub(channel).Connect()
    await call.write(engine_pb2.EngineDown(hello=hello))
    await call.read()
    return call


async def next_accepted(call: object) -> engine_pb2.Accepted:
    """Reads messages until one accepts a choice."""
    while not (found := (await call.read()).step.accepted):
        pass
    return found[0]


async def next_terminal(call: object) -> engine_pb2.Terminal:
    """Reads messages until one has a terminal (the end of a choice), and returns the terminal."""
    while True:
        step = (await call.read()).step
        if step.terminals:
            assert len(step.terminals) == 1
            return step.terminals[0]


def short_request(handle: int, *, alone: bool = False) -> engine_pb2.EngineDown:
    """Returns a submit with one prompt token and three output tokens. `alone`: it starts alone, as a suspect."""
    submit = engine_pb2.Submit(
        attempt=1,
        prompt_token_ids=pack_u32([5]),
        choices=[pb.Choice(handle=handle)],
        sampling=pb.SamplingParams(max_tokens=3, ignore_eos=True),
        alone=alone,
    )
    return engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)])
