"""Everything that measures, one folder each.

serving: a server over HTTP. engine: a step of the scheduler. transport: a token from worker to client. kernels: the
compiled CPU kernels. gpu: what needs a GPU (`make gpu-check`). studies: comparisons for one decision each. The last two
use the tests' helpers, so they run from the repository alone; the others are in the wheel, as `tandem bench`.
"""
