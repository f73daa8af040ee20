"""Whatever happens, the target is what it was or the complete new one, and the input is whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from conftest import ROOT
from copying import contents
from outcomes import KINDS, leftovers, random_weights, standing
from weightctl import Plan, open_weights
from weightctl.errors import ConversionError, OutputError, WeightctlError
from weightctl.formats import FORMATS
from weightctl.store import save
from weightctl.targets import Target, target
from weightctl.transforms.split import split

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed
    from outcomes import Kind

    Run = Callable[..., Completed]

OLD = b"what was there before"


def test_a_dry_run_removes_nothing(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    left = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    left.write_bytes(OLD)
    assert weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run").returncode == 0
    assert left.read_bytes() == OLD


def test_what_another_run_is_writing_stays(tmp_path: Path) -> None:
    others = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    with others.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        save(Plan.copy(random_weights(1), "gguf"), tmp_path / "out.gguf")
    assert sorted(os.listdir(tmp_path)) == ["out.gguf", others.name]


@pytest.mark.parametrize("name", ["out.gguf.partial", "out.gguf.weightctl-mine.partial"])
def test_a_file_that_is_only_called_like_a_temporary_one_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(OLD)
    save(Plan.copy(random_weights(1), "gguf"), tmp_path / "out.gguf")
    assert (tmp_path / name).read_bytes() == OLD


def test_an_input_called_like_a_temporary_file_is_safe(tmp_path: Path) -> None:
    source = tmp_path / "out.safetensors.partial"
    save(Plan.copy(random_weights(1), "safetensors"), target(str(source), "safetensors"))
    before = source.read_bytes()
    save(Plan.copy(open_weights(source), "safetensors"), tmp_path / "out.safetensors")
    assert source.read_bytes() == before == (tmp_path / "out.safetensors").read_bytes()


def test_a_file_that_appears_meanwhile_stays_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    plan = Plan.copy(random_weights(1), "gguf")
    with pytest.raises(OutputError, match="has appeared meanwhile"):
        save(plan, out, progress=lambda _: out.write_bytes(OLD))
    assert out.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_a_file_that_appears_in_a_directory_meanwhile_stays(
    tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    save(plan, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    thesis = out / "thesis.tex"
    with pytest.raises(OutputError, match=r"thesis\.tex"):
        save(plan, out, force=True, progress=lambda _: thesis.write_bytes(OLD))
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert after == before | {"thesis.tex": OLD}
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_to_a_directory_is_followed(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    for force in (False, True):
        save(plan, tmp_path / "link", force=force)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "disk" / "config.json").exists()


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)
    out.chmod(0o600)
    save(Plan.copy(random_weights(1), "gguf"), out, force=True)
    assert out.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json"])
def test_what_belongs_to_the_input_is_never_the_output(
    tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "in")
    names = open_weights(tiny_llama).header.tensors
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
    plan = Plan.copy(open_weights(tmp_path / "in"), "gguf")
    with pytest.raises(OutputError, match="is the input itself"):
        save(plan, Target(str(tmp_path / "in" / name), "gguf"), force=True)


def test_a_tensor_that_comes_out_short_is_no_output(tmp_path: Path) -> None:
    plan = Plan.copy(random_weights(1), "gguf")
    item = plan.items[0]
    longer = item.info._replace(shape=(512, 1024))
    plan = plan.with_items((item.__class__(longer, item.source),))
    with pytest.raises(ConversionError, match="came out as 1048576 bytes, where 2097152 belong"):
        save(plan, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_not_replaced_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)
    with pytest.raises(OutputError, match="exists") as caught:
        save(Plan.copy(random_weights(), "gguf"), target(str(out)))
    assert "--force" in caught.value.hint
    assert out.read_bytes() == OLD


@pytest.mark.parametrize(
    "link", [None, os.symlink, os.link], ids=["itself", "symlink", "hard link"]
)
def test_the_input_is_never_the_output(tmp_path: Path, link: Callable[..., None] | None) -> None:
    source = tmp_path / "in.safetensors"
    save(Plan.copy(random_weights(2), "safetensors"), target(str(source)))
    before = source.read_bytes()
    out = source if link is None else tmp_path / "other.safetensors"
    if link is not None:
        link(source, out)
    with pytest.raises(OutputError, match="is the input itself"):
        save(Plan.copy(open_weights(source), "safetensors"), target(str(out)), force=True)
    assert source.read_bytes() == before


def test_the_directory_of_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "model" / "model.safetensors"
    source.parent.mkdir()
    save(Plan.copy(random_weights(2), "safetensors"), target(str(source)))
    with pytest.raises(OutputError, match="holds the input"):
        save(Plan.copy(open_weights(source), "safetensors"), target(str(source.parent)), force=True)


def test_a_directory_that_does_not_exist_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist") as caught:
        save(Plan.copy(random_weights(), "gguf"), target(str(tmp_path / "no" / "out.gguf")))
    assert caught.value.hint


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    weights = random_weights(1)
    huge = weights["layers.0.weight"].info._replace(shape=(1 << 40, 1024))
    plan = Plan.copy(weights, "gguf")
    item = plan.items[0].__class__(huge, huge)
    with pytest.raises(OutputError, match="are free on its disk"):
        save(plan.with_items((item,)), target(str(tmp_path / "out.gguf")))
    assert os.listdir(tmp_path) == []


def test_a_directory_is_written_whole(tiny_llama: Path, tmp_path: Path) -> None:
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    save(plan, target(str(tmp_path / "out")))
    assert os.listdir(tmp_path) == ["out"]
    carried = {name for name in os.listdir(tiny_llama) if name != "model.safetensors"}
    assert set(os.listdir(tmp_path / "out")) == carried | {"model.safetensors"}


def test_a_directory_is_replaced_with_force(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    save(plan, target(str(out)))
    whole = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(OLD)
    with pytest.raises(OutputError, match="is not empty"):
        save(plan, target(str(out)))
    save(plan, target(str(out)), force=True)
    assert (out / "model.safetensors").read_bytes() == whole
    assert os.listdir(tmp_path) == ["out"]


def test_a_directory_with_somebody_elses_files_is_not_replaced(
    tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    plan = Plan.copy(open_weights(tiny_llama), "safetensors")
    with pytest.raises(OutputError, match=r"thesis\.tex"):
        save(plan, target(str(tmp_path)), force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_empty_directory_is_filled(tiny_llama: Path, tmp_path: Path) -> None:
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), target(str(tmp_path / "out/")))
    (tmp_path / "empty").mkdir()
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), target(str(tmp_path / "empty")))
    assert (tmp_path / "empty" / "config.json").exists()


# What belongs to the input


@pytest.fixture(params=["safetensors", "gguf"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """The files of a model in three parts: its index, where it has one, a config, and the parts."""
    directory = tmp_path / "model"
    directory.mkdir()
    plan = split(Plan.copy(random_weights(3, 8), request.param), 1)
    save(plan, directory / f"model.{request.param}")
    (directory / "config.json").write_text("{}")
    return sorted(directory.iterdir())


@pytest.mark.parametrize("name", FORMATS)
def test_no_file_of_a_split_input_is_ever_the_output(
    parts: list[Path], tmp_path: Path, name: str
) -> None:
    before = standing(parts[0].parent)
    plan = Plan.copy(open_weights(parts[-1]), name)
    # By a link, since a part's own name says that it is none for a whole file.
    link = tmp_path / f"link{FORMATS[name].suffix}"
    for path in parts:
        link.symlink_to(path)
        with pytest.raises(OutputError, match="is the input itself"):
            save(plan, link, force=True)
        link.unlink()
        with pytest.raises(WeightctlError):
            save(plan, target(str(path), name), force=True)
    assert standing(parts[0].parent) == before


def test_no_part_of_an_output_is_ever_a_part_of_the_input(parts: list[Path]) -> None:
    before = standing(parts[0].parent)
    weights = open_weights(parts[-1])
    plan = split(Plan.copy(weights, weights.header.format), 1)
    with pytest.raises(OutputError, match="is the input itself"):
        save(plan, parts[0].parent / f"model.{weights.header.format}", force=True)
    assert standing(parts[0].parent) == before


def test_the_directory_of_a_split_input_is_never_the_output(parts: list[Path]) -> None:
    directory = parts[0].parent
    before = standing(directory)
    with pytest.raises(OutputError, match="holds the input"):
        save(Plan.copy(open_weights(parts[-1]), "safetensors"), directory, force=True)
    assert standing(directory) == before


def test_another_name_beside_the_input_is_no_harm_to_it(parts: list[Path]) -> None:
    before = standing(parts[0].parent)
    weights = open_weights(parts[-1])
    suffix = FORMATS[weights.header.format].suffix
    save(Plan.copy(weights, weights.header.format), parts[0].parent / f"other{suffix}")
    after = standing(parts[0].parent)
    assert after.pop(f"other{suffix}")
    assert after == before


# What is there already


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_file_of_an_output_that_exists_is_kept_without_force(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    save(plan, where)
    names = list(standing(tmp_path))
    for name in names:
        for other in standing(tmp_path):
            (tmp_path / other).unlink()
        (tmp_path / name).write_bytes(OLD)
        with pytest.raises(OutputError, match="exists") as caught:
            save(plan, where)
        assert "--force" in caught.value.hint
        assert standing(tmp_path) == {name: OLD}


def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(out))
        with pytest.raises(OutputError, match="is no file"):
            save(Plan.copy(random_weights(1), "gguf"), out, force=True)
    assert stat.S_ISSOCK(out.stat().st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_place_that_may_not_be_written_is_refused_as_such(kind: Kind, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    try:
        with pytest.raises(OutputError, match="may not be written"):
            save(plan, where)
    finally:
        tmp_path.chmod(0o700)
    assert os.listdir(tmp_path) == []


def test_a_file_is_no_place_for_an_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(OutputError, match="does not exist"):
        save(Plan.copy(random_weights(1), "gguf"), tmp_path / "file" / "out.gguf")
    assert (tmp_path / "file").read_bytes() == OLD


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_names_that_collide_are_refused_before_anything_is_written(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    save(plan, where)
    before = standing(tmp_path)
    same = plan.items[0].info.name
    items = (plan.items[0], *(replace(i, info=i.info._replace(name=same)) for i in plan.items[1:]))
    with pytest.raises(ConversionError, match=rf"3 tensors would be called `{same}`"):
        save(plan.with_items(items), where, force=True)
    assert standing(tmp_path) == before


# Reports


@pytest.mark.parametrize("force", [False, True])
def test_a_report_never_replaces_a_file_of_the_input(
    weightctl: Run, parts: list[Path], tmp_path: Path, force: bool
) -> None:
    before = standing(parts[0].parent)
    for path in parts:
        done = weightctl(
            *("convert", parts[-1], tmp_path / "out.gguf", "--report", path),
            *(["--force"] if force else []),
        )
        assert done.returncode == 2, path
        assert not (tmp_path / "out.gguf").exists()
    assert standing(parts[0].parent) == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_report_is_no_file_of_the_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), out)
    before = standing(tmp_path)
    done = weightctl("convert", tiny_llama, out, "--force", "--report", out / name)
    assert done.returncode == 2
    assert standing(tmp_path) == before


@pytest.mark.parametrize("name", ["a.gguf", "a-00001-of-00005.gguf", "a-00005-of-00005.gguf"])
def test_a_report_is_no_part_of_the_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    done = weightctl(
        *("convert", tiny_llama, tmp_path / "a.gguf", "--max-shard-size", "1MB"),
        *("--force", "--report", tmp_path / name),
    )
    assert done.returncode == 2
    assert "is the output itself" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_report_takes_the_place_of_a_file_only_with_force(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "report.json"
    report.write_bytes(OLD)
    done = weightctl("convert", tiny_llama, out, "--report", report)
    assert done.returncode == 2
    assert f"{report} exists" in done.stderr
    assert standing(tmp_path) == {"report.json": OLD}
    assert weightctl("convert", tiny_llama, out, "--report", report, "--force").returncode == 0
    assert json.loads(report.read_text())["written"] is True


def test_a_report_never_takes_the_place_of_a_pipe(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    os.mkfifo(report)
    # With a reader, since it would be as right to write into it.
    reader = os.open(report, os.O_RDONLY | os.O_NONBLOCK)
    weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--report", report, "--force")
    os.close(reader)
    assert stat.S_ISFIFO(report.stat().st_mode)


# Threads and memory


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_threads_and_memory_change_nothing_of_an_output(kind: Kind, tmp_path: Path) -> None:
    plan, where = kind.plan(random_weights(3, 700), tmp_path)
    made = []
    for threads, memory in [
        (None, None),
        (1, 1 << 28),
        (1, 4_000_000),
        (2, 8_000_000),
        (5, 400_000),
    ]:
        save(plan, where, force=True, threads=threads, memory=memory)
        made.append(standing(tmp_path))
    assert all(each == made[0] for each in made)


def test_the_options_for_threads_and_memory_change_nothing_of_an_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    for threads, memory in [(1, "256MiB"), (2, "4MB"), (5, "4MB"), (5, "1GiB")]:
        done = weightctl(
            *("convert", tiny_llama, tmp_path / f"{threads}-{memory}.gguf", "--quant", "q8_0"),
            *("-j", str(threads), "--mem", memory),
        )
        assert done.returncode == 0
    assert len(set(standing(tmp_path).values())) == 1


# Sets


def divided(place: Path, most: int, *, seed: int, force: bool = False) -> dict[str, bytes]:
    plan = split(Plan.copy(random_weights(6, 8, seed=seed), "gguf"), most)
    save(plan, place / "m.gguf", force=force)
    return standing(place)


@pytest.mark.parametrize("refused", [False, True])
def test_a_set_that_was_not_replaced_in_time_gets_its_names_back(
    tmp_path: Path, refused: bool
) -> None:
    old = divided(tmp_path, 70_000, seed=1)
    program = (
        "import os, sys, weightctl.output\n"
        "weightctl.output._name = lambda *_, **__: os._exit(9)\n"
        "from weightctl.cli import main; main()"
    )
    convert = ["convert", "fixtures/tiny-llama", tmp_path / "m.gguf", "--max-shard-size", "70kB"]
    done = subprocess.run(
        [sys.executable, "-c", program, *convert, "--force", "-q"], check=False, cwd=ROOT
    )
    assert done.returncode == 9
    assert standing(tmp_path) == {}
    plan = Plan.copy(random_weights(1, 8), "gguf")
    if refused:
        with pytest.raises(OutputError):
            save(plan, tmp_path / "m.gguf")
        assert standing(tmp_path) == old
    else:
        save(plan, tmp_path / "m.gguf", force=True)
        assert list(standing(tmp_path)) == ["m.gguf"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("sizes", [(70_000, 20_000), (20_000, 70_000), (20_000, 1 << 30)])
def test_another_number_of_parts_takes_the_place_of_a_set_only_with_force(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    old = divided(tmp_path, sizes[0], seed=1)
    with pytest.raises(OutputError, match=r"of another checkpoint of this name|exists"):
        divided(tmp_path, sizes[1], seed=2)
    assert standing(tmp_path) == old
    new = divided(tmp_path, sizes[1], seed=2, force=True)
    assert not old.keys() & new.keys()
    first = min(new)
    assert contents(open_weights(tmp_path / first)) == contents(random_weights(6, 8, seed=2))


def test_parts_are_merged_beside_them(tmp_path: Path) -> None:
    old = divided(tmp_path, 20_000, seed=1)
    first = tmp_path / min(old)
    save(Plan.copy(open_weights(first), "gguf"), tmp_path / "m.gguf")
    assert standing(tmp_path).items() > old.items()


def test_the_paths_of_what_was_saved_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.gguf").symlink_to("disk/m.gguf")
    plan = split(Plan.copy(random_weights(6, 8), "gguf"), 70_000)
    for path in save(plan, tmp_path / "link.gguf").paths:
        assert os.path.isfile(path)
