"""Draws docs/trace.svg: the spans of one chat request, as an OTLP collector receives them from a running server.

    .venv/bin/python -m docs.draw_trace

Starts `tandem serve` with the demo model. Serves three requests to warm up, then draws the spans of the fourth.
"""

import uuid
from pathlib import Path

from tests.e2e.api import CHAT
from tests.e2e.collector import Collector, Span
from tests.e2e.harness import Server, wait_for

PROMPTS = ("Count from 1 to 5.", "What is 17 + 25?", "Hello!", "Count from 1 to 9.")
NUM_SPANS = 8
COLORS = {"shim": "#4c78a8", "tokenizer": "#f58518", "engine": "#54a24b", "worker": "#b279a2"}
LEFT, WIDTH, RIGHT = 200, 560, 100  # pixels: names, bars, milliseconds
ROW, BAR, TOP = 26, 16, 34


def main() -> None:
    with Collector() as collector, Server(f"--otlp-traces-endpoint={collector.endpoint}") as server:
        for prompt in PROMPTS:
            trace_id = uuid.uuid4().hex
            body = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "max_tokens": 64}
            parent = {"traceparent": f"00-{trace_id}-{'1' * 16}-01"}
            server.post(CHAT, body, headers=parent).raise_for_status()

        def found() -> list[Span]:
            spans = [span for span in collector.spans if span.trace_id == trace_id]
            return spans if len(spans) >= NUM_SPANS else []

        spans = sorted(wait_for(found, f"{NUM_SPANS} spans"), key=lambda span: (span.start, -span.end))
    Path(__file__).with_name("trace.svg").write_text(svg(spans), encoding="utf-8")


def svg(spans: list[Span]) -> str:
    """Returns an SVG with a bar for each span; colors name the processes. The first span must contain all others."""
    root = spans[0]
    scale = WIDTH / (root.end - root.start)
    height = TOP + ROW * len(spans) + 8
    width = LEFT + WIDTH + RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, (role, color) in enumerate(COLORS.items()):
        left = LEFT + index * 110
        parts.append(f'<rect x="{left}" y="10" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{left + 18}" y="21">{role}</text>')
    for index, span in enumerate(spans):
        y = TOP + index * ROW
        x, length = LEFT + (span.start - root.start) * scale, max((span.end - span.start) * scale, 1.0)
        color = COLORS[span.instance.split("-")[0]]
        parts.append(f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{span.name}</text>')
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>')
        milliseconds = f"{(span.end - span.start) / 1e6:.1f} ms"
        parts.append(f'<text x="{x + length + 6:.1f}" y="{y + 13}">{milliseconds}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
