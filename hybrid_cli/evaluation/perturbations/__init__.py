"""Attacks on queries, and the WordNet that some of them draw from."""
