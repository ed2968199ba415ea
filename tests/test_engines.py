"""Retrievers in Qdrant, Milvus and LanceDB: the same hits as here, and live queries with the analysis of the index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.stages.export import export
from hybrid_cli.stages.index_bm25 import index_bm25

PAGE = Path(__file__).parent.parent / "docs" / "export.md"


def test_a_live_query_of_the_documentation_is_the_vector_of_the_index(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25")
    written = export(index, form="parquet", output=tmp_path / "parquet")
    code = re.search(r"```python\n(from collections import Counter.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert code is not None
    scope: dict[str, Any] = {"pl": pl}
    exec(code[1].replace("out/parquet", str(written)), scope)
    matrix = open_bm25(index).query_matrix(["Is water salted?"])
    assert dict(zip(scope["indices"], scope["values"], strict=True)) == dict(
        zip(matrix.indices.tolist(), matrix.data.tolist(), strict=True)
    )
    assert len(scope["indices"]) == 2
