"""`tandem bench transport`: what a token costs between worker and client."""
