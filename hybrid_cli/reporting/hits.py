"""Terminal output of `search --query`: ranked hits with titles and snippets."""

from __future__ import annotations

from typing import Any

from hybrid_cli import console
from hybrid_cli.collections.snippets import snippet
from hybrid_cli.settings import Search


def show_hits(found: Any, settings: Search) -> None:
    """Print the hits of one query.

    Args:
        found: DataFrame that `search` returns for a query; a path, after writing a run, prints nothing.
        settings: of the search.
    """
    if settings.query is None:
        return
    if not len(found):
        console.result("no hits")
    for row in found.iter_rows(named=True):
        ranks = [f"{path.name} {row[f'rank_{n}'] or '-'}" for n, path in enumerate(settings.indexes) if "rank_0" in row]
        details = ", ".join([f"{row['score']:.4f}", *ranks])
        console.result(f"{row['rank']:2}. {row.get('title') or row['docid']}  [{row['docid']}: {details}]")
        if text := row.get("text"):
            console.result(f"    {snippet(text, settings.query)}")
