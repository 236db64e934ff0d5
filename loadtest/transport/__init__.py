"""`tandem bench transport`: the latency and CPU time that a token costs between worker and client."""
