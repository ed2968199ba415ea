"""Generated samples in the forms of the papers' collections, for `make COLLECTION SCALE=small`.

    python studies/sample.py msmarco|nq|odqa|beir|entityquestions|robust04|trec-covid|model FOLDER

The texts state facts about invented people, towns and works; each question asks for one fact, and one passage has the
answer. The files have the names and forms of the originals. `model` is a start model or a released encoder: a BERT of
two layers and 192 dimensions, whose random weights depend on the name of the folder. Two calls write the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from zlib import crc32

PEOPLE, FACTS = 120, 6  # 120 people with 6 facts each, in two passages: 240 passages, 720 questions
RELATIONS = {  # the 24 relations of EntityQuestions: sentence, question
    "P17": ("{0} lives in the country of {1}.", "which country is {0} located in?"),
    "P19": ("{0} was born in {1}.", "where was {0} born?"),
    "P20": ("{0} died in {1}.", "where did {0} die?"),
    "P26": ("{0} was married to {1}.", "who is {0} married to?"),
    "P36": ("The estate of {0} has its capital in {1}.", "what is the capital of {0}?"),
    "P40": ("{0} raised a child called {1}.", "who is {0}'s child?"),
    "P50": ("The memoirs of {0} were written by {1}.", "who is the author of {0}?"),
    "P69": ("{0} was educated at the school of {1}.", "where was {0} educated?"),
    "P106": ("{0} worked for many years as a {1}.", "what kind of work does {0} do?"),
    "P112": ("The society of {0} was founded by {1}.", "who founded {0}?"),
    "P127": ("The house of {0} is owned by {1}.", "who owns {0}?"),
    "P131": ("The garden of {0} lies in the district of {1}.", "where is {0} located?"),
    "P136": ("{0} composed mostly {1} music.", "what type of music does {0} play?"),
    "P159": ("The company of {0} keeps its headquarters in {1}.", "where is the headquarters of {0}?"),
    "P170": ("The portrait of {0} was created by {1}.", "who was {0} created by?"),
    "P175": ("The song about {0} was performed by {1}.", "who performed {0}?"),
    "P176": ("The bicycle of {0} was produced by {1}.", "which company is {0} produced by?"),
    "P264": ("{0} signed a contract with the label {1}.", "what music label is {0} represented by?"),
    "P276": ("The festival of {0} takes place in {1}.", "where is {0} held?"),
    "P407": ("The letters of {0} were printed in {1}.", "which language was {0} written in?"),
    "P413": ("{0} played for the local team as {1}.", "what position does {0} play?"),
    "P495": ("The recipe of {0} comes from {1}.", "which country was {0} created in?"),
    "P740": ("The choir of {0} was formed in {1}.", "where was {0} founded?"),
    "P800": ("{0} is famous for a work named {1}.", "what is {0} famous for?"),
}
_CHARACTERS = 2000  # ids of MiniLM's vocabulary below are special tokens and characters
_STARTS = ("Bar", "Cel", "Dor", "Fen", "Gal", "Hol", "Jar", "Kel", "Lor", "Mar", "Nor", "Pol", "Rav", "Sel", "Tor",
           "Ul", "Var", "Wen", "Yor", "Zan")  # fmt: skip
_ENDS = ("adin", "bury", "camo", "dale", "evik", "foss", "grad", "hausen", "ilo", "jova", "kirk", "lund", "mont", "nau",
         "oski", "poli", "quet", "rith", "stad", "ton")  # fmt: skip
_FILLERS = (
    "Local papers reported about it for weeks.",
    "The archive of the town keeps several letters on the matter.",
    "Historians still discuss the details, and few documents remain.",
    "A small exhibition remembers these years every spring.",
    "Neighbours described the household as quiet and generous.",
)


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the number of the passage that has it."""

    relation: str
    text: str
    answer: str
    passage: int


