"""All benchmarks, one folder each; docs/benchmarking.md says how to run them.

serving: a server over HTTP. engine: a step of the scheduler. transport: a token from worker to client. kernels: the
compiled CPU kernels. gpu: checks that need a GPU (`make gpu-check`). studies: one comparison for one decision each.
gpu and studies import tests/, so they run only in the repository. The others are in the wheel, as `tandem bench`.
"""
