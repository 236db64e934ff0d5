"""An OpenAI-compatible server without any code of tandem: it streams chunks at known times.

Runs in a thread of the test. The test chooses its faults; the server keeps all request bodies and paths.
"""

import asyncio
import json
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.addresses import HOST, at

Json = dict[str, Any]


@dataclass
class OtherServer:
    """`with OtherServer(...) as server:` serves at server.url."""

    chunks: int = 5
    first: float = 0.04  # seconds before the first chunk
    gap: float = 0.02  # seconds between chunks
    usage: Json | None = None
    api_key: str | None = None
    models: tuple[str, ...] = ("other/model-1",)
    broken: int = 0  # number of first requests that get a 500
    ending: str = "done"  # or cut: closes before the end; error: sends an error event; hold: never ends; or an event
    bodies: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    running: int = 0
    peak: int = 0

    def __enter__(self) -> "OtherServer":
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        self.port: int = runner.addresses[0][1]
        self.url = f"http://{at(self.port)}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def _refuses(self, request: web.Request) -> bool:
        return self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}"

    async def _list_models(self, request: web.Request) -> web.Response:
        if self._refuses(request):
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.paths.append(request.path)
        if self._refuses(request):
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        if len(self.bodies) <= self.broken:
            return web.Response(status=500, text="out of\norder")
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            return await self._stream(request)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        chat = request.path.endswith("/chat/completions")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(data: str) -> None:
            await response.write(f"data: {data}\r\n\r\n".encode())

        async def choice(reason: str | None, text: str, **more: Any) -> None:
            part: Json = {"delta": {"content": text, **more}} if chat else {"text": text}
            await send(json.dumps({"choices": [{"index": 0, "finish_reason": reason, **part}]}))

        await response.write(b": a comment, and no event\n\n")
        if chat:
            await choice(None, "", role="assistant")
        for index in range(self.chunks):
            await asyncio.sleep(self.gap if index else self.first)
            await choice(None, f" word{index}")
        if self.ending == "hold":
            await self._stop.wait()
        if self.ending == "error":
            await send(json.dumps({"error": {"message": "lost my mind", "code": 500}}))
        if self.ending.startswith(("{", "[")):
            await send(self.ending)
        if self.ending == "done":
            await choice("stop", "")
            if self.usage is not None:
                await send(json.dumps({"choices": [], "usage": self.usage}))
            await send("[DONE]")
        return response
