"""A run that is killed while it replaces a set of files leaves the old or the new set complete."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import signal
from typing import TYPE_CHECKING, NamedTuple

import pytest

from copying import contents
from each import usual
from outcomes import killed_saves, leftovers, random_model, random_weights, standing
from weightctl import Plan, open_weights
from weightctl.errors import FormatError, OutputError
from weightctl.plan.arrangement import split
from weightctl.system.temporary import SWITCH, aside_name
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from conftest import Completed
    from outcomes import KilledSaves

    Files = dict[str, bytes]
    Contents = dict[str, tuple[str, tuple[int, ...], bytes]]
    Run = Callable[..., Completed]

# The limit of the file size for each number of parts of three small matrices.
SIZES = {3: 1, 2: 70_000, 1: 1 << 30}
FORMATS_OF = {".safetensors": "safetensors", ".gguf": "gguf", ".bin": "pytorch"}
THESIS = {"thesis.tex": b"years of work"}


class Place(NamedTuple):
    """A directory with a set and another file, and a run that replaces the set."""

    path: Path
    old: Files
    new: Files
    held: tuple[Contents, Contents]
    run: Callable[..., int]

    def restore(self) -> None:
        """Restore the old set, and remove everything else."""
        shutil.rmtree(self.path)
        self.path.mkdir()
        for name, raw in (self.old | THESIS).items():
            (self.path / name).write_bytes(raw)

    def read(self) -> Contents:
        """Return the tensors that every name and the directory lead to: the old or the new ones."""
        found = [contents(open_weights(self.path))]
        for name in self.old | self.new:
            try:
                found.append(contents(open_weights(self.path / name)))
            except FormatError:
                assert not (self.path / name).exists()
        assert found[0] in self.held
        assert found == [found[0]] * len(found)
        return found[0]

    def assert_loadable(self) -> None:
        """Assert that what other programs load by any name is one of the sets, or nothing."""
        there = standing(self.path)
        for name in self.old.keys() | self.new.keys():
            if name not in there:
                continue
            if name.endswith(".index.json"):
                parts = dict.fromkeys(json.loads(there[name])["weight_map"].values())
                assert all(part.endswith(".safetensors") for part in parts)
                loaded = [(self.path / part).read_bytes() for part in parts]
                assert loaded in (parts_of(self.old), parts_of(self.new))
            elif name.endswith(".gguf") and "-00001-of-" in name:
                names = sorted(self.path.glob(re.sub("-00001-", "-*-", name)))
                assert [path.read_bytes() for path in names] in (
                    parts_of(self.old), parts_of(self.new)
                )  # fmt: skip


def parts_of(files: Files) -> list[bytes]:
    return [raw for name, raw in sorted(files.items()) if "-of-" in name]


@pytest.fixture(scope="module")
def saves() -> Generator[KilledSaves, None, None]:
    with killed_saves() as running:
        yield running


def place_of(scratch: Path, saves: KilledSaves, suffix: str, counts: tuple[int, int]) -> Place:
    path = scratch / "place"
    made: list[Files] = []
    held: list[Contents] = []
    for number, count in enumerate(counts):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        source = scratch / f"source{number}"
        if not source.exists():
            random_model(source, 3, 8, seed=number)
        assert saves.run(source, path / f"m{suffix}", SIZES[count], force=False) == 0
        made.append(standing(path))
        assert len(parts_of(made[-1])) == (count if count > 1 else 0)
        held.append(contents(open_weights(path)))

    def run(*, force: bool, change: int | None = None) -> int:
        out = path / f"m{suffix}"
        return saves.run(scratch / "source1", out, SIZES[counts[1]], force=force, change=change)

    return Place(path, made[0], made[1], (held[0], held[1]), run)


@pytest.mark.parametrize(
    ("suffix", "counts"),
    usual(
        [(".gguf", (3, 2)), (".gguf", (1, 2)), (".safetensors", (2, 1))],
        itertools.product([".safetensors", ".gguf"], [(2, 2), (3, 2), (2, 1), (1, 2)]),
    ),
    ids=str,
)
def test_a_kill_before_any_change_of_a_name_leaves_the_old_set_or_the_new_one(
    scratch: Path, saves: KilledSaves, suffix: str, counts: tuple[int, int]
) -> None:
    place = place_of(scratch, saves, suffix, counts)
    found: list[Contents] = []
    for change in itertools.count(1):
        place.restore()
        code = place.run(force=True, change=change)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        found.append(place.read())
        place.assert_loadable()
        if change % 2:
            assert place.run(force=False) == 2
            assert standing(place.path) in (place.old | THESIS, place.new | THESIS)
            assert place.read() == found[-1]
        else:
            assert place.run(force=True) == 0
            assert standing(place.path) == place.new | THESIS
        assert leftovers(place.path) == []
    # The new set becomes valid at a single moment.
    before = found.count(place.held[0])
    assert found == [place.held[0]] * before + [place.held[1]] * (len(found) - before)
    assert 0 < before < len(found) - 4
    assert standing(place.path) == place.new | THESIS
    assert leftovers(place.path) == []


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_a_kill_where_nothing_was_leaves_nothing_or_a_set_that_the_next_run_completes(
    scratch: Path, saves: KilledSaves, suffix: str
) -> None:
    place = place_of(scratch, saves, suffix, (2, 2))
    codes: list[int] = []
    for change in itertools.count(1):
        shutil.rmtree(place.path)
        place.path.mkdir()
        code = place.run(force=False, change=change)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        place.assert_loadable()
        is_there = bool(standing(place.path) or list(place.path.glob(f"*{SWITCH}")))
        if is_there:
            assert contents(open_weights(place.path)) == place.held[1]
        codes.append(place.run(force=False))
        assert codes[-1] == (2 if is_there else 0)
        assert standing(place.path) == place.new
        assert leftovers(place.path) == []
    assert {*codes} == {0, 2}


@pytest.fixture
def stopped(scratch: Path, saves: KilledSaves) -> Place:
    """A set of GGUF files whose replacement is decided, but not all new files have their names."""
    place = place_of(scratch, saves, ".gguf", (3, 3))
    for change in itertools.count(1):
        place.restore()
        place.run(force=True, change=change)
        if not (place.path / "m-00001-of-00003.gguf").exists():
            return place
    raise AssertionError


def test_ls_reads_the_new_set_and_says_what_finishes_it(weightctl: Run, stopped: Place) -> None:
    done = weightctl("ls", stopped.path / "m-00001-of-00003.gguf")
    assert done.returncode == 0
    assert (
        "the run that is replacing m.gguf has not finished: the new files are read under their "
        "temporary names; if the run was stopped, run the same command again to finish it"
    ) in done.stderr
    assert (
        "has not finished: the new files are read under their temporary names; if the run was "
        "stopped, run the same command again to finish it"
    ) in done.stderr


def test_a_waiting_set_is_an_input_that_its_own_names_do_not_replace(stopped: Place) -> None:
    plan = split(Plan.copy(open_weights(stopped.path / "m-00002-of-00003.gguf"), "gguf"), 1)
    save(plan, stopped.path / "other.gguf")
    assert contents(open_weights(stopped.path / "other-00001-of-00003.gguf")) == stopped.held[1]
    with pytest.raises(OutputError, match="is the input itself"):
        save(plan, stopped.path / "m.gguf", force=True)
    assert standing(stopped.path).items() > stopped.new.items()


def test_a_file_that_somebody_put_there_since_is_not_taken_for_the_set(stopped: Place) -> None:
    (stopped.path / "m-00001-of-00003.gguf").write_bytes(b"mine")
    with pytest.raises(FormatError, match="this file was changed afterwards") as read:
        open_weights(stopped.path / "m-00002-of-00003.gguf")
    assert "--force" in read.value.hint
    plan = Plan.copy(random_weights(1, 8), "gguf")
    with pytest.raises(OutputError, match="was changed or removed") as caught:
        save(plan, stopped.path / "m.gguf")
    assert "--force" in caught.value.hint
    assert (stopped.path / "m-00001-of-00003.gguf").read_bytes() == b"mine"
    save(plan, stopped.path / "m.gguf", force=True)
    assert standing(stopped.path).keys() == {"thesis.tex", "m.gguf"}
    assert leftovers(stopped.path) == []


def test_a_waiting_set_of_which_a_file_is_gone_is_replaced_only_with_force(stopped: Place) -> None:
    next(stopped.path.glob("m-00003-of-00003.gguf.*")).unlink()
    (stopped.path / "m-00003-of-00003.gguf").unlink(missing_ok=True)
    with pytest.raises(FormatError, match="1 of 3 parts is missing"):
        open_weights(stopped.path / "m-00002-of-00003.gguf")
    plan = Plan.copy(random_weights(1, 8), "gguf")
    with pytest.raises(OutputError, match="was changed or removed"):
        save(plan, stopped.path / "m.gguf")
    save(plan, stopped.path / "m.gguf", force=True)
    assert standing(stopped.path).keys() == {"thesis.tex", "m.gguf"}


@pytest.mark.parametrize(
    "record",
    [
        b"", b"[]", b'{"new": {}, "old": []}',
        b'{"new": {"m.gguf": "m.gguf"}, "old": []}',
        b'{"new": {"m.gguf": "thesis.tex"}, "old": []}',
        b'{"new": {"m.gguf": "m.gguf.weightctl-01234567.partial"}, "old": ["thesis.tex"]}',
        b'{"new": {"m.gguf": "m.gguf.weightctl-01234567.partial"}, "old": ["../m.gguf"]}',
        b'{"new": {"m.gguf": "m.gguf.weightctl-01234567.partial"}, "old": [1]}',
    ],
)  # fmt: skip
def test_a_record_that_weightctl_would_not_write_moves_no_file(
    tmp_path: Path, record: bytes
) -> None:
    plan = Plan.copy(random_weights(1, 8), "gguf")
    save(plan, tmp_path / "m.gguf")
    (tmp_path / "thesis.tex").write_bytes(b"years of work")
    (tmp_path / f"m.gguf{SWITCH}").write_bytes(record)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for do in (open_weights, lambda path: save(plan, path, force=True)):
        with pytest.raises(FormatError) as caught:
            do(tmp_path / "m.gguf")
        assert caught.value.path == str(tmp_path / f"m.gguf{SWITCH}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".bin"])
def test_a_set_is_replaced_where_the_file_system_has_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for seed in (1, 2):
        plan = Plan.copy(random_weights(3, 8, seed=seed), FORMATS_OF[suffix])
        save(split(plan, 1), tmp_path / f"m{suffix}", force=seed == 2)
        assert contents(open_weights(tmp_path)) == contents(random_weights(3, 8, seed=seed))
        assert leftovers(tmp_path) == []
    with pytest.raises(OutputError, match="exists"):
        save(split(plan, 1), tmp_path / f"m{suffix}")


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_a_replacement_that_is_refused_at_its_first_change_leaves_the_old_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    plans = [split(Plan.copy(random_weights(3, 8, seed=seed), FORMATS_OF[suffix]), 1)
             for seed in (1, 2)]  # fmt: skip
    save(plans[0], tmp_path / f"m{suffix}")
    old = standing(tmp_path)
    for name in ("unlink", "replace"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name), min(old, key=len), max(old)))
    with pytest.raises(OutputError, match=r"cannot be (written|removed)"):
        save(plans[1], tmp_path / f"m{suffix}", force=True)
    assert standing(tmp_path) == old
    assert leftovers(tmp_path) == []


def refusing(do: Callable[..., None], *names: str) -> Callable[..., None]:
    """Return a system call that refuses to change or remove files with these names."""

    def refuse(*paths: str) -> None:
        if os.path.basename(paths[-1]) in names:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        do(*paths)

    return refuse


def test_a_directory_that_was_moved_aside_is_read_until_the_next_run(tmp_path: Path) -> None:
    # The state after a kill on systems that cannot exchange two directories atomically.
    out = tmp_path / "out"
    random_model(out, 2, 8, seed=1)
    old = contents(open_weights(out))
    out.rename(aside_name(str(out)))
    weights = open_weights(out)
    assert contents(weights) == old
    assert "the old files are read" in weights.header.notes[0]
    with pytest.raises(OutputError, match="is not empty"):
        save(Plan.copy(random_weights(1, 8), "safetensors"), out)
    assert os.listdir(tmp_path) == ["out"]
    assert contents(open_weights(out)) == old


def test_parts_that_an_earlier_version_left_aside_are_named_with_what_brings_them_back(
    tmp_path: Path,
) -> None:
    save(split(Plan.copy(random_weights(3, 8), "gguf"), 1), tmp_path / "m.gguf")
    old = standing(tmp_path)
    for name in list(old)[:2]:
        (tmp_path / name).rename(tmp_path / f"{name}.old.weightctl-01234567.partial")
    with pytest.raises(FormatError, match="2 of 3 parts are missing") as caught:
        open_weights(min(path for path in tmp_path.iterdir() if path.name in old))
    assert (
        "the run that was replacing these files was stopped; run the same `weightctl convert` "
        "command again"
    ) in caught.value.hint
    with pytest.raises(OutputError, match="exists"):
        save(split(Plan.copy(random_weights(3, 8), "gguf"), 1), tmp_path / "m.gguf")
    assert standing(tmp_path) == old
