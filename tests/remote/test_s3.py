"""S3 as moto serves it, through a proxy that fails: cold and warm epochs give what the disk gives.

``ASYNCREADER_S3_SET=folder pytest tests/remote/test_s3.py`` runs it on a sharded set of your own.
"""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import class_folders, digest, encoded, pictures, s3_environment
from range_server import server_stats, serving

from asyncreader import AsyncReader, SourceError
from asyncreader.tools.verify import verify_file
from converters import convert

pytest.importorskip("obstore", reason="obstore is not installed")
moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded set: small, or the one that the environment names."""
    given = os.environ.get("ASYNCREADER_S3_SET")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("s3")
    convert(class_folders(folder / "photos", 60), folder / "set", encoding="original", shards=10)
    return folder / "set"


#: Keys that a bucket may have and a folder, too; more of them than one answer to a listing lists.
NAMES = [
    *(f"cat/{number:04}.jpg" for number in range(1010)),
    *("cat-2/a b+c.jpg", "cat.d/100%25.jpg", "dög/ü&<>'.jpg", "eel/deep/=?#.jpg", "eel/~.JPG"),
]


@pytest.fixture(scope="module")
def bucket(packed: Path) -> Iterator[str]:
    """moto with the set in a bucket, behind a proxy: 5 % errors, 5 % answers cut. Its URL."""
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    secrets = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **secrets
    )
    client.create_bucket(Bucket="sets")
    for file in packed.iterdir():
        client.upload_file(str(file), "sets", f"train/{file.name}")
    for name, image in zip(NAMES, pictures(len(NAMES)), strict=True):
        client.put_object(Bucket="sets", Key=f"tree/{name}", Body=encoded(image, "JPEG"))
    for name in (
        "tree/",
        "tree/empty/",
        "tree/cat/.hidden/1.jpg",
        "tree/readme.txt",
        "trees/1.jpg",
    ):
        client.put_object(Bucket="sets", Key=name, Body=b"")
    try:
        with serving(packed, upstream=port, errors=0.05, cuts=0.05) as url:
            yield url
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def credentials(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As AWS's own tools find them, and an empty cache."""
    s3_environment(monkeypatch, bucket)
    monkeypatch.setenv("ASYNCREADER_CACHE_DIR", str(tmp_path / "cache"))


def epochs(path: str | Path, count: int, **params: Any) -> list[str]:
    """A hash of what each epoch serves."""
    settings = {"batch_size": 8, "shuffle": True, "nthread": 2, "njob": 2, "last_batch": "pad"}
    with AsyncReader({"path": path, "size": (16, 16), **settings, **params}) as reader:
        found = [digest(reader) for _ in range(count)]
        assert "secret" not in json.dumps(reader.state_dict()) + repr(reader)
    return found


@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_epochs_with_faults(packed: Path, bucket: str, io: str) -> None:
    """A cold and a warm epoch, with requests that fail and break off: the same as on disk."""
    expected = epochs(packed, 2)
    before = server_stats(bucket)
    assert epochs("s3://sets/train", 2, io=io) == expected
    after = server_stats(bucket)
    if io == "pread":  # whole shards are too few requests to be sure of a fault
        assert after["errors"] + after["cuts"] > before["errors"] + before["cuts"]


def test_packing(tmp_path: Path) -> None:
    """Pictures in a bucket are packed into the files that the same tree on a disk gives."""
    tree = tmp_path / "tree"
    for name, image in zip(NAMES, pictures(len(NAMES)), strict=True):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(encoded(image, "JPEG"))
    options: dict[str, Any] = {"encoding": "original", "shards": 4, "shuffle": 1}
    report = convert("s3://sets/tree/", tmp_path / "store", **options)
    convert(tree, tmp_path / "disk", **options)
    assert report.count == len(NAMES)
    assert report.ignored["hidden"] == 1
    for file in (tmp_path / "disk").iterdir():
        assert (tmp_path / "store" / file.name).read_bytes() == file.read_bytes()
    assert verify_file("s3://sets/train").ok


def test_no_permission(impatient: None) -> None:
    """A bucket that does not exist, or is not ours, is an error without the credentials."""
    with pytest.raises((SourceError, FileNotFoundError)) as caught:
        AsyncReader(path="s3://elsewhere/train")
    assert "secret" not in str(caught.value)
    assert "elsewhere" in str(caught.value)