def _word(number: int) -> str:
    return _STARTS[number * 7 % 20] + _ENDS[(number * 3 + number // 20) % 20]


def world() -> tuple[list[tuple[str, str]], list[Question]]:
    """Return the passages (title, text) and the questions; passage N is item N."""
    passages, questions, values = list[tuple[str, str]](), list[Question](), count(1000)
    names = list(RELATIONS)
    for person in range(PEOPLE):
        name = f"{_word(person)} {(family := _word(5 * (person % 41) + 211))}"  # families of three
        for half in range(2):
            sentences = []
            for fact in range(FACTS // 2):
                relation = names[(person * FACTS + half * FACTS // 2 + fact) % len(names)]
                sentence, question = RELATIONS[relation]
                answer = f"{_word(next(values))} {_word(person + 40 * fact)}"
                sentences += [sentence.format(name, answer), _FILLERS[(person + fact + half) % len(_FILLERS)]]
                questions.append(Question(relation, question.format(family.lower()), answer, len(passages)))
            passages.append((name, " ".join(sentences)))
    return passages, questions


PASSAGES, QUESTIONS = world()
SPLITS = {"train": QUESTIONS[0::7] + QUESTIONS[3::7], "dev": QUESTIONS[1::14], "test": QUESTIONS[2::14]}


def _lines(file: Path, rows: Iterable[object]) -> None:
    """Write one row per line: texts unchanged, sequences with tabs, dictionaries as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as opened:
        for row in rows:
            text = json.dumps(row) if isinstance(row, dict) else row
            opened.write((text if isinstance(text, str) else "\t".join(map(str, text))) + "\n")


def _qrels(questions: Sequence[Question], first: int, form: str = "{} 0 {} {}", graded: bool = False) -> Iterator[str]:
    """Yield judgments: the passage of the answer, and with grades also the other passage of the person."""
    for number, question in enumerate(questions, first):
        yield form.format(number, question.passage, 3 if graded else 1)
        if graded:
            yield form.format(number, question.passage ^ 1, 1)
            yield form.format(number, (question.passage + 2) % len(PASSAGES), 0)


def msmarco(folder: Path) -> None:
    """Write the files of MS MARCO passage and of TREC DL 2019."""
    _lines(folder / "collection.tsv", ((number, text) for number, (_, text) in enumerate(PASSAGES)))
    names = {"train": ("train", 1000), "test": ("dev.small", 5000)}
    for split, (name, first) in names.items():
        rows = ((number, question.text) for number, question in enumerate(SPLITS[split], first))
        _lines(folder / f"queries.{name}.tsv", rows)
        _lines(folder / f"qrels.{name}.tsv", _qrels(SPLITS[split], first, "{}\t0\t{}\t{}"))
    triples = (
        (number, question.passage, (question.passage + step) % len(PASSAGES))
        for number, question in enumerate(SPLITS["train"], 1000)
        for step in (1, 4)
    )
    _lines(folder / "qidpidtriples.train.full.2.tsv", triples)
    rows = ((number, question.text) for number, question in enumerate(SPLITS["dev"], 9000))
    _lines(folder / "msmarco-test2019-queries.tsv", rows)
    _lines(folder / "2019qrels-pass.txt", _qrels(SPLITS["dev"], 9000, graded=True))


def _context(passage: int) -> dict[str, str]:
    title, text = PASSAGES[passage]
    return {"title": title, "text": text, "passage_id": str(passage + 1)}


def wikipedia(folder: Path) -> None:
    """Write DPR's passages."""
    rows = ((number, text, title) for number, (title, text) in enumerate(PASSAGES, 1))
    _lines(folder / "psgs_w100.tsv", [("id", "text", "title"), *rows])


def nq(folder: Path) -> None:
    """Write DPR's passages, training files and questions with answers."""
    wikipedia(folder)
    for split in ("train", "dev"):
        _training(folder / f"biencoder-nq-{split}.json", SPLITS[split])
    _asked(folder / "nq-test.qa.csv", SPLITS["test"])


def _training(file: Path, questions: Iterable[Question]) -> None:
    """Write questions with their answers and passages, as DPR's training files."""
    records = [
        {
            "question": question.text,
            "answers": [question.answer],
            "positive_ctxs": [_context(question.passage)],
            "hard_negative_ctxs": [_context((question.passage + step) % len(PASSAGES)) for step in (1, 4, 9)],
        }
        for question in questions
    ]
    _lines(file, [json.dumps(records)])


def _asked(file: Path, questions: Iterable[Question]) -> None:
    """Write questions with their answers, as DPR's test files."""
    _lines(file, ((question.text, [question.answer]) for question in questions))


def odqa(folder: Path) -> None:
    """Write the dev and test questions of five sets; the passages are those of NQ."""
    for place, name in enumerate(("nq", "squad1", "trivia", "webquestions", "curatedtrec")):
        _training(folder / f"biencoder-{name}-dev.json", QUESTIONS[1 + place :: 28])
        _asked(folder / f"{name}-test.qa.csv", QUESTIONS[8 + place :: 28])


def beir(folder: Path) -> None:
    """Write four sets, of which two are forums of CQADupStack."""
    for place, name in enumerate(("msmarco", "scifact", "cqadupstack/gis", "cqadupstack/english")):
        numbers = range(60 * place, 60 * place + 60)
        documents = ({"_id": f"d{n}", "title": PASSAGES[n][0], "text": PASSAGES[n][1], "metadata": {}} for n in numbers)
        _lines(folder / name / "corpus.jsonl", documents)
        questions = [question for question in SPLITS["test"] if question.passage in numbers]
        queries = ({"_id": f"q{n}", "text": question.text, "metadata": {}} for n, question in enumerate(questions))
        _lines(folder / name / "queries.jsonl", queries)
        judged = (f"q{n}\td{question.passage}\t1" for n, question in enumerate(questions))
        split = "dev" if name == "msmarco" else "test"
        _lines(folder / name / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *judged])


def entityquestions(folder: Path) -> None:
    """Write the test questions of each relation; the passages are those of NQ."""
    for place, relation in enumerate(RELATIONS):
        questions = [question for question in QUESTIONS if question.relation == relation][: 4 + place % 3]
        records = [{"question": question.text, "answers": [question.answer]} for question in questions]
        _lines(folder / "test" / f"{relation}.test.json", [json.dumps(records)])


def robust04(folder: Path) -> None:
    """Write documents and topics in SGML, judgments, and two folds."""
    for place in range(2):
        documents = (
            f"<DOC>\n<DOCNO> FT911-{number} </DOCNO>\n<HEADLINE>\n{PASSAGES[number][0]}\n</HEADLINE>\n"
            f"<TEXT>\n{PASSAGES[number][1]}\n</TEXT>\n</DOC>"
            for number in range(place, len(PASSAGES), 2)
        )
        _lines(folder / "disk45" / f"ft911_{place}", documents)
    questions = QUESTIONS[::24]
    topics = (
        f"<top>\n\n<num> Number: {number} \n<title> {question.text.rstrip('?')}\n\n"
        f"<desc> Description: \n{question.text}\n\n<narr> Narrative: \nRelevant documents name the answer.\n\n</top>\n"
        for number, question in enumerate(questions, 301)
    )
    _lines(folder / "topics.robust04.txt", topics)
    _lines(folder / "qrels.robust04.txt", _qrels(questions, 301, "{} 0 FT911-{} {}", graded=True))
    folds = [[str(301 + number) for number in range(fold, len(questions), 2)] for fold in range(2)]
    _lines(folder / "folds.json", [json.dumps(folds)])


def trec_covid(folder: Path) -> None:
    """Write papers, topics and judgments of two rounds."""
    papers = ({"id": f"p{n}", "title": title, "text": text} for n, (title, text) in enumerate(PASSAGES))
    _lines(folder / "docs.jsonl", papers)
    questions = SPLITS["test"]
    topics = (
        f'  <topic number="{number}">\n    <query>{question.text.rstrip("?")}</query>\n    <question>{question.text}'
        f"</question>\n    <narrative>Papers with the answer.</narrative>\n  </topic>"
        for number, question in enumerate(questions, 1)
    )
    _lines(folder / "topics-rnd2.xml", ['<topics task="COVIDSearch" batch="2">', *topics, "</topics>"])
    _lines(folder / "qrels-rnd2.txt", _qrels(questions, 1, "{} 2 p{} {}"))
    earlier = (
        f"{number} 1 p{(question.passage + 2) % len(PASSAGES)} 0" for number, question in enumerate(questions, 1)
    )
    _lines(folder / "qrels-rnd1.txt", earlier)


def model(folder: Path) -> None:
    """Write a small BERT with weights drawn for the name of the folder.

    At the start, its [CLS] vector is a random projection of the bag of words: positions and [CLS] add nothing. So an
    encoder is better than chance, and weights of sums with BM25 can be tuned. The vocabulary is MiniLM's special tokens
    and characters, and its pieces in the texts of the sample.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from hybrid_cli.encoders.models import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    texts = [text for passage in PASSAGES for text in passage] + [question.text for question in QUESTIONS]
    used = sorted({number for ids in tokenizer(texts).input_ids for number in ids if number >= _CHARACTERS})
    tokenizer.save_pretrained(folder)
    rules = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    number_of = rules["model"]["vocab"]
    piece_of = {number: piece for piece, number in number_of.items()}
    kept = {piece: number for piece, number in number_of.items() if number < _CHARACTERS}
    rules["model"]["vocab"] = kept | {piece_of[number]: _CHARACTERS + n for n, number in enumerate(used)}
    (folder / "tokenizer.json").write_text(json.dumps(rules), "utf-8")
    torch.manual_seed(crc32(folder.name.encode()))
    shape = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 384}
    encoder = BertModel(BertConfig(vocab_size=_CHARACTERS + len(used), **shape, initializer_range=0.05))
    with torch.no_grad():
        embeddings = encoder.embeddings
        embeddings.position_embeddings.weight.zero_()
        embeddings.word_embeddings.weight[[tokenizer.cls_token_id, tokenizer.sep_token_id]] = 0
    encoder.save_pretrained(folder)


SAMPLES: dict[str, Callable[[Path], None]] = {
    "msmarco": msmarco,
    "nq": nq,
    "odqa": odqa,
    "beir": beir,
    "entityquestions": entityquestions,
    "robust04": robust04,
    "trec-covid": trec_covid,
    "model": model,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a sample."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("collection", choices=sorted(SAMPLES))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    SAMPLES[given.collection](given.folder)


if __name__ == "__main__":
    main()
