"""Readers of other tools' formats: one module per source, each with a function `source`."""
