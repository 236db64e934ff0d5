"""The options of every command: declared once, read from flags, environment and configuration file."""
