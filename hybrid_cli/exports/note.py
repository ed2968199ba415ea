"""The note that an export for an engine has: `README.md`."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_cli.exports.engine import Fusion, Translation
from hybrid_cli.exports.loss import Loss

NOTE = "README.md"


def note(
    engine: str,
    fusion: Fusion,
    translation: Translation,
    files: Sequence[str],
    loss: Loss | None,
    ran: bool,
    reranked: bool,
) -> str:
    """Return the note.

    Args:
        engine: name of the engine.
        fusion: fusion of the retriever.
        translation: the fusion in the words of the engine.
        files: names of the files.
        loss: measured loss; None without judged queries.
        ran: the tests run the translation in the engine.
        reranked: the retriever has a reranker.
    """
    recipe = fusion.recipe
    weights = ", ".join(f"{each.name} {each.weight:g}" for each in fusion.fields)
    differences = [f"- {line}" for line in translation.differences] or ["None."]
    if reranked:
        differences.append("- The reranker is not part of the export: rerank the hits where you ask the engine.")
    tested = "The tests of hybrid run such an export in the engine." if ran else "Not run against a server."
    measured = (
        loss.in_words(engine) if loss else "Not measured: export again with `--collection` and a judged `--split`"
    )
    lines = [
        f"# Export for {engine}",
        "",
        f"Fusion: {recipe.method} (weights: {weights}; depth {fusion.depth:,}).",
        f"In {engine}: {translation.name}. {tested}",
        "",
        f"Files: {', '.join(f'`{name}`' for name in files)}.",
        "",
        "In the request `query.json`, names stand for the text, the terms and the vectors of a query; a line of",
        "`queries.jsonl`, which `--split` writes, has the whole request.",
        "",
        "## Load and ask",
        "",
        "```sh",
        translation.load,
        translation.ask,
        "```",
        "",
        "## Differences",
        "",
        *differences,
        "",
        "## Loss",
        "",
        f"{measured}.",
        "",
    ]
    return "\n".join(lines)
