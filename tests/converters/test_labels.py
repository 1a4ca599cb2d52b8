"""The labels CSV: it names the set, and each way of being wrong names its line."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import split_sets
from command_sets import run
from converter_trees import labels_of, make_bad, paths_of, scan, tree, write

import asyncreader
from asyncreader.dataset import look_into
from asyncreader.errors import (
    FormatError,
    ParamsError,
    SampleError,
    SourceError,
    SourceNotFoundError,
)
from asyncreader.formats import packed
from asyncreader.tools.describe import describe
from asyncreader.tools.verify import verify_file
from converters import convert


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return tree(tmp_path / "in", "b/2.png", "a/1.png", "3.png", "a/10.png")


NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "dtype", "rows", "classes", "kind"),
    [
        # whole numbers, in the order of the paths; a header and a BOM are no rows
        *((f"{start}b/2.png,7\n./a/1.png, -3\n3.png,0\n\n", "i8", [[0], [-3], [7]], None, "values")
          for start in ("", "path,label\n", "\ufefffile,first\r\n", "\ufeff")),
        # one point anywhere makes all float64; several labels make (N, L)
        ("a/1.png,1,2.5\nb/2.png,3,nan\n3.png,-1e3,4\n", "f8", [[-1000, 4], [1, 2.5], [3, NAN]],
         None, "values"),
        # text becomes sorted classes, numbers among it included; quoting is CSV's
        ('path,label\na/1.png,"cat, big"\nb/2.png,9\n3.png,ant\n', "i8", [[1], [2], [0]],
         ("9", "ant", "cat, big"), "class"),
        # numbers keep their values beside text
        ("path,age,species\na/1.png,31,cat\nb/2.png,7,ant\n", "i8", [[31, 1], [7, 0]],
         ("ant", "cat"), "values"),
        ("a/1.png,31,cat,0.25\nb/2.png,9007199254740992,ant,nan\n", "f8",
         [[31, 1, 0.25], [9007199254740992, 0, NAN]], ("ant", "cat"), "values"),
        # True and False are 1 and 0 in all columns
        ("path,old,big\na/1.png,True,False\nb/2.png,False,True\n", "i8", [[1, 0], [0, 1]],
         ("False", "True"), "class"),
    ],
)  # fmt: skip
def test_each_column_has_its_own_type(
    pictures: Path, tmp_path: Path, text: str, dtype: str, rows: Any, classes: Any, kind: str
) -> None:
    """Records come in the order of their paths, with the labels that the CSV says."""
    listing = scan(str(pictures), labels=write(tmp_path / "l.csv", text))
    assert paths_of(listing) == [b"3.png", b"a/1.png", b"b/2.png"][-len(rows) :]
    assert listing.labels is not None
    assert listing.labels.dtype == dtype
    np.testing.assert_array_equal(listing.labels, rows)
    assert (listing.classes, listing.label_kind, listing.notes) == (classes, kind, ())
    left_out = {"hidden": 0, "other suffix": 0, "not in the CSV": 4 - len(rows)}
    assert listing.ignored == left_out


def test_text_columns_share_their_classes(pictures: Path, tmp_path: Path) -> None:
    """A name has one number in all text columns: ``classes[label]`` is its text in each."""
    csv = write(tmp_path / "l.csv", "a/1.png,cat,red\nb/2.png,ant,cat\n3.png,dog,blue\n")
    listing = scan(str(pictures), labels=csv)
    assert listing.classes == ("ant", "blue", "cat", "dog", "red")
    assert labels_of(listing) == [[3, 1], [2, 4], [0, 2]]
    assert listing.label_kind == "class"
    (note,) = listing.notes
    assert "columns 2 and 3" in note
    assert "5 names" in note


def test_numbers_in_text_may_be_names(pictures: Path, tmp_path: Path) -> None:
    """Cells such as 32,6 are names of classes where the classes that are given have them."""
    csv = write(tmp_path / "l.csv", 'a/1.png,"32,6"\nb/2.png,"7,25"\n')
    assert labels_of(scan(str(pictures), labels=csv, classes=("7,25", "32,6"))) == [[1], [0]]


def test_a_decimal_comma_beside_semicolons(pictures: Path, tmp_path: Path) -> None:
    """Cells that ";" separates are named as such, also where a decimal comma divides them."""
    csv = write(tmp_path / "l.csv", "path;age\na/1.png;32,6\nb/2.png;7,25\n")
    with pytest.raises(SourceNotFoundError, match=r"'a/1.png;32' \(line 2\).*separated by ';'"):
        scan(str(pictures), labels=csv)
    with pytest.raises(ParamsError, match=r"no column 'age'.*separated by ';': write commas"):
        scan(str(pictures), labels=csv, label_columns=("age",))


TABLE = "path,age,part,species,weight\na/1.png,31,x,cat,0.5\nb/2.png,7,y,ant,1.5\n"


@pytest.mark.parametrize(
    ("given", "names", "expected"),
    [
        ({}, ("age", "part", "species", "weight"), [[31, 2, 1, 0.5], [7, 3, 0, 1.5]]),
        ({"label_columns": ("age",)}, ("age",), [[31], [7]]),
        ({"label_columns": ("weight", "age")}, ("weight", "age"), [[0.5, 31], [1.5, 7]]),
        ({"label_columns": ("species",)}, ("species",), [[1], [0]]),
        (
            {"label_columns": ("species",), "split_column": "part", "group_by": "age"},
            ("species",),
            [[1], [0]],
        ),
        ({"split_column": "part", "group_by": "species"}, ("age", "weight"), [[31, 0.5], [7, 1.5]]),
    ],
)
def test_label_columns(
    pictures: Path, tmp_path: Path, given: dict[str, Any], names: tuple[str, ...], expected: Any
) -> None:
    """The columns that are named are the labels, in that order; else all that mean nothing else.
    Their names are kept."""
    listing = scan(str(pictures), labels=write(tmp_path / "l.csv", TABLE), **given)
    assert (listing.label_names, labels_of(listing)) == (names, expected)
    assert listing.classes == (
        ("ant", "cat", "x", "y") if not given else ("ant", "cat") if "species" in names else None
    )
    assert listing.label_kind == ("class" if names == ("species",) else "values")


@pytest.mark.parametrize(
    ("text", "named", "said"),
    [
        (TABLE, ("weigth",), r"no column 'weigth'.*'path', 'age'.*'weight'.*header"),
        (TABLE, ("path",), "no column 'path'"),
        ("a/1.png,3\n", ("3.0",), "no column '3.0'"),
        ("path,a,b\na/1.png,3\n", ("b",), "line 2.*without a cell for 'b'"),
        ("path,a,a\na/1.png,3,4\n", ("a",), "2 columns 'a'"),
    ],
)
def test_label_columns_that_are_not_there(
    pictures: Path, tmp_path: Path, text: str, named: tuple[str, ...], said: str
) -> None:
    """A name that the header lacks, or has twice, and a row that is too short."""
    with pytest.raises((ParamsError, FormatError), match=said):
        scan(str(pictures), labels=write(tmp_path / "l.csv", text), label_columns=named)


@pytest.mark.parametrize("text", ["a/1.png,3\n", "path,\na/1.png,3\n", "path\na/1.png,3\n"])
def test_columns_without_names(pictures: Path, tmp_path: Path, text: str) -> None:
    """Without a header that names all of them, no names are kept."""
    assert scan(str(pictures), labels=write(tmp_path / "l.csv", text)).label_names == ()


NAMES = ("dog", "cat", "ant")


@pytest.mark.parametrize(
    ("text", "classes", "labels", "kind"),
    [
        ("a/1.png,cat\nb/2.png,ant\n", NAMES, [[1], [2]], "class"),
        ("a/1.png,2\nb/2.png,0\n", NAMES, [[2], [0]], "class"),
        # names that look like numbers
        ("a/1.png,1\nb/2.png,b\n3.png,7\n", ("7", "1", "b"), [[0], [1], [2]], "class"),
        # other columns' whole numbers are values
        ("a/1.png,31,cat\nb/2.png,7,ant\n", ("cat", "ant"), [[31, 0], [7, 1]], "values"),
    ],
)
def test_given_classes(
    pictures: Path, tmp_path: Path, text: str, classes: tuple[str, ...], labels: Any, kind: str
) -> None:
    """Given classes give names their numbers, and say which text is a name."""
    listing = scan(str(pictures), labels=write(tmp_path / "l.csv", text), classes=classes)
    assert (listing.classes, labels_of(listing), listing.label_kind) == (classes, labels, kind)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("a/1.png,cat\nb/2.png,cow\n", FormatError, r"line 2.*unknown class.*'cow'"),
        ("a/1.png,3\n", FormatError, r"line 1.*out of range"),
        ("a/1.png,1\nb/2.png,b\n", FormatError, r"line 2.*text in a column of numbers.*'b'"),
        ("a/1.png,0.5\n", ParamsError, "class"),
    ],
)
def test_labels_that_are_no_given_class(
    pictures: Path, tmp_path: Path, text: str, error: type[Exception], said: str
) -> None:
    """Unknown names, numbers out of range and fractions are errors."""
    with pytest.raises(error, match=said):
        scan(str(pictures), labels=write(tmp_path / "l.csv", text), classes=NAMES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # a first row that could be meant as a file is not passed over as a header
        *((f"{name},cat\n3.png,dog\n", rf"'{name}' \(line 1\)")
          for name in ("a.pgn", "a/1", "zzz.png")),
        ("path,label\na/1.png,1\na/none.png,2\nb/no.png,2\n",
         r"2 of the files.*'a/none.png' \(line 3\).*/in"),
        ("label,path\na,1.png\na/1.png,b\n", r"CSV names are not there.*'a' \(line 2\)"),
    ],
)  # fmt: skip
def test_csv_names_the_set(pictures: Path, tmp_path: Path, text: str, said: str) -> None:
    """A missing file, a folder among them, is an error that names it and its line, even with
    skip_bad."""
    csv = write(tmp_path / "l.csv", text)
    for skip_bad in (False, True):
        with pytest.raises(SourceNotFoundError, match=said):
            scan(str(pictures), labels=csv, skip_bad=skip_bad)


def test_csv_may_name_what_the_walk_passes_over(tmp_path: Path) -> None:
    """A hidden file, one with another suffix, odd names, an absolute path: the CSV decides."""
    root = tree(
        tmp_path / "in", ".h/1.png", "a/noext", b"a/\xff.png", "a/new\nline.png", "a/b c.png"
    )
    rows = b'.h/1.png,1\na/noext,2\na/\xff.png,3\n"a/new\nline.png",4\n%s/a//b c.png,5\n'
    csv = tmp_path / "l.csv"
    csv.write_bytes(rows % os.fsencode(root))
    listing = scan(str(root), labels=str(csv))
    assert dict(zip(paths_of(listing), labels_of(listing), strict=True)) == {
        b".h/1.png": [1],
        b"a/noext": [2],
        b"a/\xff.png": [3],
        b"a/new\nline.png": [4],
        b"a/b c.png": [5],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("path,label\n", "no rows"),
        ("a/1.png\n", "line 1.*without a label"),
        ("a/1.png,\n", "line 1.*empty label"),
        (",1\n", "line 1.*without a path"),
        ("a/1.png,1\nb/2.png,1,2\n", "line 2.*another number of labels"),
        ("a/1.png,1\nb/2.png,2\n./a/1.png,3\n", "line 3.*listed already.*line 1"),
        ("../x.png,1\n", "line 1.*out of the folder"),
        ("/etc/x.png,1\n", "line 1.*out of the folder"),
        ("a/1.png,99999999999999999999\n", "line 1.*64 bits"),
        ('a/1.png,"x\n', "not a CSV"),
        ("a/1.png,9007199254740993\nb/2.png,0.5\n", "line 1.*float64.*9007199254740993"),
        ("a/1.png,0.5\nb/2.png,1e400\n", "line 2.*float64.*1e400"),
        (",path,label\n0,a/1.png,cat\n", "line 1.*without a path.*index=False"),
        ("path;label\na/1.png;cat\n", "line 2.*without a label.*';'.*commas"),
        ("path\tlabel\na/1.png\tcat\n", r"line 2.*without a label.*'\\t'.*commas"),
        ("a/1.png,cat\nb/2.png,do\0g\n", "line 2.*NUL.*UTF-8"),
        ("a/1.png,cat\nb/\0.png,dog\n", "line 2.*NUL.*UTF-8"),
        # text in a column of numbers, which stay what they are
        ("a/1.png,1\nb/2.png,2\n3.png,n/a\n", r"line 3.*text in a column of numbers.*'n/a'"),
        ("a/1.png,x\nb/2.png,2\n3.png,3\n", r"line 1.*'x', column 2.*--classes"),
        ("a/1.png,1\nb/2.png,two\n", r"line 2.*'two'"),
        ("a/1.png,0.5\nb/2.png,-\n", r"line 2.*'-'"),
        ("a/1.png,cat,1\nb/2.png,ant,2\n3.png,dog,?\n", r"line 3.*'\?', column 3"),
        # what is no name of a class, unless it is given as such
        ('a/1.png,"32,6"\nb/2.png,"7,25"\n3.png,"-1,5"\n', r"line 1.*'32,6', column 2.*point"),
        ('path,age,t\na/1.png,3,"32,6"\nb/2.png,4,7\n', r"line 2.*'32,6', column 3 \('t'\)"),
        ("a/1.png,x,1;2\nb/2.png,y,7;8;9\n", r"line 1.*'1;2', column 3.*a column each"),
    ],
)
def test_a_wrong_csv_names_its_line(pictures: Path, tmp_path: Path, text: str, said: str) -> None:
    """Each way of being wrong is a FormatError with the line."""
    with pytest.raises(FormatError, match=said):
        scan(str(pictures), labels=write(tmp_path / "l.csv", text))


def test_csv_cannot_reach_outside(tmp_path: Path) -> None:
    """A link out of the tree named by the CSV is refused like any other; unlisted ones are not."""
    make_bad(tmp_path / "in", tmp_path / "outside")
    csv = write(tmp_path / "l.csv", "c/good.png,1\n")
    assert scan(str(tmp_path / "in"), labels=csv).count == 1
    for path in ("c/out.png", "outside/1.png", "c/fifo.png"):
        csv = write(tmp_path / "l.csv", f"c/good.png,1\n{path},1\n")
        with pytest.raises(SampleError):
            scan(str(tmp_path / "in"), labels=csv)
        listing = scan(str(tmp_path / "in"), labels=csv, skip_bad=True)
        assert (listing.count, [p for _, p, _ in listing.skipped]) == (1, [path])


def test_csv_must_be_a_file(pictures: Path, tmp_path: Path) -> None:
    """A missing CSV, a folder and a FIFO are errors at once."""
    os.mkfifo(tmp_path / "fifo.csv")
    with pytest.raises(SourceNotFoundError):
        scan(str(pictures), labels=str(tmp_path / "none.csv"))
    for path in (tmp_path / "fifo.csv", tmp_path):
        with pytest.raises(SourceError, match="not a regular file"):
            scan(str(pictures), labels=str(path))


# -- the names of columns in a set ---------------------------------------------------------------


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images with the labels (age, weight), in a set of each kind, and the CSV."""
    root = tmp_path_factory.mktemp("named")
    split_sets.pictures(root / "in", [f"a/{n}.png" for n in range(4)])
    rows = "".join(f"a/{n}.png,{n},x,{n / 2}\n" for n in range(4))
    write(root / "l.csv", f"path,age,part,weight\n{rows}")
    given: Any = {"labels": root / "l.csv", "split_column": "part"}
    convert(root / "in", root / "one.h5", **given)
    convert(root / "in", root / "one.lmdb", **given)
    convert(root / "in", root / "shards", shards=2, **given)
    return root


