"""A small package that adds a loss, a measure, a reader, a fusion method, a perturbation, an encoder and a command."""
