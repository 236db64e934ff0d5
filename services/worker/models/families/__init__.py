"""The architectures that tandem serves: each a small file that turns config.json into a description.

A family's DEFAULTS are those of transformers' config class, for keys that a published config.json omits.
"""
