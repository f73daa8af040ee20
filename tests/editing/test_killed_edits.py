"""An edit that is killed at any write leaves the old files or the new ones."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import pickle
import shutil
import signal
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from commands import run_command
from each import each, usual
from outcomes import failing_call, strikes
from weightctl import convert, edit, open_weights
from weightctl.check.code import find_harmful_code, find_other_code
from weightctl.errors import FormatError, OutputError
from weightctl.storage.files import open_reader
from weightctl.storage.pending_edits import MARKER, note_own_edit, own_edit_path
from weightctl.system.temporary import EDIT
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from commands import Completed
    from outcomes import Strikes

NUMBERS = np.random.default_rng(5)
TENSORS = {
    f"layers.{number}.weight": NUMBERS.standard_normal((64, 64), np.float32) for number in range(4)
}
CHANGES = (
    "--set", "general.name=" + "new" * 100, "--rename", "layers.0.weight=first.weight",
    "--drop", "layers.3.weight",
)  # fmt: skip


@pytest.fixture(scope="module")
def struck(scratch: Path) -> Generator[Strikes, None, None]:
    with strikes(scratch) as running:
        yield running


def content(path: Path) -> tuple[object, ...]:
    """Return everything that a checkpoint holds."""
    weights = open_weights(path)
    header = header_of(weights)
    values = {name: np.asarray(weights[name].data()).tobytes() for name in header.tensors}
    index = path / "model.safetensors.index.json"
    listed = json.loads(index.read_text()) if index.exists() else None
    return values, str(header.metadata["general.name"].content), header.tensors, bool(listed)


KINDS = {
    "in place, GGUF": ("model.gguf", {"header_room": "4kB"}),
    "in place, safetensors": ("model.safetensors", {"header_room": "4kB"}),
    "new file": ("model.gguf", {}),
    "parts in place": ("model", {"header_room": "4kB", "max_shard_size": "40kB"}),
    "new parts": ("model", {"max_shard_size": "40kB"}),
}


def make(kind: str, place: Path) -> Path:
    name, options = KINDS[kind]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    convert(TENSORS, place / name, metadata={"general.name": "old"}, **options)
    return place / name


def test_the_kinds_are_what_they_are_called(tmp_path: Path) -> None:
    for kind in KINDS:
        edited = edit(make(kind, tmp_path / "m"), metadata={"general.name": "new" * 100})
        ways = {part.way.value for part in edited.parts} - {"unchanged"}
        assert ways == {"header" if "in place" in kind else "rewrite"}


FEW = [("in place, GGUF", 2), ("parts in place", 3), ("new parts", 4)]


@pytest.mark.parametrize(
    ("kind", "every"), usual(FEW, [*FEW, *((kind, 1) for kind in KINDS)]), ids=str
)
def test_kill_9_at_writes_leaves_the_old_or_the_new(
    kind: str, every: int, struck: Strikes, scratch: Path
) -> None:
    place = scratch / "place"
    path = make(kind, place)
    old = content(path)
    arguments = ("edit", path, *CHANGES, "-q")
    assert struck.run(*arguments).code == 0
    new = content(path)
    assert new != old
    found = []
    for call in itertools.count(1, every):
        make(kind, place)
        ended = struck.run(*arguments, number=signal.SIGKILL, calls="writes", call=call)
        if not ended.was_struck:
            assert ended.code == 0, ended.errors
            break
        assert ended.code == -signal.SIGKILL
        found.append(content(path))
        assert found[-1] in (old, new)
        if len(found) % 3 == 0:
            assert struck.run("edit", path, "-q").code == 0
            assert content(path) == found[-1]
            assert not list(place.rglob(f"*{EDIT}"))
    # The new content becomes valid at a single moment.
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert {*map(str, found)} == {str(old), str(new)}


class Stopped(NamedTuple):
    """The files after an edit was killed, and what the user's state says of its journal."""

    path: Path
    files: dict[Path, bytes]


