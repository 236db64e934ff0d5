"""`tandem bench transport`: what a token costs from worker to client."""
