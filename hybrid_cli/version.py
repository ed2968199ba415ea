"""The version of the package, which manifests record."""

__version__ = "0.2.0.dev0"
