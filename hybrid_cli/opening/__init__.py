"""Artifacts opened as objects of the library, with the checks of their manifests."""
