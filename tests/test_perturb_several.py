"""`perturb` for several attacks: a folder with a file for each, what is missing named, what was done in meta.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import hybrid

from hybrid_cli import runs
from hybrid_cli.collections import collection
from hybrid_cli.config import Perturbation
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations import wordnet
from hybrid_cli.perturbations.attack import Lacking
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.perturb import META, Sources, perturb
from hybrid_cli.stages.search import search

ROOT = Path(__file__).parent.parent

SMALL = Sources(wordnet=Path(__file__).parent / "data" / "wordnet")
LOCAL = ["char-swap", "word-deletion", "synonym-replacement", "word-order-swap", "synonym-insertion"]


def texts(path: Path) -> dict[str, str]:
    return dict(pl.read_parquet(path).select("qid", "text").iter_rows())


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without WordNet."""
    monkeypatch.setattr(wordnet, "_places", lambda: iter(()))


def test_a_folder_has_a_file_for_each_attack_and_says_what_was_done(tiny, tmp_path):
    folder = perturb(tiny, split="test", attacks=["lite"], output=tmp_path / "q", sources=SMALL)
    assert {file.name for file in folder.iterdir()} == {META, *(f"{name}.parquet" for name in LOCAL)}
    meta = json.loads((folder / META).read_text("utf-8"))
    assert meta["seed"] == 0
    assert {"hybrid", "polars", "torch"} <= meta["versions"].keys()
    assert list(meta["attacks"]) == LOCAL
    before = collection.read_queries(tiny / "queries.test.parquet")
    for name in LOCAL:
        after = collection.read_queries(folder / meta["attacks"][name]["file"])
        assert after.drop("text").equals(before.drop("text"))
        assert all(text.strip() for text in after["text"])
        same = int((after["text"] == before["text"]).sum())
        assert meta["attacks"][name]["unchanged_rate"] == pytest.approx(same / len(before))
        assert meta["attacks"][name]["options"]["share"] == 0.1
    assert "--translation THERE BACK" in meta["left_out"]["back-translation"]


