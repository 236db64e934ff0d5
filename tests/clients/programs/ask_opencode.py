"""opencode: `opencode run` reads and writes files by tools. Its prompts are too much for the demo model, so it asks a
server with a worker that plays given tokens.
"""

import contextlib
import json
import os
import random
import subprocess
from pathlib import Path

from played import call, script
from recorder import recorder
from report import API_KEY, MODEL, URL, check, equal, main, task

COMMAND = Path(__file__).resolve().parent / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
SECONDS = 120.0


def configuration(url):
    """Returns opencode's settings: this server only, no look-ups elsewhere."""
    models = {MODEL: {"name": MODEL, "tool_call": True, "limit": {"context": 200_000, "output": 4096}}}
    options = {"baseURL": f"{url}/v1", "apiKey": API_KEY}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "tandem", "options": options, "models": models}
    model = f"tandem/{MODEL}"
    return {"provider": {"tandem": provider}, "model": model, "small_model": model, "autoupdate": False}


def environment(url):
    home = Path.cwd() / "home"
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    settings = {"OPENCODE_CONFIG_CONTENT": json.dumps(configuration(url)), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    settings |= {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    return os.environ | folders | settings | {"HOME": str(home)}


def run(url, folder, question):
    """Returns the events of `opencode run` in a folder."""
    command = [str(COMMAND), "run", "--format", "json", "--auto", "--dir", str(folder), question]
    ended = subprocess.run(
        command, env=environment(url), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    equal(ended.returncode, 0, f"{ended.stderr[-400:]}\nthe exit status")
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def check_exchanges(exchanges, num_turns):
    """Checks the turns with tools: each request has the calls of the answers before it and, with their ids, results."""
    turns = [one for one in exchanges if one.request.get("tools")]
    equal(len(turns), num_turns, "the number of turns")
    ids = []
    for one in turns:
        check(one.choice is not None, f"the server's answer is {one.problem}")
        messages = one.request["messages"]
        said = [call["id"] for message in messages for call in message.get("tool_calls") or []]
        equal((said, sorted(answered_ids(messages))), (ids, sorted(ids)), "the ids of the calls and of the results")
        calls = one.choice["message"].get("tool_calls") or []
        equal(one.choice["finish_reason"], "tool_calls" if calls else "stop", "finish_reason")
        ids = [*ids, *(call["id"] for call in calls)]
    equal(len(set(ids)), len(ids), "the number of different ids")


def answered_ids(messages):
    return [message["tool_call_id"] for message in messages if message["role"] == "tool"]


@contextlib.contextmanager
def session(name, *answers):
    """Yields (folder, function that runs opencode in it, and returns tool uses and texts). Then checks the turns."""
    folder = Path.cwd() / name
    folder.mkdir()
    with recorder(URL) as (url, recording):

        def ask():
            events = run(url, folder, f"Please work. {script(*answers)}")
            uses = [event["part"] for event in events if event["type"] == "tool_use"]
            return uses, [event["part"]["text"] for event in events if event["type"] == "text"]

        try:
            yield folder, ask
        finally:
            equal([one.problem for one in recording.exchanges() if one.problem], [], "the server's broken answers")
        check_exchanges(recording.exchanges(), len(answers))


@task
def reads_a_file():
    """The last text has the file's, which is planted at random."""
    secret = f"secret {random.getrandbits(64)}"
    read = call("read", filePath=str(Path.cwd() / "read" / "note.txt"))
    with session("read", read, "The file says: {result}") as (folder, ask):
        (folder / "note.txt").write_text(f"{secret}\n")
        (use,), (text,) = ask()
        equal((use["tool"], use["state"]["status"]), ("read", "completed"), "the tool")
        equal(use["state"]["input"], {"filePath": str(folder / "note.txt")}, "the tool's input")
        check(text.startswith("The file says: ") and secret in text, f"the text is {text!r}")


CONTENT = """{"a": [1, {"b": "\\"quoted\\" \\\\ \\u00e9"}]}
<tag>line two</tag>

	Grüße, 世界 🎉 👨‍👩 </tool_call
"""


@task
def writes_a_file_and_runs_a_command():
    """Three turns, the first with text before its call. The written bytes are those of the arguments."""
    path = Path.cwd() / "write" / "out.txt"
    write = f"I write the file.\n{call('write', filePath=str(path), content=CONTENT)}"
    bash = call("bash", command=f"wc -c < {path}", description="Counts bytes")
    with session("write", write, bash, "Bytes: {result}") as (_, ask):
        uses, texts = ask()
        equal([use["tool"] for use in uses], ["write", "bash"], "the tools")
        equal(path.read_text(), CONTENT, "the file")
        equal(texts[0].strip(), "I write the file.", "the text before the call")
        check(str(len(CONTENT.encode())) in texts[-1], f"the text is {texts[-1]!r}")


@task
def two_calls_in_one_turn():
    folder = Path.cwd() / "both"
    reads = [call("read", filePath=str(folder / name)) for name in ("one.txt", "two.txt")]
    with session("both", "\n".join(reads), "Done: {result}") as (_, ask):
        for name in ("one", "two"):
            (folder / f"{name}.txt").write_text(f"this is {name}\n")
        uses, _ = ask()
        outputs = sorted((use["state"]["input"]["filePath"], use["state"]["output"]) for use in uses)
        equal([path for path, _ in outputs], [str(folder / "one.txt"), str(folder / "two.txt")], "the files")
        check("this is one" in outputs[0][1] and "this is two" in outputs[1][1], f"the outputs are {outputs}")


main()
