"""The flags that `tandem bench latency`, `throughput` and `sweep` have in common, each declared once.

The command that adds a flag gives its default, and its name where vLLM's commands differ.
"""

from pathlib import Path

from loadtest.serving.command import COUNT, TOKENS, Parser, number


def add_num_prompts(parser: Parser, default: int, what: str) -> None:
    parser.add_argument(
        "--num-prompts", type=COUNT, default=default, metavar="N", help=f"{what} (default: %(default)s)"
    )


def add_lengths(parser: Parser, input_len: int, output_len: int, prefix: str = "") -> None:
    """Adds --input-len and --output-len, with `prefix` before their names."""
    for name, default, what in (("input-len", input_len, "a prompt"), ("output-len", output_len, "an answer")):
        parser.add_argument(
            f"--{prefix}{name}",
            type=TOKENS,
            default=default,
            metavar="N",
            help=f"tokens of {what} (default: %(default)s)",
        )


def add_warmups(parser: Parser, name: str, default: int, what: str) -> None:
    parser.add_argument(
        name, type=number(int, 0), default=default, metavar="N", help=f"{what}, not measured (default: %(default)s)"
    )


def add_output_json(parser: Parser) -> None:
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="also write the results to this file")