def test_what_this_machine_lacks_is_said_and_the_others_are_made(tiny, tmp_path, bare, capsys):
    folder = perturb(tiny, split="test", attacks=["all"], output=tmp_path / "q")
    made = {"char-swap", "word-deletion", "word-order-swap", "shuffle"}
    assert {file.stem for file in folder.glob("*.parquet")} == made
    said = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert [line.split(": ")[2].split()[0] for line in said] == [name for name in ATTACKS if name not in made]
    assert "apt-get install wordnet-base" in said[0]
    with pytest.raises(Lacking, match="--attack synonym-replacement: WordNet, which has the synonyms, is not"):
        perturb(tiny, split="test", attacks=["synonym-replacement"], output=tmp_path / "a.parquet")
    with pytest.raises(Lacking, match="none of the attacks can be made here"):
        perturb(tiny, split="test", attacks=["synonym-replacement", "back-translation"], output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_make_goes_on_without_what_is_lacking_but_not_after_a_crash(tiny, tmp_path, bare, monkeypatch):
    command = [
        "perturb",
        tiny,
        "--split",
        "test",
        "--attack",
        "synonym-replacement",
        "--output",
        tmp_path / "a.parquet",
    ]
    lacking = hybrid(*command).code
    assert f"|| test $$? -eq {lacking}\n" in (ROOT / "pipelines" / "robustness.mk").read_text("utf-8")
    monkeypatch.setattr("hybrid_cli.stages.perturb.perturb", None)
    crashed = hybrid(*command)
    assert "a bug in hybrid" in crashed.err
    assert crashed.code not in (0, lacking)


def test_a_table_of_synonyms_serves_all_that_need_them(tiny, tmp_path, bare):
    table = tmp_path / "synonyms.tsv"
    table.write_text("salt\thalite\n", "utf-8")
    chosen = ["synonym-replacement", "synonym-insertion", "synonym-adversary"]
    folder = perturb(tiny, split="test", attacks=chosen, output=tmp_path / "q", sources=Sources(synonyms=table))
    assert texts(folder / "synonym-replacement.parquet")["002"] == "halite in sea water"
    assert "halite" in texts(folder / "synonym-insertion.parquet")["002"]
    assert texts(folder / "synonym-adversary.parquet")["002"] == "halite in sea water"


def test_what_is_there_is_not_made_again_and_what_is_not_is(tiny, tmp_path, capsys):
    folder = perturb(tiny, split="test", attacks=["char-swap", "shuffle"], output=tmp_path / "q")
    first = (folder / "shuffle.parquet").read_bytes()
    capsys.readouterr()
    perturb(tiny, split="test", attacks=["shuffle", "word-deletion"], output=folder)
    said = capsys.readouterr().err
    assert f"{folder / 'shuffle.parquet'} is up to date" in said
    assert "word-deletion.parquet: 6 queries" in said
    assert (folder / "shuffle.parquet").read_bytes() == first
    with pytest.raises(InputError, match="was made differently: seed=0 then, 1 now"):
        perturb(tiny, split="test", attacks=["shuffle"], output=folder, how=Perturbation(seed=1))


def test_files_are_the_same_bytes_in_another_process_and_queries_in_any_part(tiny, tmp_path):
    """Two workers with half of the queries each, in another order, come to what one comes to."""
    whole = perturb(tiny, split="test", attacks=LOCAL, output=tmp_path / "whole", sources=SMALL)
    code = (
        "import sys; from pathlib import Path; from hybrid_cli.stages.perturb import Sources, perturb\n"
        "perturb(Path(sys.argv[1]), split='test', attacks=sys.argv[4].split(','), output=Path(sys.argv[2]), "
        "sources=Sources(wordnet=Path(sys.argv[3])))"
    )
    arguments = [str(tiny), str(tmp_path / "again"), str(SMALL.wordnet), ",".join(LOCAL)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    queries = pl.read_parquet(tiny / "queries.test.parquet").reverse()
    parts = []
    for number, part in enumerate((queries[::2], queries[1::2])):
        part.write_parquet(tmp_path / f"part-{number}.parquet")
        parts.append(
            perturb(tmp_path / f"part-{number}.parquet", attacks=LOCAL, output=tmp_path / str(number), sources=SMALL)
        )
    for name in LOCAL:
        file = f"{name}.parquet"
        assert (tmp_path / "again" / file).read_bytes() == (whole / file).read_bytes()
        assert texts(parts[0] / file) | texts(parts[1] / file) == texts(whole / file)


def test_bm25_sees_the_order_of_words_only_where_analysis_does(tiny, tmp_path):
    perturb(tiny, split="test", attacks=["word-order-swap"], output=tmp_path / "swapped.parquet")
    index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    search(tiny, split="test", index=tmp_path / "bm25", output=tmp_path / "before.parquet")
    search(None, queries=tmp_path / "swapped.parquet", index=tmp_path / "bm25", output=tmp_path / "after.parquet")
    assert texts(tmp_path / "swapped.parquet") != texts(tiny / "queries.test.parquet")
    assert runs.read_run(tmp_path / "after.parquet").equals(runs.read_run(tmp_path / "before.parquet"))


def test_queries_that_others_have_attacked_are_taken_as_they_are(tiny, tmp_path):
    ready = tmp_path / "bt.tsv"
    ready.write_text("001\twhat does the satellite do to the seas\n003\t \n999\tunknown\n", "utf-8")
    sources = Sources(ready={"back-translation": ready})
    folder = perturb(
        tiny, split="test", attacks=["back-translation", "shuffle"], output=tmp_path / "q", sources=sources
    )
    before, after = texts(tiny / "queries.test.parquet"), texts(folder / "back-translation.parquet")
    assert after == {**before, "001": "what does the satellite do to the seas"}
    told = json.loads((folder / META).read_text("utf-8"))["attacks"]["back-translation"]
    assert (told["changed"], told["not_in_file"]) == (1, 4)
    assert told["options"] == {"attack": "back-translation"}


def test_bad_input_is_refused_before_any_work(tiny, tmp_path):
    ready = tmp_path / "other.tsv"
    ready.write_text("q1\ta text\n", "utf-8")

    def refused(message: str, *attacks: str, output: str = "q", **sources) -> None:
        with pytest.raises(InputError, match=message):
            perturb(tiny, split="test", attacks=attacks, output=tmp_path / output, sources=Sources(**sources))

    refused("other.tsv: has none of the queries; its first id is q1", "shuffle", ready={"shuffle": ready})
    refused("--ready shuffle=...: is none of the attacks; they are char-swap", "char-swap", ready={"shuffle": ready})
    refused("--synonyms: means nothing to --attack char-swap,shuffle", "char-swap", "shuffle", synonyms=ready)
    refused("--wordnet and --synonyms: name one", "lite", synonyms=ready, wordnet=SMALL.wordnet)
    refused("gone: no such file", "synonym-replacement", synonyms=tmp_path / "gone")
    refused("q.parquet: several attacks go into a folder; name one without .parquet", "lite", output="q.parquet")
    assert not list(tmp_path.glob("q*/*"))
