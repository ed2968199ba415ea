"""Topics and documents of the TREC, CLEF and NTCIR tracks: no content is left out without a count."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import ran, refused

from hybrid_cli import artifacts
from hybrid_cli.collections.readers import markup, trec
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.rows import InputFile

ADHOC = """<top>
<head> Tipster Topic Description
<num> Number: 051
<dom> Domain: International Economics
<title> Topic: Airbus <i>Subsidies</i>
<desc> Description:
Document will discuss government assistance.
<narr> Narrative:
A relevant document cites R&D.
<con> Concept(s):
1. Airbus
<fac> Factor(s):
<nat> Nationality: European
</fac>
<def> Definition(s):
</top>
"""
LATER = "<top>\n\n<num> Number: 401\n<title> foreign minorities, Germany\n\n<desc> Description:\nWhat?\n</top>\n"
COVID = (
    '<topics task="x"><topic number="1"><query>corona</query><question>what is it</question>'
    "<narrative>all of it</narrative></topic></topics>"
)
WEB = (
    '<webtrack2012><topic number="151" type="faceted">\n<query>403b</query>\n<description>What is a 403b plan?'
    '</description>\n<subtopic number="1" type="inf">Who is eligible?</subtopic></topic></webtrack2012>'
)
MEDICINE = (
    '<topics><topic number="3"><disease>Melanoma</disease><gene>BRAF &lpar;V600E&rpar;</gene><other>none</other>'
    "</topic></topics>"
)
TRIALS = (
    '<topics task="2021">\n<topic number="1">\nA 45-year-old man\nwith anaplastic astrocytoma.\n</topic>\n</topics>'
)
CLEF = (
    '<topics><topic lang="en"><identifier>10.2452/251-AH</identifier><title>Alternative <em>medicine</em></title>'
    "<description>Find</description></topic></topics>"
)
CLEF_2000 = "<top>\n<num> C041 </num>\n<EN-title> Pesticides </EN-title>\n<EN-desc> Find </EN-desc>\n</top>\n"
NTCIR = "<TOPIC><NUM>001</NUM><TITLE>digital library</TITLE><DESC>x</DESC></TOPIC>"
UPPER = "<TOP><NUM>Number: 9</NUM><TITLE>tea\n&amp; coffee</TITLE></TOP>"


def topics_of(folder: Path, content: str, *words: object, name: str = "topics.txt") -> list[tuple[str, str]]:
    (folder / name).write_text(content, "utf-8")
    (folder / "docs.jsonl").write_text('{"id": "1", "text": "a document"}\n', "utf-8")
    ran(
        *("prepare", "trec", folder / "docs.jsonl", "--topics", f"test={folder / name}", *words),
        *("--output", folder / "made", "--overwrite"),
    )
    return pl.read_parquet(folder / "made" / "queries.test.parquet").select("qid", "text").rows()


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        (ADHOC, "title", ("051", "Airbus Subsidies")),
        (ADHOC, "title,desc", ("051", "Airbus Subsidies Document will discuss government assistance.")),
        (ADHOC, "narr", ("051", "A relevant document cites R&D.")),
        (ADHOC, "con", ("051", "1. Airbus")),
        (ADHOC, "dom", ("051", "International Economics")),
        (ADHOC, "fac", ("051", "Nationality: European")),
        (LATER, "title", ("401", "foreign minorities, Germany")),
        (LATER, "description", ("401", "What?")),
        (COVID, "title", ("1", "corona")),
        (COVID, "desc,narr", ("1", "what is it all of it")),
        (WEB, "title", ("151", "403b")),
        (WEB, "description", ("151", "What is a 403b plan?")),
        (WEB, "subtopic", ("151", "Who is eligible?")),
        (MEDICINE, "disease,gene", ("3", "Melanoma BRAF (V600E)")),
        (TRIALS, "title", ("1", "A 45-year-old man with anaplastic astrocytoma.")),
        (CLEF, "title", ("10.2452/251-AH", "Alternative medicine")),
        (CLEF_2000, "title,desc", ("C041", "Pesticides Find")),
        (NTCIR, "title", ("001", "digital library")),
        (UPPER, "title", ("9", "tea & coffee")),
    ],
)
def test_topics_of_every_track_are_read(tmp_path: Path, content: str, fields: str, expected: tuple[str, str]) -> None:
    assert topics_of(tmp_path, content, "--topic-fields", fields) == [expected]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", "1:obama family tree\n2:french: lick resort\n"),
        ("t.txt", "1:3:obama family tree\n2:1:french: lick resort\n"),
        ("t.tsv", "1\tobama family tree\n2\tfrench: lick resort\n"),
        ("t.jsonl", '{"id": "1", "text": "obama family tree"}\n{"id": "2", "text": "french: lick resort"}\n'),
    ],
)
def test_topics_in_lines_are_read(tmp_path: Path, name: str, content: str) -> None:
    assert topics_of(tmp_path, content, name=name) == [("1", "obama family tree"), ("2", "french: lick resort")]


@pytest.mark.parametrize(
    ("content", "fields", "problem"),
    [
        ("<top><title>a</top>", "title", "topic-without-number"),
        ("<top><num>1<title>a</top>", "desc", "topic-without-field"),
        ("<top><num>1<title> </top>", "title", "topic-without-field"),
        ("<parameters><p>x</p></parameters>", "title", "no-topics"),
    ],
)
def test_topics_without_number_or_field_are_refused(workdir: Path, content: str, fields: str, problem: str) -> None:
    (workdir / "t.xml").write_text(content)
    (workdir / "docs.jsonl").write_text('{"id": "1", "text": "a document"}\n')
    words = ("prepare", "trec", workdir / "docs.jsonl", "--topics", f"test={workdir / 't.xml'}")
    done = refused(*words, "--topic-fields", fields, "--output", workdir / "made", problem=problem)
    assert done.fields["path"] == workdir / "t.xml"


def test_the_fields_that_a_query_leaves_out_are_counted(tmp_path: Path) -> None:
    topics_of(tmp_path, ADHOC)
    left = artifacts.read_manifest(tmp_path / "made").counts["other_content"]["queries"]
    assert left["words"] == {"NARR": 6, "DESC": 6, "DOM": 3, "HEAD": 3, "CON": 3, "FAC": 3, "DEF": 1}  # labels too
    assert left["tags"] == {"I": 1, "NAT": 1}


AP = """<DOC>
<DOCNO> AP880212-0001 </DOCNO>
<FILEID>AP-NR-02-12-88 2344EST</FILEID>
<FIRST>u i AM-Vietnam-Amnesty</FIRST>
<HEAD>Reports Former Saigon Officials Released</HEAD>
<HEAD>From Re-education Camp</HEAD>
<DATELINE>BANGKOK, Thailand (AP) </DATELINE>
<TEXT>
   More than 150 former officers of the overthrown South
