"""Collections: one reader per source, one form on disk."""
