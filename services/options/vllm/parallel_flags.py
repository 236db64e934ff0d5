"""The flags about several devices, processes and machines. Source: ParallelConfig in vllm/engine/arg_utils.py.

Rows only: services/options/vllm/flag.py says what they mean.
"""

from services.options.vllm.flag import (
    NUMBER,
    OBJECT,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Flag,
    at_least,
    lacks,
    other,
    unused,
)

_REPLICAS = "several engines behind one server (data parallel replicas) are not supported yet"
_CONTEXT = "one request on several devices (context parallelism) is not supported yet"
_RAY = "placing workers by Ray is not supported yet"
_CODE = "Python code from outside is not loaded"
_ONE = "each model is on one device"

PARALLEL: tuple[Flag, ...] = (
    lacks(
        "tensor-parallel-size",
        at_least(1),
        "one model on several devices (tensor parallelism) is not supported yet",
        (1,),
        short=("-tp",),
    ),
    lacks(
        "pipeline-parallel-size",
        at_least(1),
        "the layers of one model on several devices (pipeline parallelism) are not supported yet",
        (1,),
        short=("-pp",),
    ),
    lacks("data-parallel-size", at_least(1), _REPLICAS, (1,), short=("-dp",)),
    lacks("data-parallel-size-local", at_least(0), _REPLICAS, (1,), short=("-dpl",)),
    lacks("data-parallel-rank", at_least(0), _REPLICAS, short=("-dpn",)),
    lacks("data-parallel-start-rank", at_least(0), _REPLICAS, (0,), short=("-dpr",)),
    lacks("data-parallel-hybrid-lb", SWITCH, _REPLICAS, short=("-dph",)),
    lacks("data-parallel-external-lb", SWITCH, _REPLICAS, short=("-dpe",)),
    lacks("data-parallel-multi-port-external-lb", SWITCH, _REPLICAS, short=("-dpm",)),
    unused("data-parallel-address", TEXT, "there are no replicas", short=("-dpa",)),
    unused("data-parallel-rpc-port", WHOLE, "there are no replicas", short=("-dpp",)),
    unused("data-parallel-backend", TEXT, "there are no replicas", short=("-dpb",)),
    lacks("prefill-context-parallel-size", at_least(1), _CONTEXT, (1,), short=("-pcp",)),
    lacks("decode-context-parallel-size", at_least(1), _CONTEXT, (1,), short=("-dcp",)),
    lacks("distributed-executor-backend", TEXT, _RAY, ("mp", "uni")),
    lacks("nnodes", at_least(1), "one model on several machines is not supported yet", (1,), short=("-n",)),
    lacks("node-rank", at_least(0), "one model on several machines is not supported yet", (0,), short=("-r",)),
    lacks("worker-cls", TEXT, _CODE, ("auto",)),
    lacks("worker-extension-cls", TEXT, _CODE),
    other("device-ids", TEXT, "set the environment variable CUDA_VISIBLE_DEVICES"),
    unused("master-addr", TEXT, _ONE),
    unused("master-port", WHOLE, _ONE),
    unused("distributed-timeout-seconds", WHOLE, _ONE),
    unused("cpu-distributed-timeout-seconds", WHOLE, _ONE),
    unused("numa-bind", SWITCH, "processes are not bound to nodes"),
    unused("numa-bind-nodes", WHOLES, "processes are not bound to nodes"),
    unused("numa-bind-cpus", TEXTS, "processes are not bound to nodes"),
    unused("dcp-comm-backend", TEXT, _ONE),
    unused("dcp-q-replicate", SWITCH, _ONE),
    unused("dcp-kv-cache-interleave-size", WHOLE, _ONE),
    unused("cp-kv-cache-interleave-size", WHOLE, _ONE),
    unused("enable-expert-parallel", SWITCH, _ONE, short=("-ep",)),
    unused("enable-batch-sharded-sampling", SWITCH, _ONE),
    unused("enable-ep-weight-filter", SWITCH, _ONE),
    unused("all2all-backend", TEXT, _ONE),
    unused("enable-elastic-ep", SWITCH, _ONE),
    unused("enable-dbo", SWITCH, _ONE),
    unused("ubatch-size", WHOLE, _ONE),
    unused("dbo-decode-token-threshold", WHOLE, _ONE),
    unused("dbo-prefill-token-threshold", WHOLE, _ONE),
    unused("dp-sync-interval", WHOLE, _ONE),
    unused("disable-nccl-for-dp-synchronization", SWITCH, _ONE),
    unused("enable-eplb", SWITCH, _ONE),
    unused("eplb-config", OBJECT, _ONE),
    unused("expert-placement-strategy", TEXT, _ONE),
    unused("max-parallel-loading-workers", at_least(1), _ONE),
    unused("ray-workers-use-nsight", SWITCH, _ONE),
    unused("disable-custom-all-reduce", SWITCH, _ONE),
    unused("enable-fault-tolerance", SWITCH, "processes that die are always restarted, and their requests resumed"),
    unused("fault-tolerance-config", OBJECT, "processes that die are always restarted, and their requests resumed"),
    unused("dp-supervisor-probe-interval-s", NUMBER, "there are no replicas"),
    unused("dp-supervisor-probe-timeout-s", NUMBER, "there are no replicas"),
    unused("dp-supervisor-probe-failure-threshold", WHOLE, "there are no replicas"),
    unused("data-parallel-supervisor-port", WHOLE, "there are no replicas"),
)
