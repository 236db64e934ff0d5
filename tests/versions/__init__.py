"""The sets of versions that tandem is tested with: lowest, pinned (constraints.txt) and newest."""
