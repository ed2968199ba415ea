"""Retrievers for the frameworks of others; each module needs the extra of its name."""
