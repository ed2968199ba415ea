"""`perturb` with several attacks: a folder with one file per attack, missing resources, meta.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import Notices, raises

from hybrid_cli import artifacts
from hybrid_cli.collections import collection
from hybrid_cli.perturbations import synonyms, wordnet
from hybrid_cli.perturbations.attack import MissingResource
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.storage import MANIFEST, layout

SMALL = Path(__file__).parent / "data" / "wordnet"
LOCAL: list[str] = ["char-swap", "word-deletion", "synonym-replacement", "word-order-swap", "synonym-insertion"]


def texts(path: Path) -> dict[str, str]:
    return dict(pl.read_parquet(path).select("qid", "text").iter_rows())


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide an installed WordNet."""
    monkeypatch.setattr(wordnet, "search_paths", lambda: iter(()))


def test_the_folder_contains_a_file_per_attack_and_meta_json(tiny: Path, tmp_path: Path) -> None:
    folder = perturb(tiny, split="test", attacks=["lite"], output=tmp_path / "q", wordnet=SMALL)
    assert {file.name for file in folder.iterdir()} == {
        MANIFEST,
        layout.ATTACKS,
        *(f"{name}.parquet" for name in LOCAL),
    }
    meta = json.loads((folder / layout.ATTACKS).read_text("utf-8"))
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
        assert meta["attacks"][name]["options"] == {"attack": name, "word_fraction": 0.1, "seed": 0}
    assert "--translation THERE BACK" in meta["skipped"]["back-translation"]


def test_attacks_without_their_resources_are_skipped(tiny: Path, tmp_path: Path, bare: None, notices: Notices) -> None:
    folder = perturb(tiny, split="test", attacks=["all"], output=tmp_path / "q")
    assert {file.stem for file in folder.glob("*.parquet")} == {*ATTACKS} - {"back-translation"}
    skipped = [notice.fields["attack"] for notice in notices.heard if notice.code == "missing-resource"]
    assert skipped == ["back-translation"]
    with raises("missing-resource", MissingResource, attack="back-translation"):
        perturb(tiny, split="test", attacks=["back-translation"], output=tmp_path / "a.parquet")
    with raises("missing-resource", MissingResource, path="none"):
        perturb(tiny, split="test", attacks=["back-translation"], output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_without_wordnet_synonyms_come_from_our_own_table(
    tiny: Path, tmp_path: Path, bare: None, notices: Notices
) -> None:
    before = texts(tiny / "queries.test.parquet")
    folder = perturb(tiny, split="test", attacks=["synonym-replacement", "synonym-adversary"], output=tmp_path / "q")
    assert notices.says("own-synonyms", path=synonyms.OWN)
    for name in ("synonym-replacement", "synonym-adversary"):
        assert texts(folder / f"{name}.parquet") != before
        assert "groups" in artifacts.read_manifest(folder / f"{name}.parquet").inputs


def test_a_folder_is_one_artifact(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    folder = perturb(tiny, split="test", attacks=["char-swap", "shuffle"], output=tmp_path / "q")
    first = (folder / "shuffle.parquet").read_bytes()
    notices.clear()
    perturb(tiny, split="test", attacks=["char-swap", "shuffle"], output=folder)
    assert notices.says("up-to-date", stage="perturb", path=folder)
    with raises("output-differs", path="q"):
        perturb(tiny, split="test", attacks=["char-swap", "shuffle"], output=folder, seed=1)
    with raises("inside-artifact", path="shuffle.parquet"):
        perturb(tiny, split="test", attacks=["shuffle"], output=folder / "shuffle.parquet", seed=1, overwrite=True)
    perturb(tiny, split="test", attacks=["shuffle", "word-deletion"], output=folder, overwrite=True)
    assert (folder / "shuffle.parquet").read_bytes() == first
    assert not (folder / "char-swap.parquet").exists()
    (folder / "run.parquet").write_bytes(first)
    with raises("foreign-file", path="q"):
        perturb(tiny, split="test", attacks=["shuffle"], output=folder, overwrite=True)


def test_files_are_bit_identical_in_another_process_and_for_parts_of_the_queries(tiny: Path, tmp_path: Path) -> None:
    """Two halves of the queries, in another order, give the same texts as all queries."""
    whole = perturb(tiny, split="test", attacks=LOCAL, output=tmp_path / "whole", wordnet=SMALL)
    code = (
        "import sys; from hybrid_cli.stages.perturb import perturb\n"
        "perturb(sys.argv[1], split='test', attacks=sys.argv[4].split(','), output=sys.argv[2], "
        "wordnet=sys.argv[3])"
    )
    arguments = [str(tiny), str(tmp_path / "again"), str(SMALL), ",".join(LOCAL)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    queries = pl.read_parquet(tiny / "queries.test.parquet").reverse()
    parts = []
    for number, part in enumerate((queries[::2], queries[1::2])):
        part.write_parquet(tmp_path / f"part-{number}.parquet")
        parts.append(
            perturb(tmp_path / f"part-{number}.parquet", attacks=LOCAL, output=tmp_path / str(number), wordnet=SMALL)
        )
    for name in LOCAL:
        file = f"{name}.parquet"
        assert (tmp_path / "again" / file).read_bytes() == (whole / file).read_bytes()
        assert texts(parts[0] / file) | texts(parts[1] / file) == texts(whole / file)


def test_queries_attacked_by_another_tool_are_read(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "bt.tsv"
    file.write_text("001\twhat does the satellite do to the seas\n003\t \n999\tunknown\n", "utf-8")
    attacks: list[str] = ["back-translation", "shuffle"]
    attacked = {"back-translation": file}
    folder = perturb(tiny, split="test", attacks=attacks, output=tmp_path / "q", attacked_queries=attacked)
    before, after = texts(tiny / "queries.test.parquet"), texts(folder / "back-translation.parquet")
    assert after == {**before, "001": "what does the satellite do to the seas"}
    meta = json.loads((folder / layout.ATTACKS).read_text("utf-8"))["attacks"]["back-translation"]
    assert (meta["changed"], meta["not_in_file"]) == (1, 4)
    assert meta["options"] == {"attack": "back-translation"}
