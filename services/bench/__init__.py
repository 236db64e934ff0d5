"""`tandem bench engine`, `transport` and `kernels`: parts of this server measured by themselves."""
