"""What an unfinished run has written and recorded is not written again, and nothing is believed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import TYPE_CHECKING

import pytest

from sharded_files import (
    StopError,
    after,
    assert_whole,
    columns_or_all,
    cut,
    layers,
    partial_of,
    plan_of,
    recorded,
    rows_or_all,
    stop,
    stopped,
)
from weightctl import open_weights
from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.formats.sharded.manifest import read_manifest
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.formats.sharded.records import fingerprint_source
from weightctl.split import Grid, replicate
from weightctl.system.temporary import JOURNAL
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Sharding, Whole
    from weightctl.write.journal import Record

# Cuts a checkpoint, and kills itself when so many bytes are written and something is recorded.
KILLED = """
import os, signal, sys, time
from pathlib import Path
from sharded_files import after, cut
from weightctl.write import journal
from weightctl.write.locks import find_journal
from weightctl.write.shard import save_shards
journal.BEGIN_AFTER = 0
source, out, nbytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def die():
    while not (path := find_journal(out)) or Path(path).read_bytes().count(b"\\n") < 3:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
save_shards(cut(source), out, threads=1, progress=after(nbytes, die))
"""


pytestmark = pytest.mark.usefixtures("journal_from_the_start")


def killed_halfway(source: Path, out: Path) -> None:
    """Cut a checkpoint in a process that is killed when half of the bytes are written."""
    half = sum(info.nbytes for info in open_weights(source).header.tensors.values()) // 2
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(out), str(half)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -SIGKILL, done.stderr.decode()


def bytes_of(plan: ShardPlan, keys: Iterable[tuple[int, str]]) -> int:
    wanted = {*keys}
    return sum(
        shard.info.nbytes
        for rank, shards in enumerate(plan.ranks)
        for shard in shards
        if (rank, shard.info.name) in wanted
    )


def mark(plan: ShardPlan, out: Path, records: Mapping[tuple[int, str], Record]) -> None:
    """Change every byte of the tensors that are recorded, in files that are unfinished; or back."""
    mark_files(plan, partial_of(out), records)


def mark_files(plan: ShardPlan, directory: Path, records: Mapping[tuple[int, str], Record]) -> None:
    """Change every byte of the tensors that are recorded, in the files of a directory; or back."""
    for rank in range(len(plan.ranks)):
        path = directory / f"rank-{rank}/model.safetensors"
        header = open_weights(path).header
        raw = bytearray(path.read_bytes())
        for name, (_, offset, nbytes, *_) in header.extents.items():
            if (rank, name) in records:
                flipped = bytes(byte ^ 0xFF for byte in raw[offset : offset + nbytes])
                raw[offset : offset + nbytes] = flipped
        path.write_bytes(raw)


def bytes_written() -> int:
    with open("/proc/self/io") as file:
        reported = dict(line.split(": ") for line in file)
    return int(reported["wchar"])


def test_a_run_that_was_killed_leaves_only_the_partial_directory(tmp_path: Path) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "place/out"
    out.parent.mkdir()
    killed_halfway(source, out)
    partial = partial_of(out)
    assert {*os.listdir(out.parent)} == {partial.name, partial.name + JOURNAL}
    plan = cut(source)
    manifest = read_manifest(str(partial / MANIFEST))
    assert manifest.source == fingerprint_source(open_weights(source).source)
    assert manifest.shardings == plan.shardings
    assert {shard.sha256 for file in manifest.files for shard in file.shards} == {""}
    with pytest.raises(FormatError, match="is incomplete") as caught:
        open_weights(partial)
    assert "to complete it" in caught.value.hint


def test_the_same_command_finishes_what_was_killed_and_writes_only_what_is_missing(
    tmp_path: Path,
) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    killed_halfway(source, out)
    plan, records = cut(source), recorded(out)
    kept = bytes_of(plan, records)
    before = bytes_written()
    saved = save_shards(plan, out)
    extra = bytes_written() - before - saved.written_bytes
    assert saved.outcome.tensor_bytes // 3 < saved.kept_bytes == kept
    assert saved.written_bytes == saved.outcome.tensor_bytes - kept
    # Headers, manifest and journal.
    assert 0 < extra < 50_000
    assert saved.started_over == ""
    assert_whole(plan, out, tmp_path)
    assert {*os.listdir(tmp_path)} == {"model", "out", "wanted"}


def test_not_a_byte_of_what_is_recorded_is_written_again(tmp_path: Path) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"
    records = stopped(plan, out)
    # Nobody but this test changes bytes there; where they are the changed ones, they stayed.
    mark(plan, out, records)
    save_shards(plan, out)
    mark_files(plan, out, records)
    assert_whole(plan, out, tmp_path)


def test_a_run_can_be_stopped_again_and_again(tmp_path: Path) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"
    counts = [len(stopped(plan, out, share)) for share in (0.2, 0.4, 0.6, 0.8)]
    assert counts == sorted({*counts})
    saved = save_shards(plan, out)
    assert 0 < saved.written_bytes < saved.outcome.tensor_bytes // 3
    assert_whole(plan, out, tmp_path)


def test_a_run_that_was_stopped_behind_its_last_byte_has_only_its_name_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    plan = cut(source)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", _refusing_to_name(out))
        with pytest.raises(OutputError, match="cannot be written") as caught:
            save_shards(plan, out)
    assert "the same command continues" in caught.value.hint
    assert open_weights(partial_of(out))
    assert save_shards(plan, out).written_bytes == 0
    assert_whole(plan, out, tmp_path)


def _refusing_to_name(out: Path) -> object:
    replace = os.replace

    def replace_or_refuse(source: str, target: str) -> None:
        if target == str(out):
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    return replace_or_refuse


@pytest.mark.parametrize(("ranks", "how"), [(3, rows_or_all), (2, columns_or_all), (2, replicate)])
def test_another_plan_starts_over_and_says_so(
    ranks: int, how: Callable[[Whole, int], Sharding], tmp_path: Path
) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    stopped(cut(source, 2), out)
    plan = plan_of(open_weights(source), Grid(ranks), how)
    saved = save_shards(plan, out)
    assert (saved.kept_bytes, saved.started_over) == (0, "the plan has changed")
    assert_whole(plan, out, tmp_path)


def test_a_changed_input_starts_over_and_says_so(tmp_path: Path) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    stopped(cut(source), out)
    (tmp_path / "model").rename(tmp_path / "before")
    layers(tmp_path / "model", seed=2)
    plan = cut(source)
    saved = save_shards(plan, out)
    assert (saved.kept_bytes, saved.started_over) == (0, "the input has changed")
    assert_whole(plan, out, tmp_path)


def test_an_input_that_was_opened_before_it_was_replaced_is_the_old_one(tmp_path: Path) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    before = cut(source)
    layers(tmp_path / "other", seed=2)
    os.replace(tmp_path / "other/model.safetensors", source / "model.safetensors")
    stopped(before, out)
    plan = cut(source)
    saved = save_shards(plan, out)
    assert saved.started_over == "the input has changed"
    assert_whole(plan, out, tmp_path)


def test_an_input_that_was_moved_is_known_again(tmp_path: Path) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    stopped(cut(source), out)
    source.rename(tmp_path / "moved")
    plan = cut(tmp_path / "moved")
    assert save_shards(plan, out).kept_bytes
    assert_whole(plan, out, tmp_path)


def test_an_input_that_is_written_to_meanwhile_is_refused_and_nothing_of_it_stays(
    tmp_path: Path,
) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    path = source / "model.safetensors"

    def spoil() -> None:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")

    with pytest.raises(FormatError, match="changed while it was read") as caught:
        save_shards(cut(source), out, progress=after(3_000_000, spoil))
    assert "continues" not in caught.value.hint
    assert os.listdir(tmp_path) == ["model"]
    plan = cut(source)
    assert save_shards(plan, out).started_over == ""
    assert_whole(plan, out, tmp_path)


@pytest.mark.parametrize("error", [ConversionError("wrong"), ZeroDivisionError(), KeyError("a")])
def test_after_an_error_that_the_same_plan_would_meet_again_nothing_stays(
    tmp_path: Path, error: Exception
) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        save_shards(plan, out, threads=1, progress=after(3_000_000, fail))
    assert os.listdir(tmp_path) == ["model"]


def test_tensors_in_memory_are_not_known_again(tmp_path: Path) -> None:
    weights = open_weights(layers(tmp_path / "model"))
    data = {name: weights[name].data() for name in weights.header.tensors}
    plan = plan_of(as_checkpoint(data), Grid(2), format_name="safetensors")
    with pytest.raises(StopError):
        save_shards(plan, tmp_path / "out", threads=1, progress=after(3_000_000, stop))
    assert os.listdir(tmp_path) == ["model"]
    saved = save_shards(plan, tmp_path / "out")
    assert (saved.kept_bytes, saved.started_over) == (0, "")
    assert_whole(plan, tmp_path / "out", tmp_path)


def test_a_line_that_a_crash_has_torn_is_not_a_record(tmp_path: Path) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"
    records = stopped(plan, out)
    journal = Path(f"{partial_of(out)}{JOURNAL}")
    journal.write_bytes(journal.read_bytes()[:-5])
    *_, last = records
    mark(plan, out, {last: records[last]})
    assert save_shards(plan, out).kept_bytes == bytes_of(plan, records) - bytes_of(plan, [last])
    assert_whole(plan, out, tmp_path)


def test_a_tensor_is_recorded_behind_its_file_reaching_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = cut(layers(tmp_path / "model"), 3), tmp_path / "out"
    fsync, fdatasync, before = os.fsync, os.fdatasync, 0
    synced, recorded_ranks = set[str](), set[int]()

    def watched_file(descriptor: int) -> None:
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".safetensors"):
            synced.add(os.path.basename(os.path.dirname(path)))

    def watched_journal(descriptor: int) -> None:
        nonlocal before
        fdatasync(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".new"):
            return
        ranks = {rank for rank, _ in [*recorded(out)][before:]}
        assert synced == {f"rank-{rank}" for rank in ranks}
        recorded_ranks.update(ranks)
        before = len(recorded(out))
        synced.clear()

    monkeypatch.setattr(os, "fsync", watched_file)
    monkeypatch.setattr(os, "fdatasync", watched_journal)
    save_shards(plan, out)
    assert recorded_ranks == {0, 1, 2}


@pytest.mark.parametrize("kind", ["missing", "short", "long", "link"])
def test_a_file_that_is_not_as_it_was_made_is_made_anew(kind: str, tmp_path: Path) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"
    records = stopped(plan, out)
    path = partial_of(out) / "rank-1/model.safetensors"
    if kind == "short":
        os.truncate(path, path.stat().st_size - 1)
    elif kind == "long":
        with path.open("ab") as file:
            file.write(b"x")
    else:
        path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    kept = [key for key in records if key[0] == 0]
    assert kept
    assert save_shards(plan, out).kept_bytes == bytes_of(plan, kept)
    assert_whole(plan, out, tmp_path)
    if kind == "link":
        assert (tmp_path / "elsewhere").stat().st_nlink == 1


def test_what_a_companion_has_become_goes_along(tmp_path: Path) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "out"
    (source / "vocab.json").write_text("[]")
    plan = cut(source)
    with pytest.raises(StopError):
        save_shards(plan, out, progress=after(3_000_000, stop))
    (source / "vocab.json").unlink()
    (source / "merges.txt").write_text("a b")
    (source / "config.json").write_text('{"a": 1}')
    assert save_shards(plan, out).kept_bytes
    assert_whole(plan, out, tmp_path)


def test_a_run_that_has_recorded_nothing_leaves_nothing(tmp_path: Path) -> None:
    source, out = layers(tmp_path / "model"), tmp_path / "place/out"
    out.parent.mkdir()
    with pytest.raises(StopError):
        save_shards(cut(source), out, threads=1, progress=after(1, stop))
    assert os.listdir(out.parent) == []


def test_ctrl_c_leaves_what_is_complete_and_the_next_run_goes_on(tmp_path: Path) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"
    gc.collect()  # what other tests have left open
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        save_shards(plan, out, progress=after(3_000_000, lambda: os.kill(os.getpid(), SIGINT)))
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert save_shards(plan, out).kept_bytes > 0
    assert_whole(plan, out, tmp_path)


def test_nothing_of_the_run_before_is_left_where_it_is_finished(tmp_path: Path) -> None:
    plan, out = cut(layers(tmp_path / "model")), tmp_path / "out"
    stopped(plan, out)
    save_shards(plan, out)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "out"}
