"""Where the files of a model are."""
