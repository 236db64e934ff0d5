"""The options of every command: declared once, read from flags, environment and file. Knows no process."""
