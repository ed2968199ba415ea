"""Exports of indexes to serving engines."""
