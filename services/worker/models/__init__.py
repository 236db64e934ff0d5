"""One decoder, parameterised by family; a new model file only when the mathematics differs."""
