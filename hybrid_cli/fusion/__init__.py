"""Fusion: several ranked lists of a query become one. A method = normalisation, rule, and a rule for the missing."""