@pytest.fixture(scope="module", params=["in place, GGUF", "in place, safetensors"])
def killed(request: pytest.FixtureRequest, struck: Strikes, scratch: Path) -> Stopped:
    """An edit that was killed while its header was written."""
    place = scratch / "killed"
    for call in itertools.count(1):
        path = make(request.param, place)
        ended = struck.run(
            "edit", path, *CHANGES[:2], "-q", number=signal.SIGKILL, calls="writes", call=call
        )
        assert ended.was_struck
        if path.read_bytes().startswith(MARKER):
            known = Path(own_edit_path(str(place)))
            return Stopped(path, {each: each.read_bytes() for each in (*place.iterdir(), known)})
    raise AssertionError


@pytest.fixture
def stopped(killed: Stopped) -> Path:
    """A file whose edit was killed while its header was written."""
    shutil.rmtree(killed.path.parent)
    killed.path.parent.mkdir()
    for path, raw in killed.files.items():
        path.write_bytes(raw)
    return killed.path


def test_code_is_looked_for_in_files_with_the_journal_of_another_user(stopped: Path) -> None:
    os.remove(own_edit_path(str(stopped.parent)))
    with pytest.raises(FormatError, match="you did not write this journal"):
        open_reader(str(stopped))
    header = SimpleNamespace(files=[str(stopped)])
    model: Any = SimpleNamespace(header=header, directory=None, code=None)
    assert not [*find_harmful_code(model), *find_other_code(model)]


def test_bytes_that_a_crash_left_half_written_are_taken_from_the_journal(stopped: Path) -> None:
    raw = bytearray(stopped.read_bytes())
    raw[40:600] = b"\xff" * 560
    stopped.write_bytes(raw)
    assert header_of(open_weights(stopped)).metadata["general.name"].content == "new" * 100
    notes = header_of(open_weights(stopped)).notes
    assert f"`weightctl edit {stopped}` finishes it" in notes[0]
    edit(stopped)
    assert content(stopped)[1] == "new" * 100
    assert header_of(open_weights(stopped)).notes == ()


def test_other_programs_refuse_a_file_whose_header_is_being_written(stopped: Path) -> None:
    if stopped.suffix == ".gguf":
        import gguf

        with pytest.raises(ValueError, match="magic"):
            gguf.GGUFReader(stopped)
        return
    import safetensors

    with pytest.raises(safetensors.SafetensorError, match="header too large"):
        safetensors.safe_open(stopped, "np")


def test_without_the_journal_the_error_says_what_the_file_is(stopped: Path) -> None:
    (stopped.parent / EDIT).unlink()
    with pytest.raises(FormatError, match="`weightctl edit` was changing when it was stopped"):
        open_weights(stopped)


def test_a_file_that_somebody_changed_since_is_not_mixed_with_the_edit(stopped: Path) -> None:
    (stopped.parent / stopped.name).unlink()
    convert(TENSORS, stopped.parent / f"other{stopped.suffix}")
    shutil.move(stopped.parent / f"other{stopped.suffix}", stopped)
    for do in (open_weights, edit):
        with pytest.raises(FormatError, match="the file was changed afterwards") as caught:
            do(stopped)
        assert EDIT in caught.value.hint
    (stopped.parent / EDIT).unlink()
    assert len(header_of(open_weights(stopped)).tensors) == 4


def test_a_conversion_to_the_place_completes_the_edit_first(stopped: Path) -> None:
    convert({"w": TENSORS["layers.0.weight"]}, stopped, force=True)
    assert list(header_of(open_weights(stopped)).tensors) == ["w"]
    assert not (stopped.parent / EDIT).exists()


def record_of(**changes: object) -> bytes:
    """Return a record of three changed bytes, of which something is wrong."""
    file = {"name": "m.gguf", "old_size": 99, "size": 99, "digest": "", "temporary": "",
            "first": "4747554603000000", "patches": [[8, 3]]}  # fmt: skip
    return json.dumps({"files": [file | changes]}).encode() + b"\nabc"


