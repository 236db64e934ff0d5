"""The shim's Prometheus metrics: requests as their clients see them.

Names, labels and buckets of the series vllm:* are vLLM's; tandem:* are the shim's own.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.process.metrics_server import ENGINE
from services.rpc.finish_reasons import REASON_BY_NAME

LABELS = ("model_name", "engine")
# Of JSON Schema's keywords those that may be ignored, as labels: a client must not be able to create series.
SCHEMA_KEYWORDS = frozenset(
    {
        "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary",
        "additionalItems", "contains", "contentEncoding", "contentMediaType", "contentSchema", "dependencies",
        "dependentRequired", "dependentSchemas", "discriminator", "else", "format", "if", "maxContains",
        "maxProperties", "minContains", "minProperties", "multipleOf", "not", "oneOf", "pattern", "patternProperties",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    }
)  # fmt: skip
OTHER_KEYWORD = "other"
REJECTIONS = ("max_concurrent_requests", "body_bytes")
FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
NUM_TOKENS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))
NUM_CHOICES = (1, 2, 5, 10, 20)
COUNTERS = {
    "prompt_tokens": "Prompt tokens of accepted requests.",
    "prompt_tokens_cached": "Prompt tokens found in the prefix cache.",
    "generation_tokens": "Generated tokens.",
}
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": (
        "Time from the checked HTTP request to the first token of a choice.",
        FIRST_TOKEN_SECONDS,
    ),
    "inter_token_latency_seconds": ("Time between two tokens of a choice.", INTER_TOKEN_SECONDS),
    "request_time_per_output_token_seconds": (
        "Mean time between two tokens of a choice, one value per choice.",
        INTER_TOKEN_SECONDS,
    ),
    "e2e_request_latency_seconds": ("Time from the checked HTTP request to the end of a choice.", REQUEST_SECONDS),
    "request_prompt_tokens": ("Tokens of a prompt.", NUM_TOKENS),
    "request_generation_tokens": ("Generated tokens of a choice.", NUM_TOKENS),
    "request_params_n": ("Parameter n of a request.", NUM_CHOICES),
    "request_params_max_tokens": ("Parameter max_tokens of a request.", NUM_TOKENS),
}


class ModelMetrics:
    """The Prometheus series of one model name: counters and histograms, and finished choices by finish reason."""

    def __init__(
        self,
        counters: dict[str, Counter],
        histograms: dict[str, Histogram],
        success: Counter,
        ignored_keywords: Counter,
        model: str,
    ) -> None:
        labels = (model, ENGINE)
        counter = {name: family.labels(*labels) for name, family in counters.items()}
        self.prompt_tokens = counter["prompt_tokens"]
        self.prompt_tokens_cached = counter["prompt_tokens_cached"]
        self.generation_tokens = counter["generation_tokens"]
        histogram = {name: family.labels(*labels) for name, family in histograms.items()}
        self.first_token = histogram["time_to_first_token_seconds"]
        self.between_tokens = histogram["inter_token_latency_seconds"]
        self.per_output_token = histogram["request_time_per_output_token_seconds"]
        self.latency = histogram["e2e_request_latency_seconds"]
        self.request_prompt_tokens = histogram["request_prompt_tokens"]
        self.request_generation_tokens = histogram["request_generation_tokens"]
        self.params_n = histogram["request_params_n"]
        self.params_max_tokens = histogram["request_params_max_tokens"]
        self._ignored_keywords = ignored_keywords
        self.finished = {reason: success.labels(*labels, reason) for reason in REASON_BY_NAME}

    def ignored(self, paths: Iterable[str]) -> None:
        """Counts the keywords at these paths of a request's schema, as "/properties/a: not", each of them once."""
        keywords = {path.rpartition(": ")[2] for path in paths}
        for keyword in {one if one in SCHEMA_KEYWORDS else OTHER_KEYWORD for one in keywords}:
            self._ignored_keywords.labels(keyword).inc()


class ShimMetrics:
    """The metrics that the shim itself records, registered in `registry`; one object per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(f"vllm:{name}", text, LABELS, registry=registry) for name, text in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, LABELS, registry=registry, buckets=buckets)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._success = Counter(
            "vllm:request_success",
            "Finished choices by finish reason.",
            (*LABELS, "finished_reason"),
            registry=registry,
        )
        self._ignored_keywords = Counter(
            "tandem:ignored_schema_keywords",
            "Requests with a schema that is not strict and has this keyword, which had no effect.",
            ("keyword",),
            registry=registry,
        )
        self._models: dict[str, ModelMetrics] = {}
        self.http_requests = Counter(
            "tandem:http_requests",
            "HTTP responses by method, path and status.",
            ("method", "path", "status"),
            registry=registry,
        )
        self.http_rejections = Counter(
            "tandem:http_rejections",
            "Requests refused at a limit of the shim, by limit.",
            ("reason",),
            registry=registry,
        )
        for reason in REJECTIONS:
            self.http_rejections.labels(reason)

    def of(self, model: str) -> ModelMetrics:
        """Returns the series of a model name. The first call for a name creates them, exported with the value 0."""
        if model not in self._models:
            self._models[model] = ModelMetrics(
                self._counters, self._histograms, self._success, self._ignored_keywords, model
            )
        return self._models[model]
