"""`tandem bench kernels`: the compiled CPU kernels against plain torch and the machine's limit."""
