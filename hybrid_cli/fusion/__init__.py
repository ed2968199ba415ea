"""Fusion of runs: normalization, combination rule, and rule for missing documents; tuning of weights."""
