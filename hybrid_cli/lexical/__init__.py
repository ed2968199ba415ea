"""The lexical side: Lucene through Anserini, and the exact impact matrix derived from the same analysis."""
