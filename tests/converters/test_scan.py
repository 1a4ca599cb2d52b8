"""The converter's eyes: which files of a folder are samples, in which order, with which labels."""

import os
from pathlib import Path

import numpy as np
import pytest
from converter_trees import PNG, labels_of, make_bad, paths_of, scan, tree, write

from asyncreader.errors import FormatError, SampleError, SourceError, SourceNotFoundError
from converters.inputs.labels import read_class_names
from converters.inputs.origins import Tree
from converters.temp_tables import sorted_records

# -- finding -------------------------------------------------------------------------------------


def test_order_is_by_component_as_bytes(tmp_path: Path) -> None:
    """Paths are sorted component by component, as bytes: not by locale, not across slashes."""
    names = [
        b"a/x.png",
        b"a/x/1.png",
        b"a/x-y/1.png",
        b"a/X.png",
        b"a b/1.png",
        b"a\xff/1.png",
        "a/\u00e9.png".encode(),
        b"a/z.png",
        b"B/1.png",
        b"a/\n.png",
    ]
    listing = scan(str(tree(tmp_path, *names)))
    assert paths_of(listing) == sorted(names, key=lambda path: path.split(b"/"))
    assert listing.classes == ("B", "a", "a b", "a\udcff")


@pytest.mark.parametrize(
    ("files", "classes", "labels"),
    [
        # deeper folders do not make classes; a class without pictures keeps its number
        (["dog/1.png", "cat/deep/er/1.png", "cat/2.png", "ant/.keep"],
         ("ant", "cat", "dog"), [1, 1, 2]),
        # Pascal VOC's class train, among classes that are no parts of a set, stays one
        (["bus/1.png", "train/1.png", "tvmonitor/1.png", "test/.keep"],
         ("bus", "test", "train", "tvmonitor"), [0, 2, 3]),
    ],
)  # fmt: skip
def test_class_is_the_first_level(
    tmp_path: Path, files: list[str], classes: tuple[str, ...], labels: list[int]
) -> None:
    """A class is a first-level folder, and its number that in their order. Hidden entries and files
    without an image suffix are no samples, and are counted."""
    first = files[0].partition("/")[0]
    tree(tmp_path, *files, ".git/x.png", f"{first}/notes.txt", f"{first}/Makefile")
    listing = scan(str(tmp_path))
    assert (listing.classes, listing.label_kind) == (classes, "class")
    assert labels_of(listing) == [[label] for label in labels]
    assert listing.ignored == {"hidden": 2, "other suffix": 2}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ["train/cat/1.png", "train/dog/1.png", "val/cat/1.png"],
            r"'train' and 'val'.*train/cat.*/train'",
        ),
        (["Training/0/1.png", "Testing/0/1.png"], "'Testing' and 'Training'"),
        (["train/a/1.png", "valid/a/1.png", "zoo/1.png"], "'train' and 'valid'"),
        (["train/a/1.png"], "'train'"),
        (["train2017/1.png", "val2017/1.png"], r"'train2017' and 'val2017'.*--no-labels"),
        (["test/a/1.png", "train/.keep", "validation/a/1.png"], "'test' and 'validation'"),
    ],
)
def test_parts_of_a_set_are_no_classes(tmp_path: Path, files: list[str], said: str) -> None:
    """Folders called train, val or test are refused with the ways on, and can be meant."""
    tree(tmp_path, *files)
    with pytest.raises(FormatError, match=rf"{said}.*--classes-from-folders") as caught:
        scan(str(tmp_path))
    assert caught.value.path == str(tmp_path)
    names = sorted({name.split("/", 1)[0] for name in files})
    listing = scan(str(tmp_path), classes_from_folders=True)
    assert listing.classes == tuple(names)
    assert scan(str(tmp_path), classes=tuple(names)).classes == tuple(names)
    with pytest.raises(FormatError, match="--classes-from-folders"):
        scan(str(tmp_path), classes=("cat", "dog"))
    assert scan(str(tmp_path), no_labels=True).label_kind == "none"


def test_what_folders_lose_is_said(tmp_path: Path) -> None:
    """A second level that is dropped, pictures mixed with it and empty classes are notes. A folder
    of one name in each class, as tiny-imagenet's class/images/picture, is no level."""
    tree(tmp_path, "animal/cat/1.png", "animal/dog/1.png", "animal/x.png", "car/1.png", "zoo/.k")
    deep, empty = scan(str(tmp_path)).notes
    assert "'animal/cat', 'animal/dog'" in deep
    assert "1 image " in deep
    assert "--classes-from-folders" in deep
    assert "'zoo'" in empty
    (empty,) = scan(str(tmp_path), classes_from_folders=True).notes
    assert "'zoo'" in empty
    assert scan(str(tmp_path), no_labels=True).notes == ()
    tiny = tree(tmp_path / "t", "n1/images/1.png", "n1/images/deeper/1.png", "n2/images/1.png")
    assert scan(str(tiny)).notes == ()
    tree(tiny, "n2/pictures/1.png")
    assert len(scan(str(tiny)).notes) == 1


