"""Readers of source formats: one module per format, each with a function `source`."""
