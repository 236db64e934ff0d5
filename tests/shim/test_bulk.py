"""Large fields of submits: what is sent equals the message that was divided, also in a resume."""

from hypothesis import given
from hypothesis import strategies as st

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim import bulk as bulks
from services.shim.bulk import MIN_BULK_BYTES, NO_BULK, BulkDown, BulkEntry, BulkSubmit, split, submit_entry, text_down
from services.shim.text_call import TextCall
from services.shim.updates import UpdateMailbox
from tests.rpc.pipeline import silent_telemetry

TEXT = "x" * MIN_BULK_BYTES


def submits() -> list[text_pb2.TextSubmit]:
    small = text_pb2.TextSubmit(seed=5, choices=[pb.Choice(handle=3)], cache_salt="salt")
    return [
        text_pb2.TextSubmit(text=text_pb2.TextInput(text=TEXT), output=text_pb2.OutputSpec(stop=["a"])),
        text_pb2.TextSubmit(chat=text_pb2.ChatInput(messages_json=TEXT.encode())),
        text_pb2.TextSubmit(chat=text_pb2.ChatInput(), output=text_pb2.OutputSpec(tools_json=TEXT.encode())),
        text_pb2.TextSubmit(text=text_pb2.TextInput(text=TEXT), output=text_pb2.OutputSpec(tools_json=TEXT.encode())),
        small,
    ]  # fmt: skip


def test_a_divided_submit_is_sent_as_it_was() -> None:
    for whole in submits():
        whole.choices.add(handle=7)
        divided = text_pb2.TextSubmit()
        divided.CopyFrom(whole)
        bulk = split(divided)
        assert divided.ByteSize() < 1000
        assert (bulk is NO_BULK) == (whole == divided)
        entry = submit_entry(BulkSubmit(divided, bulk))
        abort = text_pb2.TextEntry(abort=pb.Abort(handle=9))
        down = text_down(entries=[abort, entry, abort])
        found = text_pb2.TextDown.FromString(down.SerializeToString())
        assert list(found.entries) == [abort, text_pb2.TextEntry(submit=whole), abort]
        assert isinstance(entry, BulkEntry) and entry.ByteSize() == len(entry.wire)


def test_a_large_submit_is_not_copied_once_it_is_an_entry() -> None:
    divided = submits()[0]
    entry = BulkEntry(BulkSubmit(divided, split(divided)))
    assert BulkDown([entry]).SerializeToString() is entry.wire


def test_messages_without_bulk_are_protobufs() -> None:
    assert isinstance(text_down(entries=[submit_entry(submits()[-1])]), text_pb2.TextDown)
    assert text_down(hello=pb.Hello(role="shim")) == text_pb2.TextDown(hello=pb.Hello(role="shim"))


def test_a_resume_sends_the_ids_instead_of_the_input() -> None:
    whole = submits()[3]
    whole.choices.add(handle=7)
    expected = text_pb2.OutputSpec()
    expected.CopyFrom(whole.output)
    bulk = split(whole)
    call = TextCall(whole, 0, UpdateMailbox(), silent_telemetry(), bulk)

    def sent() -> text_pb2.TextSubmit:
        entry = submit_entry(call.next_submit(alone=False, on_cleared=lambda: None))
        (found,) = text_pb2.TextDown.FromString(text_down(entries=[entry]).SerializeToString()).entries
        return found.submit

    assert (sent().text.text, sent().attempt) == (TEXT, 2)
    call._telemetry.submitted(1)
    call.on_accepted(text_pb2.TextAccepted(handle=7, prompt_token_ids=pack_u32([1, 2]), seed=4))
    resumed = sent()
    assert resumed.WhichOneof("input") == "prompt_token_ids" and resumed.prompt_token_ids == pack_u32([1, 2])
    assert (resumed.seed, resumed.attempt, resumed.output) == (4, 3, expected)


@given(st.integers(0, 2**35))
def test_numbers_are_written_as_protobuf_does(number: int) -> None:
    written = pb.Error(retry_after=number % 2**32).SerializeToString()
    assert written[1:] == (bulks._varint(number % 2**32) if number % 2**32 else b"")
