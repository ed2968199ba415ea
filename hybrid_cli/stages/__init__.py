"""The stages: one file per command, same name; each reads artifacts, calls the nouns, writes one artifact."""
