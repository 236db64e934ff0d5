"""A stream to an engine as a tokenizer has one, message by message in the test's own hands."""

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub


async def open_stream(channel: object, hello: pb.Hello) -> object:
    call = EngineServiceStub(channel).Connect()
    await call.write(engine_pb2.EngineDown(hello=hello))
    await call.read()
    return call


async def next_terminal(call: object) -> engine_pb2.Terminal:
    while True:
        step = (await call.read()).step
        if step.terminals:
            assert len(step.terminals) == 1
            return step.terminals[0]
