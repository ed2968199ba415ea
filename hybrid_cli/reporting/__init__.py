"""The report: figures, words and ranked lists on one page that opens offline."""
