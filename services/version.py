"""The version of tandem. Imports nothing."""

VERSION = "0.1.0"
