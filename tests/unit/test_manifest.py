"""The manifest of a data set: every name survives, every mistake is told, nothing half is left."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import cli, manifest
from seatrial.errors import SeatrialError, UsageError
from seatrial.payload import datasets
from seatrial.payload.datasets import ManifestError

HOSTILE = [
    "tab\there",
    "line\nbreak",
    "back\\slash \\x41",
    "#comment",
    " space at both ends ",
    "no-break\u00a0space",
    "right\u202eto left",
    "\udcff not UTF-8",
    "größe",
    "-rf",
]


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write(folder: Path, out: Path | None = None) -> manifest.Written:
    return manifest.write(folder, out, io.StringIO())


def test_every_file_is_in_it_sorted_with_size_and_sha256(tmp_path: Path) -> None:
    fill(tmp_path / "sample", {"b/2": b"two", "a": b"", "b/10": b"ten"})
    written = write(tmp_path / "sample")
    assert written.path == tmp_path / "sample.manifest"
    assert (written.files, written.bytes) == (3, 6)
    lines = written.path.read_text().splitlines()
    assert lines == [
        datasets.HEAD,
        f"a\t0\t{hashlib.sha256(b'').hexdigest()}",
        f"b/10\t3\t{hashlib.sha256(b'ten').hexdigest()}",
        f"b/2\t3\t{hashlib.sha256(b'two').hexdigest()}",
    ]


def test_hostile_names_survive_on_a_line_each(tmp_path: Path) -> None:
    fill(tmp_path / "set", {name: name.encode(errors="surrogateescape") for name in HOSTILE})
    text = write(tmp_path / "set").path.read_text()
    assert text.count("\n") == len(HOSTILE) + 1
    assert all(character.isprintable() or character in "\t\n" for character in text)
    entries = datasets.parse(text, "set.manifest")
    assert sorted(entry.path for entry in entries) == sorted(HOSTILE)
    differences = datasets.compare(str(tmp_path / "set"), entries, 1, lambda _: None)
    assert not differences.wrong


@given(st.text(min_size=1).filter(lambda text: "\0" not in text and text.isprintable()) | st.binary(min_size=1))
def test_any_name_can_be_written_and_read_again(name: str | bytes) -> None:
    path = os.fsdecode(name)
    written = datasets.escaped(path)
    assert not set(written) & set("\t\n\r")
    assert datasets.unescaped(written) == path


def test_links_and_special_files_are_told_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill(tmp_path / "set", {"file": b"1", "elsewhere/file": b"2"})
    (folder / "link").symlink_to("file")
    (folder / "folder-link").symlink_to("elsewhere")
    os.mkfifo(folder / "pipe")
    assert cli.main(["manifest", str(folder)]) == 0
    told = capsys.readouterr()
    assert "left out: link is a link to file" in told.err
    assert "left out: folder-link is a link to elsewhere" in told.err
    assert "left out: pipe is a pipe" in told.err
    assert f"{folder}.manifest: 2 files, 2 bytes" in told.out
    assert "2 files: 2 B of 2 B read" in told.err


def test_a_manifest_inside_its_data_set_does_not_hold_itself(tmp_path: Path) -> None:
    folder = fill(tmp_path / "set", {"file": b"1"})
    for _ in range(2):
        assert write(folder, folder / "the.manifest").files == 1


def test_files_that_cannot_be_read_are_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / "set", {f"file-{number}": b"1" for number in range(3)})
    real = datasets.digest_of

    def failing(path: str, tell: object) -> str:
        if path.endswith("file-1"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(datasets, "digest_of", failing)
    with pytest.raises(SeatrialError, match=r"1 files are in no manifest(.|\n)*file-1: Input/output error"):
        write(folder)
    assert sorted(os.listdir(tmp_path)) == ["set"]


def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "set", {"file": b"1"})
    real = datasets.digest_of

    def changing(path: str, tell: object) -> str:
        digest = real(path)
        Path(path).write_bytes(b"12")
        return digest

    monkeypatch.setattr(datasets, "digest_of", changing)
    with pytest.raises(SeatrialError, match="file: changed while it was read"):
        write(folder)


def test_what_is_no_folder_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="expected a folder, observed nothing"):
        write(tmp_path / "nowhere")
    fill(tmp_path, {"file": b""})
    assert cli.main(["manifest", str(tmp_path / "file")]) == 4
    assert "expected a folder, observed a file" in capsys.readouterr().err


GOOD = f"{datasets.HEAD}\na\t1\t{'0' * 64}\n"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "expected the first line"),
        ("a\t1\t00\n", "expected the first line"),
        (GOOD.rstrip("\n"), ":2: the last line has no end"),
        (GOOD + "b\t1\n", ":3: expected path, size and sha256 between tabs, observed 2 fields"),
        (GOOD + f"b\t-1\t{'0' * 64}\n", ":3: expected a size in bytes"),
        (GOOD + f"b\t1\t{'0' * 63}\n", ":3: expected a size in bytes"),
        (GOOD + f"/b\t1\t{'0' * 64}\n", ":3: expected a path below the data set's folder"),
        (GOOD + f"b/../../c\t1\t{'0' * 64}\n", ":3: expected a path below the data set's folder"),
        (GOOD + f"b//c\t1\t{'0' * 64}\n", ":3: expected a path below the data set's folder"),
        (GOOD + f"\\x2e./c\t1\t{'0' * 64}\n", ":3: expected a path below the data set's folder"),
        (GOOD + f"b\\q\t1\t{'0' * 64}\n", ":3: a backslash that begins no"),
        (GOOD + f"a\t1\t{'0' * 64}\n", ":3: the path 'a' again"),
        (GOOD + "x\n" * 12, "and 2 more"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_line(text: str, mistake: str) -> None:
    with pytest.raises(ManifestError, match=mistake.replace("'", ".")):
        datasets.parse(text, "sample.manifest")


def test_missing_extra_and_changed_files_are_told_apart(tmp_path: Path) -> None:
    folder = fill(tmp_path / "set", {"same": b"1", "gone": b"2", "longer": b"3", "other": b"4"})
    entries = datasets.parse(write(folder).path.read_text(), "set.manifest")
    (folder / "gone").unlink()
    fill(folder, {"longer": b"33", "other": b"5", "new": b"6"})
    found = datasets.compare(str(folder), entries, 2, lambda _: None)
    assert set(found.missing) == {"gone"}
    assert set(found.extra) == {"new"}
    assert set(found.changed) == {"longer", "other"}
    assert found.changed["longer"] == "has 2 bytes, expected 1"
    assert found.changed["other"].startswith("has sha256 ")


def test_a_seed_decides_every_byte(tmp_path: Path) -> None:
    recipe = datasets.Recipe(seed=5, shards=2, shard_bytes=datasets.BLOCK + 10, small=5, small_bytes=100)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (datasets.make(recipe, str(tmp_path / name), lambda _: None) for name in ("one", "two"))
    other = datasets.make(recipe._replace(seed=6), str(tmp_path / "two"), lambda _: None)
    assert one == two
    assert sum(entry.size for entry in one) == recipe.total
    assert not datasets.compare(str(tmp_path / "one"), one, 1, lambda _: None).wrong
    assert not {entry.digest for entry in one} & {entry.digest for entry in other}
    assert len({entry.digest for entry in one}) == len(one)
    assert one == sorted(one)
