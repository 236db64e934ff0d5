"""--root-path: the prefix under which clients reach the server through a proxy, which may strip it or not."""

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """ASGI middleware that removes the prefix, if it is there: all else, the check of keys included, sees paths without
    it. It is the outermost."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if path.startswith(f"{self._prefix}/"):
            scope["path"] = path[len(self._prefix) :]
        await self._app(scope, receive, send)
