"""The commands of the panel "Data"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Device, Output, Seed, Split, comma_separated, command, option
from hybrid_cli.config import Folds, OnDangling, OnDuplicate, Perturbation, Preparation, PythonDocs
from hybrid_cli.errors import InputError

PANEL = "Data"
SOURCES = "Sources"
_ATTACKS = "What the attacks draw from"

Duplicate = Annotated[
    OnDuplicate, typer.Option("--on-duplicate", help="An id comes twice: stop, or keep its first or last row.")
]
Dangling = Annotated[
    OnDangling,
    typer.Option("--on-dangling", help="A judgement about an unknown document or query: stop, drop it, or keep it."),
]
Queries = Annotated[
    list[str] | None,
    typer.Option("--queries", metavar="SPLIT=FILE", help="Query id and text, for each split.", show_default=False),
]
Qrels = Annotated[
    list[str] | None,
    typer.Option("--qrels", metavar="SPLIT=FILE", help="Judgements, for each split.", show_default=False),
]


_sources = typer.Typer(no_args_is_help=True, help="Bring a collection in: `prepare SOURCE ... --output FOLDER`.")


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    app.add_typer(_sources, name="prepare", rich_help_panel=PANEL)
    command(app, PANEL)(split)
    command(app, PANEL)(perturb)


@command(_sources, SOURCES)
def python_docs(
    output: Output,
    package: Annotated[
        list[str] | None,
        typer.Option("--package", help="More packages, named as in `import`.", show_default=False),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Those of --package alone.")] = False,
    seed: Seed = PythonDocs.seed,
    overwrite: bool = False,
) -> None:
    """Make a retrieval task of the docstrings of installed packages.

    Query: a docstring's first paragraph. Relevant: the document with the rest of that docstring. The sources of
    numpy, scipy, sklearn and pandas are read, never imported; queries are split into train, dev and test.

    Example: `hybrid prepare python-docs --output data/pydocs`
    """
    from hybrid_cli.collections.readers import python_docs as reader
    from hybrid_cli.stages.prepare import prepare

    named = comma_separated(",".join(package or ()))
    if only and not named:
        raise InputError("--only leaves no package; name some with --package")
    packages = named if only else (*PythonDocs.packages, *named)
    prepare(reader.source(packages, seed=seed), output=output, overwrite=overwrite)


@command(_sources, SOURCES)
def beir(
    folder: Annotated[Path, typer.Argument(help="It holds corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.")],
    output: Output,
    on_duplicate: Duplicate = Preparation.on_duplicate,
    on_dangling: Dangling = Preparation.on_dangling,
    overwrite: bool = False,
) -> None:
    """Read a BEIR folder; each file of judgements is a split.

    Queries in none of them become the split `unjudged`.

    Example: `hybrid prepare beir scifact --output data/scifact`
    """
    from hybrid_cli.collections.readers import beir as reader
    from hybrid_cli.stages.prepare import prepare

    source = reader.source(folder)
    prepare(source, output=output, on_duplicate=on_duplicate, on_dangling=on_dangling, overwrite=overwrite)


@command(_sources, SOURCES)
def msmarco(
    corpus: Annotated[Path, typer.Argument(help="collection.tsv, or msmarco-docs.tsv.")],
    output: Output,
    queries: Queries = None,
    qrels: Qrels = None,
    triples: Annotated[
        list[str] | None,
        typer.Option(
            "--triples",
            metavar="SPLIT=FILE",
            show_default=False,
            help="Ids of query, relevant and other document: the relevant ones become judgements.",
        ),
    ] = None,
    on_duplicate: Duplicate = Preparation.on_duplicate,
    on_dangling: Dangling = Preparation.on_dangling,
    overwrite: bool = False,
) -> None:
    """Read MS MARCO's tab-separated files.

    Example: `hybrid prepare msmarco collection.tsv --queries dev=queries.dev.small.tsv --qrels
    dev=qrels.dev.small.tsv --output data/msmarco`
    """  # fmt: skip
    from hybrid_cli.collections.readers import msmarco as reader
    from hybrid_cli.stages.prepare import prepare

    source = reader.source(
        corpus,
        queries=_by_name(queries, "--queries"),
        qrels=_by_name(qrels, "--qrels"),
        triples=_by_name(triples, "--triples"),
    )
    prepare(source, output=output, on_duplicate=on_duplicate, on_dangling=on_dangling, overwrite=overwrite)


@command(_sources, SOURCES)
def dpr(
    corpus: Annotated[Path, typer.Argument(help="psgs_w100.tsv, plain or gzipped.")],
    output: Output,
    questions: Annotated[
        list[str] | None,
        typer.Option(
            "--questions",
            metavar="SPLIT=FILE",
            show_default=False,
            help="Questions with their answers (.csv with tabs, .jsonl or .json).",
        ),
    ] = None,
    training: Annotated[
        list[str] | None,
        typer.Option(
            "--training",
            metavar="SPLIT=FILE",
            show_default=False,
            help="Training JSON: its questions, answers and positive passages.",
        ),
    ] = None,
    on_duplicate: Duplicate = Preparation.on_duplicate,
    on_dangling: Dangling = Preparation.on_dangling,
    overwrite: bool = False,
) -> None:
    """Read DPR's passages, questions and training files.

    Questions are numbered from 0 in each split.

    Example: `hybrid prepare dpr psgs_w100.tsv --questions test=nq-test.qa.csv --training
    train=biencoder-nq-train.json --output data/nq`
    """  # fmt: skip
    from hybrid_cli.collections.readers import dpr as reader
    from hybrid_cli.stages.prepare import prepare

    source = reader.source(
        corpus, questions=_by_name(questions, "--questions"), training=_by_name(training, "--training")
    )
    prepare(source, output=output, on_duplicate=on_duplicate, on_dangling=on_dangling, overwrite=overwrite)


@command(_sources, SOURCES)
def trec(
    corpus: Annotated[Path, typer.Argument(help="Documents in SGML or JSON lines: a file or a folder of files.")],
    output: Output,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", "--queries", metavar="SPLIT=FILE", help="Topics, for each split.", show_default=False),
    ] = None,
    qrels: Qrels = None,
    topic_fields: Annotated[
        str, typer.Option(help="What of a topic is the query: `title`, `desc`, `narr`, or several with commas.")
    ] = "title",
    encoding: Annotated[str, typer.Option(help="Of SGML and XML files; `latin-1` on the older disks.")] = "utf-8",
    on_duplicate: Duplicate = Preparation.on_duplicate,
    on_dangling: Dangling = Preparation.on_dangling,
    overwrite: bool = False,
) -> None:
    """Read TREC documents, topics and judgements.

    Example: `hybrid prepare trec robust04/ --topics test=topics.robust04.txt --qrels test=qrels.robust04.txt
    --encoding latin-1 --output data/robust04`
    """
    from hybrid_cli.collections.readers import trec as reader
    from hybrid_cli.stages.prepare import prepare

    source = reader.source(
        corpus,
        topics=_by_name(topics, "--topics"),
        qrels=_by_name(qrels, "--qrels"),
        topic_fields=comma_separated(topic_fields),
        encoding=encoding,
    )
    prepare(source, output=output, on_duplicate=on_duplicate, on_dangling=on_dangling, overwrite=overwrite)


@command(_sources, SOURCES)
def irds(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="[SPLIT=]ID...", help="Ids over one corpus; the split is the id's last part."),
    ],
    output: Output,
    on_duplicate: Duplicate = Preparation.on_duplicate,
    on_dangling: Dangling = Preparation.on_dangling,
    overwrite: bool = False,
) -> None:
    """Take collections from ir_datasets, which downloads what it lacks.

    Needs the extra `irds`.

    Example: `hybrid prepare irds dev=msmarco-passage/dev/small msmarco-passage/train --output data/msmarco`
    """
    from hybrid_cli.collections.readers import irds as reader
    from hybrid_cli.stages.prepare import prepare

    source = reader.source(reader.by_split(ids))
    prepare(source, output=output, on_duplicate=on_duplicate, on_dangling=on_dangling, overwrite=overwrite)


def split(
    collection: Annotated[Path, typer.Argument(help="A collection with judgements.")],
    output: Output,
    folds: Annotated[
        int | None,
        typer.Option(min=2, help="How many; with --given, how many it must have.", show_default=str(Folds.folds)),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option(
            help="Folds that somebody chose: a JSON list of lists of query ids, or lines of id and fold.",
            show_default=False,
        ),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            "--split", help="Whose queries: a split, several with commas, or `all`.", show_default="the only one"
        ),
    ] = None,
    seed: Seed = Folds.seed,
    overwrite: bool = False,
) -> None:
    """Part the judged queries into folds for cross-validation.

    Writes a collection over the same documents with the splits `test-1`, `dev-1`, `train-1`, `test-2`, ...: `test-i` is
    part i of the queries, `dev-i` the next part, `train-i` the rest; `all` is all of them. One index serves all folds.

    Example:

    `hybrid split data/robust04 --folds 5 --output out/folds`
    """
    from hybrid_cli.stages import split as stage

    stage.split(
        collection,
        output=output,
        splits=comma_separated(splits),
        folds=folds,
        given=given,
        seed=seed,
        overwrite=overwrite,
    )


def perturb(
    collection: Annotated[Path, typer.Argument(help="A collection: its queries of --split, judgements and texts.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A Parquet file; for several attacks, a folder.")],
    attack: Annotated[
        str,
        typer.Option(
            help="What becomes of the queries; several with commas, `lite` for the first six, or `all`.",
            metavar="|".join(get_args(config.Attack)),
            show_default=False,
        ),
    ],
    split: Split = None,
    share: Annotated[
        float, option(_ATTACKS, "Of a query's words: how many are changed, one at least.", min=0, max=1)
    ] = Perturbation.share,
    wordnet: Annotated[
        Path | None,
        option(_ATTACKS, "WordNet's folder or zip file.", show_default="where nltk or Debian's wordnet-base puts it"),
    ] = None,
    synonyms: Annotated[
        Path | None, option(_ATTACKS, "In WordNet's place: a word, then synonyms, between tabs.", show_default=False)
    ] = None,
    translation: Annotated[
        tuple[Path, Path] | None,
        option(
            _ATTACKS,
            "Folders of the models that translate to another language and back.",
            metavar="THERE BACK",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str, option(_ATTACKS, "What THERE wants before a query, such as `>>es<<`.", show_default=False)
    ] = Perturbation.prefix,
    ready: Annotated[
        list[str] | None,
        option(
            _ATTACKS,
            "Queries that others have attacked: a file of id and text between tabs; repeat it, or use commas.",
            metavar="ATTACK=FILE",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    seed: Seed = Perturbation.seed,
    overwrite: bool = False,
) -> None:
    """Make the queries of a split harder to answer by their words.

    `search --queries` takes what is written. Into a folder go all attacks that this machine can make, and `meta.json`;
    what others lack is said.

    `char-swap`: in a word two letters change places, or one is wrong, missing or too many. `word-deletion`: a word is
    gone. `synonym-replacement`: a word becomes a synonym. `word-order-swap`: two words change places.
    `synonym-insertion`: a word's synonym stands somewhere. `back-translation`: the query has been in another language.

    `shuffle`: the words between white space in a random order. BM25 does not see it; a model of meaning may.

    `synonym-adversary`: each word that a relevant document has too becomes a random synonym that none of them has;
    where there is no such synonym, it stays. BM25 loses what it matched; a model of meaning should not.

    Examples:

    `hybrid perturb data/pydocs --split test --attack lite --output out/attacked`

    `hybrid perturb data/pydocs --split test --attack synonym-adversary --output out/adversary.parquet`
    """
    from hybrid_cli.stages import perturb as stage

    stage.perturb(
        collection,
        output=output,
        attacks=comma_separated(attack),
        split=split,
        sources=stage.Sources(wordnet, synonyms, translation, _by_name(ready, "--ready", "attack", "char-swap")),
        how=Perturbation(seed=seed, share=share, prefix=prefix),
        device=device,
        overwrite=overwrite,
    )


def _by_name(values: list[str] | None, option: str, what: str = "split", example: str = "test") -> dict[str, Path]:
    """`train=a.tsv`, `dev=b.tsv` (or both with a comma) as name of a split, or whatever has files, -> file."""
    files: dict[str, Path] = {}
    for value in (item for text in values or () for item in comma_separated(text)):
        name, equals, file = value.partition("=")
        if not equals or not name or not file:
            raise InputError(f"{option} {value}: needs {what.upper()}=FILE, such as {example}={Path(value).name}")
        if name in files:
            raise InputError(f"{option}: {what} '{name}' stands there twice; join the files, or name the {what}s apart")
        files[name] = Path(file)
    return files
