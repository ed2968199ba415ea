"""Attacks on queries, and their resources: WordNet, tables of synonyms, translation models."""
