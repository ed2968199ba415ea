"""Output for readers: terminal tables, JSON, CSV, Markdown, and the HTML page of `report`."""
