"""Static embeddings of model2vec: a table of token vectors; a text has the mean of its known tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybrid_cli.encoders.contract import TRANSFORMER, Contract, RerankerFiles, TextForm, TowerFiles, shapes
from hybrid_cli.json_files import read_object
from hybrid_cli.storage.layout import MODULES

_LENGTH = 512  # tokens of a text that model2vec reads by default


@dataclass(frozen=True)
class StaticModel:
    """A folder with the vectors `embeddings`, `config.json` and `tokenizer.json`."""

    folder: Path

    @property
    def kind(self) -> str:
        """`transformer`, whose place a table of vectors takes."""
        return TRANSFORMER

    def contract(self, side: str | None = None) -> Contract:
        """Return the contract: no special tokens, and no unknown ones."""
        normalize = read_object(self.folder / "config.json").get("normalize") is True
        form = Contract(normalize=normalize, special_tokens=False, skip_unknown=True)
        return form.changed(query_max_len=_LENGTH, doc_max_len=_LENGTH)

    def tower(self, side: str) -> TowerFiles:
        """Return the files of the table."""
        return TowerFiles(self.folder, is_table=True)

    def notes(self, contract: TextForm) -> list[str]:
        """Return nothing."""
        return []


class Model2Vec:
    """Models of model2vec that have no files of sentence-transformers."""

    def encoder(self, folder: Path) -> StaticModel | None:
        """Return the encoder in a folder with `embeddings`; None for another folder."""
        return StaticModel(folder) if "embeddings" in shapes(folder) and not (folder / MODULES).is_file() else None

    def reranker(self, folder: Path, train: bool) -> RerankerFiles | None:
        """Return None: a table is no reranker."""
        return None


READER = Model2Vec()
