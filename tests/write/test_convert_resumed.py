"""A conversion that was stopped is continued by the same command, and gives the same bytes."""

from __future__ import annotations

import os
import shutil
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from copying import contents
from outcomes import KINDS, Kind, leftovers, random_model, random_weights, standing
from weightctl import Plan, convert, open_weights, save
from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError, OutputError
from weightctl.plan.cast import cast
from weightctl.system.temporary import JOURNAL
from weightctl.write.journal import read_journal
from weightctl.write.locks import find_journal
from weightctl.write.outcome import describe
from weightctl.write.targets import target
from weightctl.write.tasks import cut_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed
    from weightctl.write.save import Saved

EACH = pytest.mark.parametrize(
    "kind", [KINDS["file"], KINDS["directory"], KINDS["set"], Kind("out.pt", "F16")],
    ids=lambda kind: kind.name,
)  # fmt: skip


class StopError(Exception):
    """What a caller's own progress raises."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model of 8 MB, so that it is several tasks."""
    return random_model(tmp_path / "source", 4, 512)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def stop_after(nbytes: int) -> Callable[[int], None]:
    """Return a progress that stops the run once so many bytes are written."""
    seen = 0
    lock = threading.Lock()

    def progress(count: int) -> None:
        nonlocal seen
        with lock:
            seen += count
            if seen >= nbytes:
                raise StopError

    return progress


