"""perturb: attacks on queries, and translation there and back."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sentencepiece
import torch
from command import Notices, raises
from tiny_collection import TINY_DOCUMENTS
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from hybrid_cli import artifacts, runs
from hybrid_cli.collections import collection
from hybrid_cli.perturbations import synonyms, translation, wordnet
from hybrid_cli.perturbations.attacks import ATTACKS, MissingResource
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.stages.search import search
from hybrid_cli.storage import MANIFEST, Kind, layout

DATA = Path(__file__).parent / "data" / "wordnet"
ATTACK = "synonym-adversary"
ENGINES = ("matrix", "lucene")


def attacked(source: Path, output: Path, wordnet: Path = DATA, seed: int = 0) -> dict[str, str]:
    return texts(perturb(source, split="test", attacks=[ATTACK], output=output, wordnet=wordnet, seed=seed))


def with_queries(tiny: Path, folder: Path, queries: pl.DataFrame) -> Path:
    """Copy the tiny collection with other test queries, as another program might write them."""
    shutil.copytree(tiny, folder)
    queries.write_parquet(folder / "queries.test.parquet")
    return folder


def test_words_of_relevant_documents_are_replaced_by_new_synonyms(tiny: Path, tmp_path: Path) -> None:
    """`tide`, `great water` and `sodium` share a word with the relevant document; 006 has no judgment."""
    found = attacked(tiny, tmp_path / "a.parquet")
    assert found["001"] in {f"what does the {moon} do to the deep" for moon in ("night lamp", "Luna")}
    assert found["002"] == "salt in brine water"
    assert found["003"] == "breath in the red juice"
    assert found["004"] in {f"{near} arrow for a ask" for near in ("adjacent", "close")}
    assert found["005"] == "to be or not to be"
    assert found["006"] == "price of tea in China"


def test_counts_are_recorded_and_printed(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    attacked(tiny, tmp_path / "a.parquet")
    manifest = artifacts.read_manifest(tmp_path / "a.parquet", Kind.QUERIES)
    assert manifest.options == {"attack": ATTACK, "seed": 0}
    assert set(manifest.inputs) == {"queries", "qrels", "corpus", "wordnet"}
    expected = {"rows": 6, "queries": 6, "changed": 4, "unchanged_rate": 1 - 4 / 6, "without_relevant": 1}
    expected |= {"matched": 10, "replaced": 8, "without_synonym": 2}
    assert manifest.counts == expected
    assert notices.says("written", **{name: count for name, count in manifest.counts.items() if name != "rows"})
    attacked(tiny, tmp_path / "a.parquet")
    assert notices.says("up-to-date")


def test_ids_answers_and_order_are_kept(tiny: Path, tmp_path: Path) -> None:
    queries = pl.read_parquet(tiny / "queries.test.parquet").reverse()
    queries = queries.with_columns(answers=pl.Series([["yes"], None, ["a", "b"], [], None, None]))
    source = with_queries(tiny, tmp_path / "collection", queries)
    attacked(source, tmp_path / "a.parquet")
    found = collection.read_queries(tmp_path / "a.parquet")
    assert found.drop("text").equals(queries.drop("text").select("qid", "answers"))


@pytest.mark.parametrize("order", ["reversed", "alone"])
def test_a_query_is_independent_of_the_others(tiny: Path, tmp_path: Path, order: str) -> None:
    queries = pl.read_parquet(tiny / "queries.test.parquet")
    queries = queries.reverse() if order == "reversed" else queries.filter(pl.col("qid") == "001")
    whole = {seed: attacked(tiny, tmp_path / f"{seed}.parquet", seed=seed) for seed in range(4)}
    assert len({tuple(found.values()) for found in whole.values()}) > 1
    source = with_queries(tiny, tmp_path / "collection", queries)
    for seed, found in whole.items():
        again = attacked(source, tmp_path / f"again-{seed}.parquet", seed=seed)
        assert again == {qid: found[qid] for qid in queries["qid"]}


def test_documents_of_grade_0_are_not_relevant(tiny: Path, tmp_path: Path) -> None:
    """`moon landing`, which contains `moon`, is judged 0 for query 001."""
    source = with_queries(tiny, tmp_path / "collection", pl.read_parquet(tiny / "queries.test.parquet"))
    qrels = pl.read_parquet(tiny / "qrels.test.parquet").filter(pl.col("docid") != "007")
    qrels.write_parquet(source / "qrels.test.parquet")
    assert attacked(source, tmp_path / "a.parquet")["001"] == "what does the moon do to the oceans"


@pytest.mark.parametrize(("attack", "engine"), [(a, e) for a in ("shuffle", "word-order-swap") for e in ENGINES])
def test_runs_of_queries_in_another_order_are_equal(tiny: Path, tmp_path: Path, attack: str, engine: str) -> None:
    perturb(tiny, split="test", attacks=[attack], output=tmp_path / "shuffled.parquet")
    assert texts(tmp_path / "shuffled.parquet") != texts(tiny / "queries.test.parquet")
    index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    index = tmp_path / "bm25"
    for name, queries in (("before", tiny), ("after", tmp_path / "shuffled.parquet")):
        split = "test" if queries == tiny else None
        search(queries=queries, split=split, index=index, engine=engine, output=tmp_path / f"{name}.parquet")
    before, after = (runs.read_run(tmp_path / f"{name}.parquet") for name in ("before", "after"))
    assert len(before) == 9
    assert before.equals(after)


LOCAL: list[str] = ["char-swap", "word-deletion", "synonym-replacement", "word-order-swap", "synonym-insertion"]


def texts(path: Path) -> dict[str, str]:
    return dict(pl.read_parquet(path).select("qid", "text").iter_rows())


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordnet, "search_paths", lambda: iter(()))


def test_the_folder_contains_a_file_per_attack_and_meta_json(tiny: Path, tmp_path: Path) -> None:
    folder = perturb(tiny, split="test", attacks=["lite"], output=tmp_path / "q", wordnet=DATA)
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
    alone = perturb(tiny, split="test", attacks=["char-swap"], output=tmp_path / "one" / "char-swap.parquet")
    assert (folder / "char-swap.parquet").read_bytes() == alone.read_bytes(), "each file names its own inputs"


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


def test_without_wordnet_we_have_synonyms(tiny: Path, tmp_path: Path, bare: None, notices: Notices) -> None:
    before = texts(tiny / "queries.test.parquet")
    folder = perturb(tiny, split="test", attacks=["synonym-replacement", "synonym-adversary"], output=tmp_path / "q")
    assert notices.says("own-synonyms", path=synonyms.OWN)
    for name in ("synonym-replacement", "synonym-adversary"):
        assert texts(folder / f"{name}.parquet") != before
        assert "groups" in artifacts.read_manifest(folder / f"{name}.parquet").inputs


def test_files_are_bit_identical_in_another_process_and_for_parts_of_the_queries(tiny: Path, tmp_path: Path) -> None:
    """Two halves of the queries, in another order, give the same texts as all queries."""
    whole = perturb(tiny, split="test", attacks=LOCAL, output=tmp_path / "whole", wordnet=DATA)
    code = (
        "import sys; from hybrid_cli.stages.perturb import perturb\n"
        "perturb(sys.argv[1], split='test', attacks=sys.argv[4].split(','), output=sys.argv[2], "
        "wordnet=sys.argv[3])"
    )
    arguments = [str(tiny), str(tmp_path / "again"), str(DATA), ",".join(LOCAL)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    queries = pl.read_parquet(tiny / "queries.test.parquet").reverse()
    parts = []
    for number, part in enumerate((queries[::2], queries[1::2])):
        part.write_parquet(tmp_path / f"part-{number}.parquet")
        parts.append(
            perturb(tmp_path / f"part-{number}.parquet", attacks=LOCAL, output=tmp_path / str(number), wordnet=DATA)
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


TRANSLATE = "back-translation"
SPANISH = ">>es<<"
MAX_TOKENS = 10


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "BATCH_SIZE", 3)
    monkeypatch.setattr(translation, "MAX_TOKENS", MAX_TOKENS)


def make_marian(folder: Path, seed: int, codes: tuple[str, ...]) -> Path:
    """Write a Marian model of one layer and 16 dimensions, with a vocabulary from the tiny collection."""
    folder.mkdir()
    written = io.BytesIO()
    texts = iter([text for _, _, text in TINY_DOCUMENTS if text] * 4)
    options: Any = {"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=written, **options)
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(written.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ours = [piece for piece in map(pieces.id_to_piece, range(len(pieces))) if not piece.startswith("<")]
    vocabulary = {piece: place for place, piece in enumerate(["</s>", "<unk>", *codes, *ours, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    files = {name: str(folder / f"{name}.spm") for name in ("source", "target")}
    tokenizer = MarianTokenizer(
        files["source"], files["target"], str(folder / "vocab.json"), source_lang="en", target_lang="xx"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    last = len(vocabulary) - 1
    shape = MarianConfig(
        vocab_size=len(vocabulary), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.5,
        pad_token_id=last, eos_token_id=0, decoder_start_token_id=last, forced_eos_token_id=0,
    )  # fmt: skip # a model in few lines
    MarianMTModel(shape).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return make_marian(folder / "en-any", 1, (">>es<<", ">>fr<<")), make_marian(folder / "any-en", 2, ())


def translated(source: Path, output: Path, models: tuple[Path, Path], prefix: str = SPANISH) -> dict[str, str]:
    split = "test" if source.is_dir() else None
    perturb(source, split=split, attacks=[TRANSLATE], output=output, translation=models, translation_prefix=prefix)
    return dict(pl.read_parquet(output).select("qid", "text").iter_rows())


def one_at_a_time(folder: Path, text: str) -> str:
    tokenizer, model = MarianTokenizer.from_pretrained(folder), MarianMTModel.from_pretrained(folder).double().eval()
    tokens = tokenizer([text], return_tensors="pt", truncation=True, max_length=MAX_TOKENS)
    with torch.inference_mode():
        written = model.generate(**tokens, num_beams=translation.BEAMS, do_sample=False, max_new_tokens=MAX_TOKENS)
    return str(tokenizer.batch_decode(written, skip_special_tokens=True)[0])


def test_queries_are_translated_twice(tiny: Path, tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = translated(tiny, tmp_path / "a.parquet", models)
    queries = dict(pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").iter_rows())
    for qid, text in queries.items():
        back = one_at_a_time(models[1], one_at_a_time(models[0], f">>es<< {text}")).strip()
        assert found[qid] == (back or text)
    assert len(set(found.values())) > 3
    assert translated(tiny, tmp_path / "b.parquet", models, ">>fr<<") != found
    pl.read_parquet(tiny / "queries.test.parquet").reverse().write_parquet(tmp_path / "reversed.parquet")
    assert translated(tmp_path / "reversed.parquet", tmp_path / "c.parquet", models) == found
    manifest = artifacts.read_manifest(tmp_path / "a.parquet", Kind.QUERIES)
    assert set(manifest.inputs) == {"queries", "there", "back"}
    assert manifest.options["translation_prefix"] == SPANISH
    assert manifest.counts["changed"] == sum(found[qid] != text for qid, text in queries.items()) > 0


def test_a_query_with_an_empty_translation_is_kept(tiny: Path, tmp_path: Path, models: tuple[Path, Path]) -> None:
    """A model that starts with the end token generates nothing."""
    silent = tmp_path / "silent"
    tokenizer, model = MarianTokenizer.from_pretrained(models[1]), MarianMTModel.from_pretrained(models[1])
    model.final_logits_bias[0, 0] = 1e6
    model.save_pretrained(silent)
    tokenizer.save_pretrained(silent)
    found = translated(tiny, tmp_path / "a.parquet", (models[0], silent))
    assert found == dict(pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").iter_rows())
    assert artifacts.read_manifest(tmp_path / "a.parquet", Kind.QUERIES).counts["unchanged_rate"] == 1