def test_no_pictures_is_an_error(tmp_path: Path) -> None:
    """An empty folder, one of other files, and none at all are errors; so are pictures without a
    class folder, which are named, with the ways out, and not dropped."""
    with pytest.raises(SourceError, match="no images"):
        scan(str(tmp_path))
    tree(tmp_path, "c/a.txt")
    with pytest.raises(SourceError, match="1 file that is no image by its suffix"):
        scan(str(tmp_path))
    with pytest.raises(SourceNotFoundError):
        scan(str(tmp_path / "nowhere"))
    with pytest.raises(SourceError):
        scan(str(tmp_path / "c" / "a.txt"))
    flat = str(tree(tmp_path / "c", "stray.png"))
    with pytest.raises(FormatError, match=r"flat.*--labels.*--no-labels"):
        scan(flat)
    listing = scan(flat, no_labels=True)
    assert (listing.labels, listing.label_kind) == (None, "none")
    tree(tmp_path / "c", "cat/1.png")
    with pytest.raises(FormatError, match="next to the class folders") as caught:
        scan(flat)
    assert caught.value.source_path == f"{flat}/stray.png"


def test_an_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be listed stops the run: its pictures must not go missing silently."""
    tree(tmp_path, "a/1.png", "b/1.png")
    real = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"/b"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("converters.inputs.origins.os.scandir", refuse)
    with pytest.raises(SourceError, match=r"cannot be read.*/b.*Permission denied"):
        scan(str(tmp_path), skip_bad=True)


def test_the_target_inside_the_folder_is_not_a_class(tmp_path: Path) -> None:
    """A target within the source is left out of it."""
    tree(tmp_path, "a/1.png", "out.lmdb/x.png")
    listing = scan(str(tmp_path), exclude=os.path.realpath(tmp_path / "out.lmdb"))
    assert listing.classes == ("a",)


@pytest.mark.slow
def test_a_deep_tree_is_no_recursion(tmp_path: Path) -> None:
    """A thousand levels of folders, up to the limit of a path, are walked."""
    deep = os.path.join(os.fsencode(tmp_path), b"c")
    os.mkdir(deep)
    for _ in range(1500):
        deep += b"/d"
        os.mkdir(deep)
    tree(tmp_path, deep + b"/1.png")
    try:
        assert scan(str(tmp_path)).count == 1
    finally:  # pytest's own clearing away is recursive
        os.unlink(deep + b"/1.png")
        while deep != os.fsencode(tmp_path):
            os.rmdir(deep)
            deep = os.path.dirname(deep)


# -- what must not be opened ---------------------------------------------------------------------


def test_each_trap_is_named(tmp_path: Path) -> None:
    """A FIFO, a device, links out, to nothing and in a circle: each alone is a clear error. With
    skip_bad they are listed in order and the rest is found."""
    traps = make_bad(tmp_path / "all", tmp_path / "outside")
    listing = scan(str(tmp_path / "all"), skip_bad=True)
    assert paths_of(listing) == [b"c/good.png"]
    assert [path for _, path, _ in listing.skipped] == list(traps)
    for (_, _, problem), said in zip(listing.skipped, traps.values(), strict=True):
        assert said in str(problem)
    for number, (path, said) in enumerate(traps.items()):
        root = tmp_path / f"one{number}"
        tree(root, "c/good.png")
        os.rename(tmp_path / "all" / path, root / path)
        with pytest.raises(SampleError, match=said) as caught:
            scan(str(root))
        assert caught.value.source_path == str(root / path)


def test_links_within_the_tree_are_followed(tmp_path: Path) -> None:
    """A link to a picture or folder of the same tree is that picture or folder."""
    tree(tmp_path, "a/1.png", "a/more/2.png")
    (tmp_path / "a" / "link.png").symlink_to("more/2.png")
    (tmp_path / "b").symlink_to("a/more")
    listing = scan(str(tmp_path))
    assert paths_of(listing) == [b"a/1.png", b"a/link.png", b"a/more/2.png", b"b/2.png"]
    assert listing.classes == ("a", "b")
    for path in paths_of(listing):
        assert listing.tree.read(path, lambda size: None) == PNG


def test_follow_links_goes_outside_but_not_in_circles(tmp_path: Path) -> None:
    """With follow_links outer pictures and folders are packed; a loop is still an error."""
    make_bad(tmp_path / "in", tmp_path / "outside")
    for trap in ("fifo.png", "nothing.png", "self.png", "up", "device.png"):
        (tmp_path / "in" / "c" / trap).unlink()
    listing = scan(str(tmp_path / "in"), follow_links=True)
    assert paths_of(listing) == [b"c/good.png", b"c/out.png", b"outside/1.png"]
    assert listing.tree.read(b"c/out.png", lambda size: None) == PNG
    (tmp_path / "outside" / "folder" / "back").symlink_to(tmp_path / "in")
    with pytest.raises(SampleError, match="a link loop"):
        scan(str(tmp_path / "in"), follow_links=True)


def test_what_changed_since_the_walk_is_noticed(tmp_path: Path) -> None:
    """A FIFO or a link out that takes a picture's place is neither waited for nor followed."""
    tree(tmp_path / "in", "c/1.png", "c/2.png", "c/3.png")
    tree(tmp_path, "secret.png")
    found = scan(str(tmp_path / "in")).tree
    for name in ("1.png", "2.png", "3.png"):
        (tmp_path / "in" / "c" / name).unlink()
    os.mkfifo(tmp_path / "in" / "c" / "1.png")
    (tmp_path / "in" / "c" / "2.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(SampleError, match="a FIFO"):
        found.read(b"c/1.png", lambda size: None)
    with pytest.raises(SampleError, match="out of the folder"):
        found.read(b"c/2.png", lambda size: None)
    with pytest.raises(SourceNotFoundError) as caught:
        found.read(b"c/3.png", lambda size: None)
    assert caught.value.source_path == str(tmp_path / "in" / "c" / "3.png")


def test_a_link_that_changes_when_it_was_checked_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is opened is the file that was checked: not what a link leads to a moment later."""
    tree(tmp_path / "in", "c/1.png")
    (tmp_path / "secret.png").write_bytes(b"secret")
    link = tmp_path / "in" / "c" / "link.png"
    link.symlink_to("1.png")
    found = scan(str(tmp_path / "in")).tree
    real = os.path.realpath

    def meddling(path: bytes) -> bytes:
        leads_to = real(path)
        link.unlink()
        link.symlink_to(tmp_path / "secret.png")
        return leads_to

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "realpath", meddling)
        assert found.read(b"c/link.png", lambda size: None) == PNG
    with pytest.raises(SampleError, match="out of the folder"):
        found.read(b"c/link.png", lambda size: None)


@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, change: str) -> None:
    """Growth, loss and rewriting between opening and closing are errors, not mixed pictures."""
    tree(tmp_path, "c/1.png")
    path = tmp_path / "c" / "1.png"

    def meddle(size: int) -> None:
        if change == "touched":
            os.utime(path, ns=(1, 1))
        else:
            os.truncate(path, size + 5 if change == "longer" else size - 5)

    with pytest.raises(SourceError, match="changed while it was converted"):
        Tree(str(tmp_path), False).read(b"c/1.png", meddle)


# -- classes -------------------------------------------------------------------------------------


def test_classes_fix_names_and_numbers(tmp_path: Path) -> None:
    """A file of names decides the numbers; a folder that is not in it is an error."""
    tree(tmp_path / "in", "ant/1.png", "dog/1.png")
    names = read_class_names(write(tmp_path / "n.txt", "dog\ncat\r\nant\n"))
    assert names == ("dog", "cat", "ant")
    listing = scan(str(tmp_path / "in"), classes=names)
    assert (listing.classes, labels_of(listing)) == (names, [[2], [0]])
    with pytest.raises(FormatError, match=r"unknown class.*'ant'"):
        scan(str(tmp_path / "in"), classes=("dog", "cat"))


@pytest.mark.parametrize("text", ["", "\n\n", "a\nb\na\n", "a\0b\n"])
def test_a_wrong_file_of_names_is_an_error(tmp_path: Path, text: str) -> None:
    """Empty, doubled and binary name files are refused."""
    with pytest.raises(FormatError):
        read_class_names(write(tmp_path / "n.txt", text))


# -- spools --------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [1, 3, 1000])
def test_sorting_in_runs_is_sorting(run: int) -> None:
    """Records sorted by way of the disk come as sorted() has them."""
    rng = np.random.default_rng(2)
    records = [rng.bytes(int(rng.integers(0, 5))) for _ in range(100)]
    assert list(sorted_records(records, run)) == sorted(records)


@pytest.mark.slow
def test_many_files_are_listed_without_an_object_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty thousand paths leave less than 200 kB of Python objects behind, beside the tables that
    are small enough to stay in memory."""
    import tracemalloc

    monkeypatch.setattr("converters.temp_tables.HELD", 1 << 16)
    tree(tmp_path, "one.png")
    (tmp_path / "c").mkdir()
    for number in range(20_000):
        os.link(tmp_path / "one.png", tmp_path / "c" / f"{number:06}.png")
    os.unlink(tmp_path / "one.png")
    tracemalloc.start()
    listing = scan(str(tmp_path))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert listing.count == 20_000
    assert listing.files[12_345] == b"c/012345.png"
    assert held < 200_000