def stop_halfway(plan: Plan, where: object, **options: object) -> Path:
    """Stop a conversion at half of its bytes; return the journal."""
    outcome = describe(plan, where)  # type: ignore[arg-type]
    with pytest.raises(StopError):
        save(plan, where, threads=1, progress=stop_after(outcome.tensor_bytes // 2), **options)  # type: ignore[arg-type]
    journal = find_journal(outcome.path)
    assert journal is not None
    return Path(journal)


def undisturbed(kind: Kind, source: Path, scratch: Path) -> tuple[Saved, dict[str, bytes]]:
    """Convert elsewhere, in one go."""
    (elsewhere := scratch / "elsewhere").mkdir()
    saved = save(*kind.plan(open_weights(source), elsewhere))
    return saved, standing(elsewhere)


@EACH
@pytest.mark.usefixtures("journal_from_the_start")
def test_the_same_conversion_continues_and_gives_the_same_bytes_and_losses(
    kind: Kind, source: Path, place: Path, tmp_path: Path
) -> None:
    plan, where = kind.plan(open_weights(source), place)
    stop_halfway(plan, where)
    assert standing(place) == {}
    saved = save(*kind.plan(open_weights(source), place))
    whole, expected = undisturbed(kind, source, tmp_path)
    assert 0 < saved.kept_bytes < saved.outcome.tensor_bytes
    assert saved.kept_bytes + saved.written_bytes == whole.written_bytes
    assert saved.started_over == ""
    assert saved.losses == whole.losses
    assert standing(place) == expected
    assert leftovers(place) == []


@EACH
@pytest.mark.usefixtures("journal_from_the_start")
def test_a_dry_run_says_how_much_would_be_kept(kind: Kind, source: Path, place: Path) -> None:
    plan, where = kind.plan(open_weights(source), place)
    assert convert(plan, where, dry_run=True).kept_bytes == 0
    stop_halfway(plan, where)
    there = leftovers(place)
    planned = convert(plan, where, dry_run=True)
    kept_bytes = planned.kept_bytes
    assert kept_bytes
    assert leftovers(place) == there
    changed = replace(plan, zero_nonfinite=True)
    assert convert(changed, where, dry_run=True, nonfinite="zero").kept_bytes == 0
    assert planned.save().kept_bytes == kept_bytes
    assert convert(plan, where, dry_run=True).kept_bytes == 0


@pytest.mark.usefixtures("journal_from_the_start")
def test_the_command_says_in_a_dry_run_what_it_would_keep(
    weightctl: Callable[..., Completed], source: Path, place: Path
) -> None:
    out = place / "out.gguf"
    plan = convert(source, out, dtype="f32", dry_run=True).plan
    stop_halfway(plan, target(str(out), "gguf"))
    done = weightctl("convert", source, out, "--dtype", "f32", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "are complete from a run that was stopped, and would be kept" in done.stdout
    done = weightctl("convert", source, out, "--dtype", "f16", "--dry-run")
    assert "would be kept" not in done.stdout


@EACH
@pytest.mark.usefixtures("journal_from_the_start")
def test_the_old_output_stays_until_the_new_one_is_whole(
    kind: Kind, source: Path, place: Path, tmp_path: Path
) -> None:
    save(*kind.plan(random_weights(4, 8, seed=1), place))
    old = standing(place)
    plan, where = kind.plan(open_weights(source), place)
    for _ in range(2):
        stop_halfway(plan, where, force=True)
        assert standing(place) == old
        # Without --force the old output is refused, and what is complete stays too.
        with pytest.raises(OutputError, match="exists"):
            save(plan, where)
    assert save(plan, where, force=True).kept_bytes
    assert standing(place) == undisturbed(kind, source, tmp_path)[1]


@pytest.mark.usefixtures("journal_from_the_start")
def test_nothing_that_is_recorded_is_written_again(
    source: Path, place: Path, tmp_path: Path
) -> None:
    kind = KINDS["file"]
    plan, where = kind.plan(open_weights(source), place)
    journal = stop_halfway(plan, where)
    read = read_journal(str(journal))
    assert read is not None
    # Where the bytes of what is recorded are the changed ones, they stayed.
    recorded = {int(record.key) for record in read[1]}
    assert recorded
    ranges = [
        (offset + start // 32 * 34, offset + stop // 32 * 34)
        for number, _, portions in cut_tasks(plan, plan.layouts())
        if number in recorded
        for _, start, stop, offset in portions
    ]
    partial = Path(str(journal).removesuffix(JOURNAL))
    flip(partial, ranges)
    save(plan, where)
    flip(place / kind.name, ranges)
    assert standing(place) == undisturbed(kind, source, tmp_path)[1]


def flip(path: Path, ranges: list[tuple[int, int]]) -> None:
    """Change every byte of some ranges of a file, or change them back."""
    raw = np.frombuffer(bytearray(path.read_bytes()), np.uint8)
    for start, stop in ranges:
        raw[start:stop] ^= 0xFF
    path.write_bytes(raw.tobytes())


@EACH
@pytest.mark.usefixtures("journal_from_the_start")
def test_a_run_that_cannot_begin_keeps_what_an_earlier_one_has_left(
    kind: Kind, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, where = kind.plan(open_weights(source), place)
    stop_halfway(plan, where)

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("weightctl.storage.local.reserve", refuse)
        with pytest.raises(OutputError, match="Too many open files"):
            save(plan, where)
    assert save(plan, where).kept_bytes


@pytest.mark.usefixtures("journal_from_the_start")
def test_another_plan_starts_over_and_says_so(source: Path, place: Path) -> None:
    plan, where = KINDS["file"].plan(open_weights(source), place)
    stop_halfway(plan, where)
    other = cast(Plan.copy(open_weights(source), "gguf"), ENCODINGS["Q5_0"])
    saved = save(other, where)
    assert (saved.kept_bytes, saved.started_over) == (0, "the plan has changed")
    assert leftovers(place) == []


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_changed_input_starts_over_and_says_so(source: Path, place: Path, tmp_path: Path) -> None:
    kind = KINDS["file"]
    stop_halfway(*kind.plan(open_weights(source), place))
    shutil.rmtree(source)
    random_model(source, 4, 512, seed=8)
    saved = save(*kind.plan(open_weights(source), place))
    assert (saved.kept_bytes, saved.started_over) == (0, "the input has changed")
    assert standing(place) == undisturbed(kind, source, tmp_path)[1]


@pytest.mark.usefixtures("journal_from_the_start")
def test_importance_is_part_of_the_plan(source: Path, place: Path) -> None:
    plan, where = KINDS["file"].plan(open_weights(source), place)
    weighted = [
        plan.with_items(
            tuple(
                item.__class__(item.info, item.source, importance=np.full((1, 1024), weight, "f4"))
                for item in plan.items
            )
        )
        for weight in (1, 2)
    ]
    stop_halfway(weighted[0], where)
    assert save(weighted[1], where).started_over == "the plan has changed"


@pytest.mark.usefixtures("journal_from_the_start")
def test_the_config_is_part_of_the_plan(source: Path, place: Path) -> None:
    stop_halfway(*KINDS["file"].plan(open_weights(source), place))
    (source / "config.json").write_text('{"num_attention_heads": 3}')
    saved = save(*KINDS["file"].plan(open_weights(source), place))
    assert saved.started_over == "the plan has changed"


@pytest.mark.usefixtures("journal_from_the_start")
def test_an_input_that_is_written_to_meanwhile_leaves_nothing(source: Path, place: Path) -> None:
    path = source / "model.safetensors"

    def spoil(_: int) -> None:
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(bytes(4))

    plan, where = KINDS["file"].plan(open_weights(source), place)
    with pytest.raises(FormatError, match="changed while it was read") as caught:
        save(plan, where, progress=spoil)
    assert "continues" not in caught.value.hint
    assert os.listdir(place) == []


@pytest.mark.usefixtures("journal_from_the_start")
def test_what_is_in_memory_leaves_nothing(place: Path) -> None:
    plan, where = KINDS["file"].plan(random_weights(4, 512), place)
    with pytest.raises(StopError):
        save(plan, where, threads=1, progress=stop_after(2_000_000))
    assert os.listdir(place) == []


def test_a_run_that_was_stopped_at_once_leaves_nothing(source: Path, place: Path) -> None:
    plan, where = KINDS["file"].plan(open_weights(source), place)
    with pytest.raises(StopError):
        save(plan, where, threads=1, progress=stop_after(2_000_000))
    assert os.listdir(place) == []


@pytest.mark.usefixtures("journal_from_the_start")
@pytest.mark.parametrize(
    "line",
    ['{"file": 0, "key": "999"}', '{"file": 7, "key": "0"}', '{"file": 0, "key": "x"}',
     '{"file": 0, "key": "0", "losses": {"a": [1]}}', '{"file": 0, "key": "0", "crc32": {"a": -1}}',
     '{"file": 0, "key": "0", "losses": 3}', '{"file": 0', "\x00", "[[[["],
)  # fmt: skip
def test_a_record_that_is_not_sound_counts_for_nothing(
    line: str, source: Path, place: Path, tmp_path: Path
) -> None:
    kind = KINDS["set"]
    plan, where = kind.plan(open_weights(source), place)
    journal = stop_halfway(plan, where)
    journal.write_text(f"{journal.read_text().splitlines()[0]}\n{line}\n")
    assert save(plan, where).kept_bytes == 0
    assert standing(place) == undisturbed(kind, source, tmp_path)[1]


@EACH
@pytest.mark.usefixtures("journal_from_the_start")
@pytest.mark.parametrize("damage", ["gone", "short", "long"])
def test_a_file_that_is_not_as_it_was_made_is_made_anew(
    kind: Kind, damage: str, source: Path, place: Path, tmp_path: Path
) -> None:
    plan, where = kind.plan(open_weights(source), place)
    stop_halfway(plan, where)
    left = [path for path in place.rglob("*") if path.stat().st_size > 1_000_000 and path.is_file()]
    for path in left:
        if damage == "gone":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size + (1 if damage == "long" else -1))
    assert save(plan, where).kept_bytes == 0
    assert standing(place) == undisturbed(kind, source, tmp_path)[1]


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_zip_that_was_continued_has_the_right_checksums(source: Path, place: Path) -> None:
    kind = Kind("out.pt", "F16")
    plan, where = kind.plan(open_weights(source), place)
    stop_halfway(plan, where)
    assert save(plan, where).kept_bytes
    with zipfile.ZipFile(place / kind.name) as archive:
        assert archive.testzip() is None
    made, stored = open_weights(place / kind.name), open_weights(source)
    for name in contents(stored):
        expected = stored[name].data().to_numpy().astype(np.float16)
        assert np.array_equal(made[name].data().to_numpy(), expected)


@pytest.mark.usefixtures("journal_from_the_start")
def test_an_error_of_the_disk_says_that_the_same_command_continues(
    source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, where = KINDS["file"].plan(open_weights(source), place)
    refused = OSError(13, "Permission denied")

    def refuse(*_: object) -> None:
        raise refused

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        patch.setattr(os, "replace", refuse_target(os.replace, f"{place}/out.gguf", refused))
        with pytest.raises(OutputError, match="Permission denied") as caught:
            save(plan, where)
    assert "the same command continues" in caught.value.hint
    assert save(plan, where).written_bytes == 0


def refuse_target(replace: Callable[..., None], target: str, error: OSError) -> Callable[..., None]:
    """Return `os.replace` so that it refuses one new name."""

    def replace_others(old: str, new: str) -> None:
        if new == os.path.realpath(target):
            raise error
        replace(old, new)

    return replace_others
