"""`judge`: judge pooled hits of runs in the terminal, or with answers from standard input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import lineage
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import check_models, corpora_of, known_corpora
from hybrid_cli.artifacts.judged import collection_of
from hybrid_cli.artifacts.retrievers import RetrieverFiles, is_retriever, of_auto
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import SKIPPED, Journal, Pair, is_journal
from hybrid_cli.collections.judgments import open_judgments
from hybrid_cli.commands import Evaluate, Fuse, Judge, Search
from hybrid_cli.commands.analysis import PERSON, TWO_RUNS
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import ACCURACY, parse_measures
from hybrid_cli.evaluation.retrieved import Pool, pools
from hybrid_cli.inputs.files import read_text
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.reporting import judging
from hybrid_cli.reporting.agreement import conflicts, judgments_of_people
from hybrid_cli.reporting.judging import QUIT, ComparedRuns, JudgedTexts, Judging, JudgingSession
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.runs.files import name_and_path, short_names
from hybrid_cli.settings import command_line
from hybrid_cli.stages import call, stage
from hybrid_cli.stages.judge import machines
from hybrid_cli.stages.judge.machines import Question


@stage(Judge)
def judge(settings: Judge) -> Path:
    """Judge hits until enough queries are judged, the input ends, or the person quits.

    Returns:
        Path of the qrels.

    Raises:
        InputError: inputs cannot be used together, or a line of standard input is no answer.
    """
    if any(measure.family == ACCURACY for measure in parse_measures([settings.measure])):
        problem = "needs answers in the texts; name a measure of judgments"
        raise option_error("measure", settings.measure, problem, code="needs-answers")
    files = _retriever(settings)
    of = None if files is not None and not settings.runs else settings.collection
    queries, corpora = _queries(settings, of, files), _corpora(of, files)
    others: list[Path] = []
    if files is not None:
        named, others = _searched_sides(settings, files, queries)
    else:
        named = runs.name_runs(settings.runs)
        belongs_together(named.values(), corpus=corpora[0])
    settings.check_facts(", ".join(named) or "--adjudicate", compared=TWO_RUNS if len(named) == 2 else "")
    opened = {name: runs.open_run(path) for name, path in named.items()}
    texts = JudgedTexts(queries, corpora)
    by_machine = settings.values()["judge"] != PERSON
    if settings.adjudicate is not None:
        pooled = _conflicts(settings.adjudicate)
    else:
        pooled_runs = [*opened.values(), *map(runs.open_run, others)]
        pooled_runs += judging.at_weights(opened) if by_machine else []
        pooled = pools(pooled_runs, settings.depth, settings.seed, settings.order == "random")
    pooled = _known(pooled, texts)
    if by_machine:
        return _by_machine(settings, pooled, texts, [*named.values(), *others], files)
    artifacts.lock_growing(settings.output)
    settled = settings.output if settings.adjudicate is not None and settings.output.is_file() else None
    settles = settled is not None and is_journal(InputFile.of(settled))
    judgments = open_judgments(settings.output, settings.rater, settles)
    compared = ComparedRuns(opened, settings.measure)
    asked = Judging(JudgingSession(judgments, pooled, settings.stop_after), texts, compared)
    try:
        if judging.is_interactive():
            asked.in_terminal()
        else:
            _from_lines(asked, iter(console.read_line, ""))
    finally:
        judgments.close()
    judged = asked.session.judged() and settings.adjudicate is None
    _note(settings, asked, _verdict(asked, others) if judged else None)
    if judged:
        _note_next(settings, named, files, queries)
    return settings.output


def _retriever(settings: Judge) -> RetrieverFiles | None:
    """Return the retriever that is named in place of runs; None for runs.

    Raises:
        InputError: neither a retriever nor runs, or both.
    """
    paths = [name_and_path(str(text))[1] for text in settings.runs]
    found = [folder for path in (settings.collection, *paths) if is_retriever(folder := of_auto(path))]
    if found and len(paths) > (0 if is_retriever(of_auto(settings.collection)) else 1):
        problem = f"judge {found[0]}: pass one retriever, or a collection and runs"
        raise InputError(problem, code="conflicting-options", option="runs", path=found[0])
    if (found or paths) and settings.adjudicate is not None:
        raise option_error("adjudicate", None, "not with runs or a retriever", code="conflicting-options")
    if not found and not paths and settings.adjudicate is None:
        problem = f"judge {settings.collection}: needs runs, or a retriever"
        raise InputError(problem, code="missing-option", option="runs", needed_by="judge")
    return RetrieverFiles.read(found[0]) if found else None


def _searched_sides(settings: Judge, files: RetrieverFiles, queries: Path) -> tuple[dict[str, Path], list[Path]]:
    """Search a retriever and each of its indexes; return the runs of the indexes by name, and those of the fusion.

    Runs are written next to the judgments, so that the next session finds them; runs of other queries are replaced.

    Args:
        settings: settings of `judge`.
        files: the retriever.
        queries: file of the queries.
    """
    check_models(files.manifests)
    searched = [*files.indexes, *([files.folder] if len(files.indexes) > 1 else [])]
    output = settings.output
    names = dict(zip(short_names([*files.first_indexes, files.folder]), searched, strict=False))
    runs = {name: output.with_name(f"{output.stem}.{name.replace('/', '-')}.hits.parquet") for name in names}
    with artifacts.keeping_equal_outputs():
        for name, index in names.items():
            call(Search(queries=queries, index=index, group=files.stored.group, output=runs[name], overwrite=True))
    sides = list(runs)[: len(files.indexes)]
    return {name: runs[name] for name in sides}, [path for name, path in runs.items() if name not in sides]


def _queries(settings: Judge, of: Path | None, files: RetrieverFiles | None) -> Path:
    """Return the queries of `--queries`, of the collection, or of the collection that a retriever is of."""
    known = settings.queries or of
    if known is None and files is not None:
        known = collection_of(corpora_of(files.manifests))
    if known is None:
        problem = "judge: no queries; pass them with --queries, such as a text file with a query per line"
        raise InputError(problem, code="no-queries", option="queries")
    return collections.queries_path(known, settings.split)


def _corpora(of: Path | None, files: RetrieverFiles | None) -> list[Path]:
    """Return the corpora with the texts of documents: of the collection, or those that a retriever is of."""
    if of is not None or files is None:
        corpus = collections.corpus_path(of or Path())
        if files is not None:
            belongs_together(indexes={files.indexes[0]: files.manifests[0]}, corpus=corpus)
        return [corpus]
    corpora = known_corpora(files.manifests, "texts may be missing or of other documents; pass the collection")
    if not corpora:
        problem = f"{files.folder}: its corpus is no longer at the recorded path; pass the collection"
        raise InputError(problem, code="corpus-missing", path=files.folder, option="collection")
    return corpora


def _conflicts(paths: Sequence[Path]) -> list[Pool]:
    """Return the hits that several people grade differently, by query.

    Raises:
        InputError: fewer than two files, or no conflict.
    """
    differing = conflicts(judgments_of_people(paths)).group_by("qid", maintain_order=True)
    pooled = [Pool(str(qid), tuple(rows["docid"]), 0.0) for (qid,), rows in differing]
    if not pooled:
        raise InputError("--adjudicate: the people agree on every common hit", code="no-conflicts", option="adjudicate")
    return pooled


def _known(pooled: Sequence[Pool], texts: JudgedTexts) -> list[Pool]:
    """Return the pools of queries in the collection; refuse ids that a qrels file cannot store."""
    known = [pool for pool in pooled if pool.qid in texts.queries]
    if not known:
        problem = "judge: no query of the runs is in the collection; pass its --split"
        raise InputError(problem, code="other-queries", option="split")
    for name in (name for pool in known for name in (pool.qid, *pool.docids)):
        if any(mark in name for mark in "\t\n\r"):
            problem = f"judge: the id {name!r} contains a tab or a line break; a qrels file cannot store it"
            raise InputError(problem, code="unsafe-name", id=name)
    texts.check(dict.fromkeys(docid for pool in known for docid in pool.docids))
    return known


# ------------------------------------------------------------------------------------------------------------- machine


def _by_machine(
    settings: Judge, pooled: Sequence[Pool], texts: JudgedTexts, paths: Sequence[Path], files: RetrieverFiles | None
) -> Path:
    """Let a machine judge the hits without an answer, and write the qrels."""
    machines.refuse_people(settings.output)
    artifacts.lock_growing(settings.output)
    machine = _machine(settings, texts)
    journal = Journal.growing(machines.journal_path(settings.output))
    try:
        if machine.name in _rankers(paths, files):
            problem = f"judge: {machine.name} ranked hits of the runs; a judge prefers its own ranking"
            console.warn(problem, code="judge-ranks", model=machine.name)
        questions = {pair: (machines.key_of(machine, question), question) for pair, question in _asked(pooled, texts)}
        session = machines.MachineSession(machine, journal, questions)
        session.note_forecast()
        session.ask(settings.concurrency if settings.llm else 1)
        session.write(settings.output)
    finally:
        journal.close()
        machine.close()
    return settings.output


def _asked(pooled: Sequence[Pool], texts: JudgedTexts) -> Iterator[tuple[Pair, Question]]:
    """Yield every hit of the pools with its texts."""
    for number, pool in enumerate(pooled):
        query, ahead = texts.queries[pool.qid], pooled[number : number + judging.QUERIES_AT_ONCE]
        for docid in pool.docids:
            yield (pool.qid, docid), Question(query, *texts.of(docid, query, ahead))


def _machine(settings: Judge, texts: JudgedTexts) -> machines.Judge:
    """Return the machine of the options."""
    if settings.llm is not None:
        guidelines = read_text(settings.guidelines) if settings.guidelines else ""
        return machines.ChatJudge(settings.llm, str(settings.model), guidelines, settings.timeout, settings.max_calls)
    if settings.program is not None:
        return machines.CommandJudge(settings.program, settings.timeout)
    qrels = collections.read_qrels(settings.qrels or Path())
    qrels = qrels.filter(pl.col("qid").is_in(list(texts.queries)))
    known = texts.documents(qrels["docid"])
    labelled = [
        (Question(texts.queries[qid], *known[docid]), grade)
        for qid, docid, grade in qrels.iter_rows()
        if docid in known
    ]
    return machines.RerankerJudge(str(settings.reranker), labelled)


def _rankers(paths: Iterable[Path], files: RetrieverFiles | None) -> set[str]:
    """Return the names of the rerankers and other models that runs or a retriever record."""
    stored = files.stored.reranker if files is not None else None
    names = {str(stored["model"])} if stored is not None else set()
    for path in paths:
        made = artifacts.find_manifest(path)
        if made is not None and (model := made.inputs.get("model")) is not None:
            names.add(str(model.get("name") or model.get("path")))
    return {machines.in_one_word(name.rstrip("/").rpartition("/")[2]) for name in names} | names


# ------------------------------------------------------------------------------------------------------------- answers


def _from_lines(asked: Judging, lines: Iterable[str]) -> None:
    """Print one hit at a time, and read one answer per line."""
    count = 0
    source = enumerate(lines, 1)
    while (hit := asked.session.hit()) is not None:
        judging.show_plain(asked.view(*hit))
        number, line = next(((number, line.strip()) for number, line in source if line.strip()), (0, QUIT))
        if line == QUIT:
            break
        if notice := asked.answer(line, *hit):
            problem = f"standard input, line {number}: {notice}; answers are {judging.ANSWERS}"
            raise InputError(problem, code="not-an-answer", line=number, value=line)
        count += 1
    if hit is not None and not count:
        console.warn(
            f"judge: no answers; run it in a terminal, or pass one per line: {judging.ANSWERS}", code="no-answers"
        )


def _verdict(asked: Judging, others: Sequence[Path]) -> Verdict | None:
    """Compare the hybrid with the best run, so far: that of a retriever, or min-max of two runs; None without one."""
    compared, judged = asked.compared, asked.session.judged()
    if others:
        fused = runs.open_run(others[0])
    elif len(compared.opened) == 2:
        fused = compared.fused(judged)
    else:
        return None
    return compared.verdict(("hybrid", fused), judged)


def _note_next(settings: Judge, named: Mapping[str, Path], files: RetrieverFiles | None, queries: Path) -> None:
    """Print the command that uses the judgments: a tuning of two or more runs or indexes, or the measures of one."""
    if len(named) == 1:
        command = command_line(Evaluate(settings.runs if files is None else [*named.values()], qrels=settings.output))
    elif files is not None:
        command = command_line(judging.tuning(files, settings.output, queries, settings.measure))
    else:
        indexes = lineage.searched_indexes(named.values())
        exact = bool(indexes) and all(lineage.texts_of(path) is not None for path in named.values())
        weights = settings.output.with_name(f"{settings.output.stem}-weights.json")
        fuse = Fuse(settings.runs, tune=True, qrels=settings.output, measure=settings.measure, output=weights)
        command = command_line(fuse.changed(index=indexes) if exact else fuse)
    console.note(f"judge: to use the judgments:\n{command}", code="next-command", command=command)


def _note(settings: Judge, asked: Judging, verdict: Verdict | None) -> None:
    """Print the number of judgments, what they say, and whether more are possible."""
    session = asked.session
    grades = session.judgments.grades.values()
    skipped, judged = sum(grade is SKIPPED for grade in grades), session.judged()
    count = len(grades) - skipped
    text = f"judge: {settings.output}: {console.counted(judgment=count)}"
    text += f", {console.counted(hit=skipped)} skipped" if skipped else ""
    text += f"; {len(judged)} of {session.stop_after} queries judged"
    facts = {"judgments": count, "queries": len(judged), "skipped": skipped}
    console.note(text, code="judged", path=settings.output, **facts)
    if verdict is not None:
        console.note(f"judge: {verdict.sentence()}", code="verdict", **verdict.content())
    if session.exhausted():
        text = "judge: all queries of the runs are judged or skipped; more need deeper pools (--depth)"
        console.note(text, code="all-judged", option="depth")
    elif len(judged) >= session.stop_after:
        more = len(judged) + (10 if verdict is None or verdict.more is None else verdict.more)
        text = f"judge: enough queries are judged; --stop-after {more} continues"
        console.note(text, code="enough-judged", option="stop_after", value=more)
