"""BM25: Lucene through Anserini, and an impact matrix with the same analysis and the same scores."""
