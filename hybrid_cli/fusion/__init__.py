"""Fusion of several ranked lists per query: a normalization, a combination rule, and a rule for missing documents."""
