"""The clients: which packages each one needs, and which program in programs/ drives it.

A client of pip names its packages with exact versions; pins/NAME.txt has what these require in turn. A client of npm
has package.json and package-lock.json in pins/NAME/. Imports only the standard library.
"""

import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINS, PROGRAMS = HERE / "pins", HERE / "programs"
SECONDS = 300.0  # for all tasks of a program
TYPE_PAGE = "type_page.py"


@dataclass(frozen=True)
class PipClient:
    """`requirements` are exact, and the first is the client itself.

    The program of a `gateway` also gets the address of tandem's gateway API and the pid of `tandem serve`. A client
    that is `played` asks a server with a worker that plays given tokens (player.py) instead of the demo model. A client
    with `options` asks a `tandem serve` that has them on its command line.
    """

    name: str
    requirements: tuple[str, ...]
    program: str
    torch: bool = False  # install torch first, from the index that TORCH_INDEX names
    seconds: float = SECONDS
    sections: tuple[str, ...] = ()  # of docs/grpc.md, which the program types
    gateway: bool = False
    played: bool = False
    options: tuple[str, ...] = ()

    @property
    def pins(self) -> Path:
        return PINS / f"{self.name}.txt"

    @property
    def pin_files(self) -> tuple[Path, ...]:
        return (self.pins,)

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


@dataclass(frozen=True)
class NpmClient:
    """The version of `package` stands for the client's."""

    name: str
    package: str
    program: str
    seconds: float = SECONDS
    sections: tuple[str, ...] = ()  # as in PipClient
    gateway: bool = False
    played: bool = False
    options: tuple[str, ...] = ()

    @property
    def pins(self) -> Path:
        return PINS / self.name

    @property
    def pin_files(self) -> tuple[Path, ...]:
        return (self.pins / "package.json", self.pins / "package-lock.json")

    @property
    def version(self) -> str:
        dependencies = json.loads((self.pins / "package.json").read_text())["dependencies"]
        return str(dependencies[self.package])


@dataclass(frozen=True)
class WheelClient:
    """tandem's own package, built from this checkout without compiled kernels, within constraints.txt."""

    name: str
    program: str
    sections: tuple[str, ...]
    seconds: float = SECONDS
    package: str = "tandem-llm"
    gateway: bool = False
    played: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommandClient:
    """A command that is not installed here: its program runs if the command is on the PATH."""

    name: str
    command: str
    program: str
    seconds: float = SECONDS
    sections: tuple[str, ...] = ()
    gateway: bool = False
    played: bool = False
    options: tuple[str, ...] = ()


Client = PipClient | NpmClient | WheelClient | CommandClient

CLIENTS: tuple[Client, ...] = (
    PipClient("openai", ("openai==3.52.0",), "ask_openai.py"),
    NpmClient("openai-node", "openai", "ask_openai.mjs"),
    PipClient("langchain", ("langchain-openai==1.7.3", "langchain==1.4.7"), "ask_langchain.py"),
    PipClient("langgraph", ("langgraph==1.2.22", "langchain-openai==1.7.3"), "ask_langgraph.py"),
    PipClient("litellm", ("litellm==1.106.2", "mcp==2.3.0"), "ask_litellm.py"),  # with tools, it imports mcp
    PipClient("llamaindex", ("llama-index-llms-openai-like==0.8.1",), "ask_llamaindex.py"),
    PipClient("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",), "ask_pydantic_ai.py"),
    PipClient("openai-agents", ("openai-agents==0.24.0",), "ask_openai_agents.py"),
    PipClient("haystack", ("haystack-ai==3.4.0",), "ask_haystack.py"),
    PipClient("autogen", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"), "ask_autogen.py"),
    PipClient("semantic-kernel", ("semantic-kernel==1.45.0",), "ask_semantic_kernel.py"),
    PipClient("agno", ("agno==3.1.10", "openai==3.52.0"), "ask_agno.py"),
    PipClient("crewai", ("crewai==1.15.30",), "ask_crewai.py", played=True),
    PipClient("dspy", ("dspy==3.4.1",), "ask_dspy.py"),
    PipClient("inspect", ("inspect-ai==0.3.285", "openai==3.52.0"), "ask_inspect.py"),
    PipClient("instructor", ("instructor==1.17.0",), "ask_instructor.py"),
    PipClient("outlines", ("outlines==1.3.3", "openai==3.52.0"), "ask_outlines.py"),
    PipClient("guidance", ("guidance==0.3.1", "openai==3.52.0"), "ask_guidance.py"),
    PipClient("smolagents", ("smolagents[openai]==1.26.0",), "ask_smolagents.py"),
    PipClient("strands", ("strands-agents[openai]==1.62.0",), "ask_strands.py"),
    NpmClient("ai", "ai", "ask_ai.mjs"),
    # The package opencode-ai only selects one of these by the platform.
    NpmClient("opencode", "opencode-linux-x64", "ask_opencode.py", played=True),
    PipClient("guidellm", ("guidellm==0.8.1",), "bench_guidellm.py", torch=True, seconds=600.0),
    PipClient(
        "lm-eval",
        ("lm-eval[hf,api]==0.4.13",),
        "eval_lm_eval.py",
        torch=True,
        options=("--dtype", "float32"),  # as its own model `hf`, with which the server's scores are compared
    ),
    PipClient("aiperf", ("aiperf==0.13.0",), "bench_aiperf.py", seconds=600.0),
    PipClient(
        "grpcio",
        ("grpcio==1.85.1", "grpcio-tools==1.85.1", "googleapis-common-protos==1.76.0"),
        TYPE_PAGE,
        sections=("Python with grpcio alone", "Statuses", "Resuming by hand"),
    ),
    PipClient(
        "grpcio-reflection",
        ("grpcio-reflection==1.85.1", "grpcio==1.85.1"),
        TYPE_PAGE,
        sections=("Listing by reflection",),
    ),
    NpmClient("grpc-node", "@grpc/grpc-js", TYPE_PAGE, sections=("Node",)),
    WheelClient("tandem", TYPE_PAGE, ("The packaged client",)),
    PipClient("smg", ("smg==1.13.0",), "front_smg.py", gateway=True),
    CommandClient("vllm", "vllm", "bench_vllm.py", seconds=600.0),
)