def names_of(path: Path) -> list[str] | None:
    """The names that ``info`` tells."""
    with look_into({"path": path}) as ds:
        names: list[str] | None = describe(ds)["label_names"]
        return names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one.h5", "one.lmdb", "shards"])
def test_names_of_labels_are_kept(named: Path, tmp_path: Path, kind: str) -> None:
    """A set keeps the names of the columns of its labels: as a file and as shards, copied, chosen
    from, encoded anew, joined, written as a Dataset serves it; info shows them."""
    source, names = named / kind, ["age", "weight"]
    assert names_of(source) == names
    again: list[tuple[Any, dict[str, Any]]] = [
        *((source, {}), (source, {"select": "1:3"}), (source, {"size": 3})),
        *((source, {"shards": 2}), (asyncreader.open(source), {"shards": 2})),
        *(([source, named / "one.h5"], {}), (asyncreader.open(source), {})),
    ]
    for number, (src, given) in enumerate(again):
        target = tmp_path / (f"{number}" if "shards" in given else f"{number}.h5")
        convert(src, target, **given)
        assert names_of(target) == names, (src, given)
        assert verify_file(str(target)).ok
    result = run("info", source)
    assert re.search(r"^label names +age, weight$", result.output, re.MULTILINE), result.output
    with asyncreader.open([source, named / "one.h5"]) as both:
        assert both.count == 8
    for given in ({"no_labels": True}, {"params": {"labels_field": None}}):
        convert(source, tmp_path / "none.h5", overwrite=True, **given)
        assert names_of(tmp_path / "none.h5") is None


