"""A fake server as a process: `python -m tests.loadtest.serving.fake_server --port P --journal FILE ...`.

It lists a model, has no /health, and answers every completion with chunks and usage. Its journal has a line for its
start, with its pid and that of its child, one for each prompt, and one for its end.
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from aiohttp import web

from tests.addresses import HOST

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"


def start_child() -> int:
    child = subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child.pid


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--short", type=int, default=0, help="number of tokens missing from each answer")
    parser.add_argument("--die-at", type=int, default=0, help="this request kills the server; 0: none")
    parser.add_argument("--sick", action="store_true", help="/v1/models answers 503")
    parser.add_argument("--orphan", action="store_true", help="start a child in another session that ignores SIGTERM")
    options = parser.parse_args()
    prompts = 0

    def note(*words: object) -> None:
        with options.journal.open("a") as journal:
            journal.write(" ".join(map(str, (options.name, *words))) + "\n")

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]}, status=503 if options.sick else 200)

    async def complete(request: web.Request) -> web.StreamResponse:
        nonlocal prompts
        body = await request.json()
        prompts += 1
        if prompts == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        note("prompt", hashlib.sha256(json.dumps(body["prompt"]).encode()).hexdigest())
        count = body["max_tokens"] - options.short
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        chunks = [{"choices": [{"index": 0, "text": " word", "finish_reason": None}]}] * 2
        chunks += [{"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}, {"choices": [], "usage": usage}]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    children = [start_child()] if options.orphan else []
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = web.Application()
    app.router.add_get("/v1/models", health)
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, options.port).start()
    note("start", os.getpid(), *children)
    sys.stderr.write("the last line of its log\n")
    sys.stderr.flush()
    await stop.wait()
    await runner.cleanup()
    note("end")
    os._exit(0)  # without ending the child


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
