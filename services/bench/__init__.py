"""`tandem bench engine` and `tandem bench transport`: parts of this server measured by themselves."""
