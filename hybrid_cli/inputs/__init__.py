"""Files of other tools, JSON of any origin: opened with limits, read in pieces, refused in one line."""
