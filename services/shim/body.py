"""The body of a request: a JSON object, decoded field by field, so that a field can be passed on as it was written."""

from typing import Any

import msgspec

from services.rpc.errors import TandemError, invalid

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Body:
    """The fields of a JSON object that are not null: null means absent.

    Raises TandemError (INVALID_ARGUMENT) for text that is not JSON, or not an object.
    """

    def __init__(self, text: bytes | bytearray | memoryview) -> None:
        try:
            self._raw = _decode_object(text)
        except msgspec.ValidationError as error:
            raise invalid("the request body is not a JSON object") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error) from error
        try:
            decoded = {name: msgspec.json.decode(value) for name, value in self._raw.items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error) from error
        self.fields: dict[str, Any] = {name: value for name, value in decoded.items() if value is not None}

    def lift(self, name: str) -> None:
        """Makes the fields of the object `name` fields of the body for `json`; `fields` loses the object."""
        self._raw |= _decode_object(self._raw.pop(name))
        del self.fields[name]

    def json(self, name: str, *inner: str) -> bytes:
        """Returns a field, or what is further inside, as the client wrote it, in UTF-8. Raises KeyError if absent."""
        raw = self._raw[name]
        for key in inner:
            raw = _decode_object(raw)[key]
        return bytes(raw)


def _not_json(error: Exception) -> TandemError:
    return invalid(f"the request body is not JSON: {error}")
