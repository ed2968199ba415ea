"""The stages: one module per command; each reads artifacts, calls the library, and writes one artifact."""
