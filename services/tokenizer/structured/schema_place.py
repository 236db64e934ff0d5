"""Where in a client's schema something is: for error messages, and for what is ignored."""

from dataclasses import dataclass

from services.rpc.errors import TandemError, invalid

MAX_PATH_CHARACTERS = 200


@dataclass(frozen=True)
class Place:
    """`where` is the client's field; `path` is a JSON pointer (RFC 6901) into its schema, empty for the whole."""

    where: str
    path: str = ""

    def __truediv__(self, key: str | int) -> "Place":
        return Place(self.where, f"{self.path}/{str(key).replace('~', '~0').replace('/', '~1')}")

    @property
    def shown(self) -> str:
        path = self.path or "/"
        return path if len(path) <= MAX_PATH_CHARACTERS else f"{path[:MAX_PATH_CHARACTERS]}…"

    def error(self, message: str) -> TandemError:
        return invalid(f"{self.where}: {self.shown}: {message}", self.where)

    def not_supported(self, keyword: str) -> TandemError:
        return self.error(f'the keyword "{keyword}" is not supported')
