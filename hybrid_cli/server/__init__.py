"""The served page and its API: see `hybrid serve`."""