Viet&blank;namese government.
</TEXT>
<TEXT> More text. </TEXT>
</DOC>
"""
LA = """<DOC><DOCNO> LA010189-0001 </DOCNO><DOCID> 1 </DOCID><DATE><P>January 1, 1989</P></DATE>
<HEADLINE><P>NEW FALLOUT</P></HEADLINE><BYLINE><P>By A B</P></BYLINE><TEXT><P>One.</P><P>Two &hyph; three.</P></TEXT>
<GRAPHIC><P>Photo, a house</P></GRAPHIC></DOC>
"""
FBIS = """<DOC><DOCNO> FBIS3-1 </DOCNO><HT> "cr000" </HT><HEADER><H2> March Reports </H2><DATE1> 1 March </DATE1>
<F P=100> FBIS </F><H3> <TI> POLITICIANS, PARTY PREFERENCES </TI></H3></HEADER>
<TEXT> Summary: <F P=105> Newspapers </F> in &Ccaron;esko &rarr; </TEXT></DOC>
"""
WSJ = """<DOC>
<DOCNO> WSJ1 </DOCNO>
<HL> Who's News </HL>
<DD> 04/02/87</DD>
<SO> WSJ </SO>
<TEXT>
John &
co
</TEXT>
</DOC>
"""
FR = """<DOC><DOCNO> FR1 </DOCNO><TEXT>
<!-- PJG 0012 -->
On &para; 5 <ITAG tagnum=90>sign</ITAG>.
</TEXT></DOC>
"""


def document(folder: Path, content: str, *words: object) -> tuple[tuple[str, str, str], dict[str, Any]]:
    """Return the only document of a file (id, title, text), and the counts of what was left out."""
    (folder / "docs").write_text(content, "utf-8")
    ran("prepare", "trec", folder / "docs", *words, "--output", folder / "made", "--overwrite")
    counts = artifacts.read_manifest(folder / "made").counts
    (row,) = pl.read_parquet(folder / "made" / "corpus.parquet").select("docid", "title", "text").rows()
    return row, counts.get("other_content", {}).get("documents", {})


@pytest.mark.parametrize(
    ("content", "docid", "title", "text"),
    [
        (
            AP, "AP880212-0001", "Reports Former Saigon Officials Released From Re-education Camp",
            "More than 150 former officers of the overthrown South Viet namese government. More text.",
        ),
        (LA, "LA010189-0001", "NEW FALLOUT", "One. Two - three. Photo, a house January 1, 1989"),
        (FBIS, "FBIS3-1", "POLITICIANS, PARTY PREFERENCES", "Summary: Newspapers in Česko →"),
        (WSJ, "WSJ1", "Who's News", "John & co 04/02/87"),
        (FR, "FR1", "", "On ¶ 5 sign ."),
        ('<DOC id="wiki/1"><TITLE>Tea</TITLE>\n<BODY>is a &#100;rink</BODY></DOC>', "wiki/1", "Tea", "is a drink"),
        ("<DOC id='x'>only text</DOC>", "x", "", "only text"),
        ("<doc>\n<docno>w-1</docno>\n<dochdr>\nhttp://a HTTP 200\n</dochdr>\n<p>Hello\n</doc>", "w-1", "", "Hello"),
        ("<DOC><DOCNO>1</DOCNO><TEXT>a <![CDATA[b < c & <d>]]> e</TEXT></DOC>", "1", "", "a b < c & <d> e"),
    ],
)  # fmt: skip # a document per line
def test_documents_of_the_disks_are_read(tmp_path: Path, content: str, docid: str, title: str, text: str) -> None:
    assert document(tmp_path, content)[0] == (docid, title, text)


def test_other_fields_tags_and_unknown_entities_are_counted_or_become_text(tmp_path: Path) -> None:
    content = AP.replace("More text.", "More &nope; <b>text</b>.")
    (_, _, text), left = document(tmp_path, content)
    assert text.endswith("More &nope; text .")
    assert left == {"words": {"FIRST": 3, "DATELINE": 3, "FILEID": 2}, "tags": {"B": 1}, "entities": {"&nope;": 1}}
    (_, _, text), left = document(tmp_path, AP, "--text-fields", "dateline,first")
    assert "BANGKOK" in text
    assert left["words"].keys() == {"FILEID"}
    (_, _, text), left = document(tmp_path, AP, "--text-fields", "all")
    assert "words" not in left
    assert "AP-NR-02-12-88" in text
    row, left = document(tmp_path, f"lost words here\n{WSJ}\n")
    assert (row[0], 3 in left["words"].values()) == ("WSJ1", True), "words outside of documents"


def test_what_describes_a_disk_is_no_document(tmp_path: Path) -> None:
    (folder := tmp_path / "disk").mkdir()
    for name, text in {"readme.txt": "about the disk", "ap.dtd": "<!ELEMENT DOC>", "ap1": AP}.items():
        (folder / name).write_text(text)
    ran("prepare", "trec", folder, "--output", tmp_path / "made")
    assert pl.read_parquet(tmp_path / "made" / "corpus.parquet")["docid"].to_list() == ["AP880212-0001"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("<DOC><TEXT>a</TEXT></DOC>", "document-without-id"),
        ("<DOC><DOCNO>1</DOCNO>", "document-without-end"),
        ("<DOC><DOCNO>1</DOCNO></DOC></DOC>", "document-without-start"),
        ("<DOC><DOCNO>1</DOCNO><DOC><DOCNO>2</DOCNO></DOC>", "document-without-end"),
        ("just words", "no-documents"),
    ],
)
def test_damaged_documents_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "docs").write_text(content)
    with pytest.raises(InputError) as caught:
        list(trec.sgml_documents(InputFile.of(tmp_path / "docs")))
    assert (caught.value.code, caught.value.fields["path"]) == (problem, tmp_path / "docs")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a &amp; b &lt;c&gt;", "a & b <c>"),
        ("&hyph; &blank; &sect; &Aacute; &eacute", "- § Á é"),
        ("AT&T R&D &copy=1 &unknown;", "AT&T R&D &copy=1 &unknown;"),
        ("&#65; &#x42; &#0;", "A B \ufffd"),
    ],
)
def test_entities(text: str, plain: str) -> None:
    assert markup.Markup().plain(text) == plain


def test_no_text_is_lost() -> None:
    block = "<a>one<b>two</a>three</b><c>four<d>five</d><!-- six --><e/>seven<br>eight"
    found = markup.read(block)
    assert " ".join(piece.text.strip() for piece in found.pieces) == "one two three four five six seven eight"
    assert json.dumps(found.tags) == json.dumps({"A": 1, "B": 1, "C": 1, "D": 1, "E": 1, "BR": 1})


@pytest.mark.heavy
@pytest.mark.parametrize("unit", ["<a>", "</a>", "<!--", "<![CDATA[", "<a ", "&amp", "<a>x</a>", "<a><b>"])
def test_hostile_markup_takes_linear_time(unit: str) -> None:
    found = markup.read(unit * 100_000)
    found.plain(*(piece.text for piece in found.pieces))