@pytest.mark.parametrize(
    "record",
    [
        b"", b"[]\n", b'{"files": []}\n', b'{"files": [{"name": "model.gguf"}]}\n',
        record_of(name="../m"), record_of(patches=[[8, 5]]), record_of(first="00"),
        record_of(first="", temporary="thesis.tex"), record_of(size=-1), record_of(name=""),
        record_of(first="ffffffffffffff7f"), record_of(first="0100000000000000", size=99),
        record_of(patches=[[4, 3]]), record_of(patches=[8]), record_of(patches=[["8", 3]]),
    ],
)  # fmt: skip
def test_a_record_that_weightctl_would_not_write_changes_no_file(
    tmp_path: Path, record: bytes
) -> None:
    convert(TENSORS, tmp_path / "m.gguf")
    (tmp_path / "thesis.tex").write_bytes(b"years of work")
    (tmp_path / EDIT).write_bytes(record)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for do in (open_weights, edit):
        with pytest.raises(FormatError, match="not a valid journal"):
            do(tmp_path / "m.gguf")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_journal_that_somebody_else_wrote_is_not_applied(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = stopped.read_bytes()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    for do in (open_weights, edit):
        with pytest.raises(FormatError, match="you did not write this journal") as caught:
            do(stopped)
        assert "write the SHA-256 of the journal into" in caught.value.hint
    assert stopped.read_bytes() == before
    # Files that the journal does not name are read as they are.
    other = shutil.copy(stopped, stopped.parent / f"other{stopped.suffix}")
    with pytest.raises(FormatError, match="was changing when it was stopped"):
        open_weights(other)


def test_a_journal_with_other_bytes_than_were_written_is_not_applied(stopped: Path) -> None:
    journal = stopped.parent / EDIT
    raw = journal.read_bytes()
    journal.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(FormatError, match="you did not write this journal"):
        open_weights(stopped)


@each("kind, fault", usual([("in place, GGUF", errno.ENOSPC), ("new file", errno.EACCES)], [
    ("in place, GGUF", errno.ENOSPC), ("in place, safetensors", errno.EIO),
    ("parts in place", errno.ENOSPC), ("new file", errno.EACCES), ("new parts", errno.EIO),
]))  # fmt: skip
def test_an_error_at_any_write_says_what_is_so(kind: str, fault: int, tmp_path: Path) -> None:
    change = {"general.name": "new" * 100}
    for number in itertools.count():
        path = make(kind, tmp_path / "m")
        with failing_call(tmp_path / "m", number, fault) as failed:
            try:
                edit(path, metadata=change)
                if not failed:
                    break
                assert content(path)[1] == "new" * 100
                continue
            except OutputError as error:
                raised = error
        name = open_weights(path).header.metadata["general.name"].content
        place = path if path.is_dir() else path.parent
        if (place / EDIT).exists():
            assert "The edit is recorded but not complete" in raised.message
            assert raised.hint.startswith("mend the cause, then complete the edit: weightctl edit ")
            assert name == "new" * 100
            assert run_command(*raised.hint.split(": weightctl ")[1].split()).returncode == 0
            assert open_weights(path).header.metadata["general.name"].content == "new" * 100
        else:
            assert (name == "old") == ("the target is unchanged" in raised.hint)
        assert not [each for each in place.iterdir() if each.name.endswith(".partial")]


def test_an_edit_that_is_complete_is_not_remembered(tmp_path: Path) -> None:
    path = make("in place, GGUF", tmp_path / "place")
    edit(path, metadata={"general.name": "new"})
    assert not Path(own_edit_path(str(path.parent))).exists()


def test_a_scan_reads_the_file_itself_and_reports_the_journal(
    weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    payload = pickle.dumps(Harmful(), 2)
    (tmp_path / "m.bin").write_bytes(payload.ljust(200, b"."))
    size = 200
    hidden = {"name": "m.bin", "old_size": size, "size": size, "digest": "", "temporary": "",
              "first": "4747554603000000", "patches": [[8, size - 8]]}  # fmt: skip
    record = json.dumps({"files": [hidden]}).encode() + b"\n" + bytes(size - 8)
    (tmp_path / EDIT).write_bytes(record)
    note_own_edit(str(tmp_path), hashlib.sha256(record).hexdigest())
    for path in (tmp_path, tmp_path / "m.bin"):
        done = weightctl("ls", path, "--scan")
        assert done.returncode == 1
        assert "posix.system  dangerous" in done.stdout
        assert "the journal of an edit that is not complete" in done.stdout


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def test_a_large_journal_takes_no_memory(tmp_path: Path) -> None:
    convert(TENSORS, tmp_path / "m.gguf")
    with (tmp_path / EDIT).open("wb") as file:
        file.truncate(3 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="not a valid journal"):
            open_weights(tmp_path / "m.gguf")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
