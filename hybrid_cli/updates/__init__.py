"""Indexes after `append` and `delete`."""
