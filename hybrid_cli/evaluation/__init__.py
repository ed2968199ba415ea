"""Measures of runs, their significance, and comparisons of runs."""