def test_names_of_labels_in_the_file(named: Path) -> None:
    """They stand in the description, which older versions read: its digest is that of the rest."""
    with h5py.File(named / "one.h5") as file:
        facts = json.loads(file.attrs["description"])
    assert facts["label_names"] == ["age", "weight"]
    old = {name: value for name, value in facts.items() if name != "label_names"}
    assert packed.described_digest(old) == facts["digests"]["meta"]
    text = json.dumps({**facts, "label_names": ["weight", "age"]})
    with pytest.raises(FormatError, match="label_names do not match their digest"):
        packed.Meta.from_json(text, "x")


def test_labels_of_other_names_are_not_joined(named: Path, tmp_path: Path) -> None:
    """Columns in another order are other labels: sources of both are refused, and an append; a
    source without names goes with any."""
    text = (named / "l.csv").read_text()
    write(tmp_path / "l.csv", text.replace("age,part,weight", "weight,part,age"))
    given: Any = {"labels": tmp_path / "l.csv", "split_column": "part"}
    convert(named / "in", tmp_path / "other.h5", **given)
    with pytest.raises(ParamsError, match=r"other label names.*'weight', 'age'.*'age', 'weight'"):
        convert([named / "one.h5", tmp_path / "other.h5"], tmp_path / "no.h5")
    shutil.copytree(named / "shards", tmp_path / "set")
    with pytest.raises(ParamsError, match=r"do not go with the dataset: label names"):
        convert(tmp_path / "other.h5", tmp_path / "set", append=True)
    convert(named / "one.h5", tmp_path / "set", append=True)
    write(tmp_path / "l.csv", text.partition("\n")[2].replace(",x,", ","))
    convert(named / "in", tmp_path / "plain.h5", labels=tmp_path / "l.csv")
    convert([named / "one.h5", tmp_path / "plain.h5"], tmp_path / "both.h5")
    assert names_of(tmp_path / "set") == ["age", "weight"]
    assert names_of(tmp_path / "both.h5") is None


def test_names_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    """The report says so."""
    split_sets.pictures(tmp_path / "in", ["a/0.png"])
    header, row = ",".join(f"n{n:099}" for n in range(700)), ",".join(["1"] * 700)
    write(tmp_path / "l.csv", f"path,{header}\na/0.png,{row}\n")
    report = convert(tmp_path / "in", tmp_path / "a.h5", labels=tmp_path / "l.csv")
    assert report.notes == ("the names of the labels are too long to be kept",)
    assert names_of(tmp_path / "a.h5") is None
