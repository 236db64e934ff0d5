"""`tandem bench engine`: what a step costs the scheduler."""
