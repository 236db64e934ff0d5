"""What is common to all processes, and `tandem serve`, which starts and supervises them."""
