"""Contracts of published models, by name.

Each preset is the released form of a model: pooling, normalization, prefixes, lengths and title separator as in the
code of its authors or of Pyserini. Projections and towers are read from the weights (`published`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_cli.encoders.checkpoints import published
from hybrid_cli.encoders.checkpoints.published import PLAIN, TWO_PLAIN
from hybrid_cli.encoders.contract import SIDES, read_contract
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.storage.layout import CONTRACT

BERT, ROBERTA, XLM = "bert", "roberta", "xlm-roberta"
_SEARCH = "Represent this sentence for searching relevant passages: "
_WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Preset:
    """Contract of a published model.

    Attributes:
        models: a published checkpoint of this form.
        types: `model_type` in config.json.
        contract: fields of the contract that the preset sets.
        layouts: forms of weights (`published.LAYOUTS`), or `plain`.
        modules: modules of sentence-transformers between pooling and vector.
    """

    models: str
    types: tuple[str, ...]
    contract: Mapping[str, Any]
    layouts: tuple[str, ...] = (PLAIN,)
    modules: tuple[str, ...] = ()

    def fields(self, name: str, folder: Path) -> dict[str, Any]:
        """Return the fields of the contract for a checkpoint; `name` is that of the preset, for messages.

        Raises:
            InputError: the checkpoint is of another form than the preset, or one tower of two.
        """
        if (folder / CONTRACT).is_file():
            raise option_error("preset", name, f"{folder} has encoder.json; omit it", code="option-does-not-apply")
        published.structure(folder)  # refuses one tower of two
        form = published.find(folder)
        if form not in self.layouts:
            raise _misfit(name, folder, f"of the form '{form}'; the preset needs '{' or '.join(self.layouts)}'")
        config = (folder / SIDES[0] if published.is_two_folders(folder) else folder) / "config.json"
        kind = read_object(config).get("model_type") if config.is_file() else None
        if kind is not None and kind not in self.types:
            raise _misfit(name, folder, f"a {kind} model; needs {' or '.join(self.types)}")
        if "architecture" in self.contract:
            return dict(self.contract)
        if (modules := read_contract(folder).modules) != self.modules:
            listed, needed = (", ".join(names) or "no module" for names in (modules, self.modules))
            raise _misfit(name, folder, f"with {listed} after the pooling; the preset needs {needed}")
        return dict(self.contract)


def _misfit(name: str, folder: Path, reason: str) -> InputError:
    """Return the error about a checkpoint of another kind than a preset."""
    return option_error("preset", name, f"does not fit {folder}, {reason}", code="other-preset", path=folder)


def _cls(queries: int, documents: int, **more: Any) -> dict[str, Any]:
    return {"pooling": "cls", "normalize": False, "query_max_len": queries, "doc_max_len": documents, **more}


def _unit(pooling: str, length: int, query_prefix: str = "", doc_prefix: str = "") -> dict[str, Any]:
    lengths = {"query_max_len": length, "doc_max_len": length}
    return {"pooling": pooling, "normalize": True, "query_prefix": query_prefix, "doc_prefix": doc_prefix, **lengths}


def _sparse(architecture: str, queries: int, documents: int, **more: Any) -> dict[str, Any]:
    return {"architecture": architecture, "query_max_len": queries, "doc_max_len": documents, **more}


_DPR = _cls(256, 256, tied=False, title_separator=" [SEP] ")
_TCT = {
    "pooling": "mean",
    "normalize": False,
    "query_prefix": "[CLS] [Q] ",
    "doc_prefix": "[CLS] [D] ",
    "query_max_len": 36,
    "doc_max_len": 512,
    "special_tokens": False,
    "skip_tokens": 4,
    "fill_queries": True,
}

DPR = Preset(
    "facebook/dpr-question_encoder-multiset-base and facebook/dpr-ctx_encoder-multiset-base",
    (BERT, "dpr"),
    _DPR,
    ("dpr-question and dpr-context", "dpr-original", "dpr-scale"),
)
ANCE = Preset(
    "castorini/ance-msmarco-passage", (ROBERTA,), _cls(64, 512, title_separator=" "), ("ance", "pyserini-ance")
)
TCT_COLBERT = Preset("castorini/tct_colbert-v2-hnp-msmarco", (BERT,), _TCT)
CONTRIEVER = Preset("facebook/contriever-msmarco", (BERT,), {**_cls(512, 512), "pooling": "mean"})
COCONDENSER = Preset("Luyu/co-condenser-marco-retriever", (BERT,), _cls(32, 128, title_separator=" [SEP] "))
GTR = Preset("sentence-transformers/gtr-t5-base", ("t5",), _unit("mean", 512), modules=("Dense",))
SENTENCE_T5 = Preset("sentence-transformers/sentence-t5-base", ("t5",), _unit("mean", 256), modules=("Dense",))
# Pooling, prefixes and lengths: evaluation scripts of E5's authors, model mapping of BGE's authors.
E5 = Preset("intfloat/e5-base-v2", (BERT, XLM), _unit("mean", 512, "query: ", "passage: "))
BGE = Preset("BAAI/bge-base-en-v1.5", (BERT,), _unit("cls", 512, _SEARCH))
BGE_M3 = Preset("BAAI/bge-m3", (XLM,), _unit("cls", 8192))
SNOWFLAKE = Preset("Snowflake/snowflake-arctic-embed-m", (BERT,), _unit("cls", 512, _SEARCH))
SNOWFLAKE_V2 = Preset("Snowflake/snowflake-arctic-embed-l-v2.0", (XLM,), _unit("cls", 8192, "query: "))
NOMIC = Preset(
    "nomic-ai/nomic-embed-text-v1", ("nomic_bert",), _unit("mean", 8192, "search_query: ", "search_document: ")
)
# Templates, tasks and lengths: model cards. The tokenizer of Qwen3-Embedding ends every text itself.
QWEN3_EMBEDDING = Preset(
    "Qwen/Qwen3-Embedding-0.6B, -4B and -8B",
    ("qwen3",),
    {**_unit("last", 8192, "Instruct: {task}\nQuery:"), "task": _WEB_SEARCH},
)
E5_MISTRAL = Preset(
    "intfloat/e5-mistral-7b-instruct",
    ("mistral",),
    {**_unit("last", 4096, "Instruct: {task}\nQuery: "), "task": _WEB_SEARCH, "append_eos": True},
)
ROCKETQA = Preset(  # lengths, segments and [CLS]: scripts and reader of RocketQA's authors, for MS MARCO and NQ
    "RocketQA's dual encoders (ERNIE), converted to transformers",
    ("ernie", BERT),
    _cls(32, 128, title_separator=" [SEP] ", segments=True),
    (PLAIN, TWO_PLAIN),
)
SPAR = Preset(
    "facebook/spar-wiki-bm25-lexmodel-query-encoder and ...-context-encoder", (BERT,), _DPR, (TWO_PLAIN, "dpr-scale")
)
DRBOOST = Preset("DrBoost's learners in dpr-scale", (BERT, ROBERTA), _DPR, ("dpr-scale",))

# Learned sparse encoders. Lengths: authors' code and advice (SPLADE, DeepCT, OpenSearch), Pyserini (UniCOIL).
_DISTIL = "distilbert"
SPLADE = Preset(
    "naver/splade_v2_max, naver/splade_v2_distil and naver/splade-cocondenser-ensembledistil",
    (_DISTIL, BERT),
    _sparse("splade", 256, 256),
)
SPLADE_V3 = Preset("naver/splade-v3 and naver/splade-v3-distilbert", (BERT, _DISTIL), _sparse("splade", 512, 512))
UNICOIL = Preset("castorini/unicoil-msmarco-passage", (BERT,), _sparse("unicoil", 128, 512))
DEEPCT = Preset("DeepCT's marco model, converted to transformers", (BERT,), _sparse("deepct", 128, 128))
OPENSEARCH = Preset(
    "opensearch-project/opensearch-neural-sparse-encoding-doc-v1 and -doc-v2-distill",
    (BERT, _DISTIL),
    _sparse("splade", 512, 512),
)
OPENSEARCH_V3 = Preset(
    "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill",
    (_DISTIL,),
    _sparse("splade", 512, 512, saturation=2),
)
