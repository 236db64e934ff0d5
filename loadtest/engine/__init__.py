"""`tandem bench engine`: the CPU time that the scheduler spends on a step."""
