"""The settings that several processes have: logs, traces, secret, metrics, model files.

Each role's options class (services/options/declarations.py) derives from these classes.
"""

from dataclasses import dataclass

from services.options.setting import boolean, host_and_port, setting

DEMO_MODEL = "demo"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
RESUME_WAIT = 30.0  # seconds


@dataclass(frozen=True)
class ProcessOptions:
    """Options of every process: logs, traces, and the pipe that ends it when the launcher dies."""

    log_level: str = setting("info", "lowest level that is logged", choices=LOG_LEVELS)
    log_format: str = setting("text", "log lines as text, or as one JSON object each", choices=LOG_FORMATS)
    otlp_traces_endpoint: str | None = setting(
        None,
        "OTLP/gRPC URL that traces are sent to, for example http://localhost:4317",
        unset="no traces",
        env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    parent_death_fd: int | None = setting(
        None,
        "file descriptor of a pipe; at its end of file this process exits",
        unset="none",
        parse=int,
        internal=True,
    )
    progress_fd: int | None = setting(
        None,
        "file descriptor of shared memory in which this process counts its progress",
        unset="none",
        parse=int,
        internal=True,
    )


@dataclass(frozen=True)
class SecretOptions:
    """Options for the secret that authenticates the processes of a deployment to each other: in a file, or itself."""

    cluster_secret_file: str | None = setting(
        None,
        "file with the secret (at least 32 bytes) that all processes of a deployment share; connections over TCP need"
        " it. TANDEM_CLUSTER_SECRET holds the secret itself",
        unset="no secret",
        internal=True,
        env=("TANDEM_CLUSTER_SECRET_FILE",),
    )
    cluster_secret: str | None = setting(
        None, "the secret itself", unset="none", internal=True, env=("TANDEM_CLUSTER_SECRET",), in_environment_only=True
    )


@dataclass(frozen=True)
class ClusterOptions(ProcessOptions, SecretOptions):
    """Options of every role: logs, traces, the secret, the token of /metrics."""

    metrics_token_file: str | None = setting(
        None,
        "file with the bearer token that /metrics of tokenizer, engine and worker requires; by default it is derived"
        " from the secret, and not required on a loopback address",
        unset="derived",
        internal=True,
    )


@dataclass(frozen=True)
class RecoveryOptions:
    """Options of the roles that have requests: how long these wait for a restart, and how long a stop waits for
    them."""

    resume_wait: float = setting(
        RESUME_WAIT,
        "seconds that new requests wait while a process that they need restarts, before they get HTTP status 503;"
        " requests that run wait for it without a limit. Loading the model should take less",
        parse=float,
        low=0.0,
        high=86400.0,
    )
    shutdown_timeout: float = setting(
        25.0,
        "seconds that requests have to end after SIGTERM or Ctrl-C, while new ones get HTTP status 503; 0: they are cut"
        " at once. A second signal cuts them, too",
        parse=float,
        low=0.0,
        high=86400.0,
    )


@dataclass(frozen=True)
class GrpcOptions:
    """Options of the roles with a gRPC server that programs may call."""

    grpc_reflection: bool = setting(True, "describe the gRPC services to clients that ask (reflection)", parse=boolean)


@dataclass(frozen=True)
class MetricsOptions(ClusterOptions):
    """Options of the roles that serve no HTTP API: where their metrics server listens."""

    metrics_listen: str | None = setting(
        None,
        "address of the metrics server (/metrics, /live, /ready, /health), host:port; port 0 picks a free one; by"
        " default it listens on the loopback address only",
        unset="a free port",
        parse=host_and_port,
        internal=True,
    )
    metrics_fd: int | None = setting(
        None, "listening socket to use instead of --metrics-listen", unset="none", parse=int, internal=True
    )


@dataclass(frozen=True)
class SpareOptions(MetricsOptions):
    """Options of the roles that may have a spare process (services/process/spare.py)."""

    spare_fd: int | None = setting(
        None,
        "file descriptor of a socket; the process loads what it can, then waits there for its place",
        unset="none",
        parse=int,
        internal=True,
    )
    load_gently: bool = setting(False, "load at a low priority: nothing waits for it yet", parse=boolean, internal=True)


@dataclass(frozen=True)
class ListenOptions(SpareOptions):
    """Options of the roles that serve gRPC to other roles."""

    listen: str = setting("", "address to listen on: host:port or unix:PATH", internal=True)


@dataclass(frozen=True)
class ModelOptions:
    """Options of tokenizer and worker, which read the model's files: where these files are."""

    model: str = setting(DEMO_MODEL, "Hugging Face repository id, or local directory in that format", positional=True)
    revision: str | None = setting(
        None, "branch, tag or commit of the Hugging Face repository", unset="its default branch"
    )
