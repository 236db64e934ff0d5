"""What surrounds a role: the shell of every process, and `tandem serve`, which starts them as one tree."""
