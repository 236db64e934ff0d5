"""Malformed messages for fuzzing: valid bytes with mutations, and protobuf messages with unexpected values.

All randomness comes from the generator that is passed in.
"""

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from services.rpc.columns import pack_u32

TRAPS = [b"\xdd\xff\xff\xff\xff", b"\x91" * 600, b"\xff" * 10, b"\x7f" * 40]  # huge claimed lengths, deep nesting


def mutated(valid: bytes, rng: random.Random) -> bytes:
    """Returns the bytes with one to four mutations: changed, removed, repeated, inserted or only random bytes."""
    content = bytearray(valid)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content) + 1)
        match rng.randrange(6):
            case 0 if content:
                content[place % len(content)] = rng.randrange(256)
            case 1:
                del content[place:]
            case 2:
                content[place:place] = rng.randbytes(rng.randint(1, 8))
            case 3:
                content += content[place : place + 64]
            case 4:
                content[place:place] = rng.choice(TRAPS)
            case _:
                content = bytearray(rng.randbytes(rng.randint(0, 64)))
    return bytes(content)


def set_odd_values(message: Message, rng: random.Random) -> None:
    """Sets some fields, also of inner messages, to unexpected values of the right type."""
    for field in message.DESCRIPTOR.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map or rng.random() < 0.6:
            continue
        if field.is_repeated:
            message.ClearField(field.name)
            for _ in range(rng.choice([1, 2] if field.type == field.TYPE_MESSAGE else [1, 2, 200])):
                _set_odd_value(message, field, rng)
        else:
            _set_odd_value(message, field, rng)


def _set_odd_value(message: Message, field: FieldDescriptor, rng: random.Random) -> None:
    if field.type == field.TYPE_MESSAGE:
        value = getattr(message, field.name)
        set_odd_values(value.add() if field.is_repeated else value, rng)
        return
    choices: dict[int, list[Any]] = {
        field.TYPE_STRING: ["", "x" * 3000, "[" * 3000, "{{ 1 }}", '[{"role": "user", "content": null}]', "\0"],
        field.TYPE_BYTES: [b"", b"\1", b"\xff" * 4, b"\0" * 400, pack_u32([5, 6]), pack_u32([2**31])],
        field.TYPE_BOOL: [True, False],
        field.TYPE_FLOAT: [0.0, -1.0, math.nan, math.inf, 1e30],
        field.TYPE_ENUM: [0, 1, 4, 77],
        field.TYPE_UINT32: [0, 1, 2, 2**31, 2**32 - 1],
        field.TYPE_UINT64: [0, 1, 2**63, 2**64 - 1],
        field.TYPE_INT32: [0, -1, -(2**31), 2**31 - 1],
        field.TYPE_SINT32: [0, -1, -(2**31), 2**31 - 1],
    }
    value = rng.choice(choices[field.type])
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)
