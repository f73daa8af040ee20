"""Whatever happens, the target is what it was or the complete new one, and the input is whole."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from weightctl import Plan, WeightData, Weights, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.store import save, target
from weightctl.transforms.cast import cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

OLD = b"what was there before"
TEMPORARY = re.compile(r"out(\.gguf)?\.weightctl-[0-9a-f]{8}\.partial")


def random_weights(tensors: int = 8, rows: int = 256, columns: int = 1024) -> Weights:
    random_numbers = np.random.default_rng(7)
    shape = (rows, columns)
    return Weights.from_data(
        {
            f"layers.{number}.weight": WeightData.from_numpy(
                random_numbers.standard_normal(shape, np.float32), f"layers.{number}.weight"
            )
            for number in range(tensors)
        }
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 MB of float32: half a second of quantizing."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save(Plan.copy(random_weights(16, 1024), "safetensors"), target(str(path)))
    return path


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the conversion of `model` gives when nothing disturbs it."""
    out = tmp_path_factory.mktemp("whole") / "out.gguf"
    plan = cast(Plan.copy(open_weights(model), "gguf"), ENCODINGS["Q8_0"])
    save(plan, target(str(out)))
    return out.read_bytes()


def start(model: Path, out: Path, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "weightctl", "convert", model, out, "--quant", "Q8_0", "--force"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_leaves_the_old_file_or_the_new(
    model: Path, whole: bytes, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out.gguf"
    moments = random.Random(int(number))
    for _ in range(8):
        out.write_bytes(OLD)
        process = start(model, out)
        time.sleep(moments.uniform(0.05, 0.9))
        process.send_signal(number)
        process.communicate()
        assert out.read_bytes() in (OLD, whole)
        leftovers = set(os.listdir(tmp_path)) - {"out.gguf"}
        assert len(leftovers) <= (number == signal.SIGKILL)
        assert all(TEMPORARY.fullmatch(name) for name in leftovers)


def test_ctrl_c_exits_with_130(model: Path, tmp_path: Path) -> None:
    process = start(model, tmp_path / "out.gguf")
    while not os.listdir(tmp_path):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert os.listdir(tmp_path) == []


def test_what_a_killed_run_has_left_is_removed_by_the_next(
    model: Path, whole: bytes, tmp_path: Path
) -> None:
    (tmp_path / "out.gguf.weightctl-0123abcd.partial").write_bytes(b"x" * 1000)
    (tmp_path / "out.gguf.weightctl-4567cdef.partial").mkdir()
    process = start(model, tmp_path / "out.gguf")
    process.communicate()
    assert process.returncode == 0
    assert os.listdir(tmp_path) == ["out.gguf"]
    assert (tmp_path / "out.gguf").read_bytes() == whole


def test_a_dry_run_removes_nothing(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    left = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    left.write_bytes(OLD)
    assert weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run").returncode == 0
    assert left.read_bytes() == OLD


def test_what_another_run_is_writing_stays(model: Path, tmp_path: Path) -> None:
    others = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    with others.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        process = start(model, tmp_path / "out.gguf")
        process.communicate()
        assert process.returncode == 0
        assert others.exists()


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
        save(plan, target(str(tmp_path / "in" / name), "gguf"), force=True)


def test_a_tensor_that_comes_out_short_is_no_output(tmp_path: Path) -> None:
    plan = Plan.copy(random_weights(1), "gguf")
    item = plan.items[0]
    longer = item.info._replace(shape=(512, 1024))
    plan = plan.with_items((item.__class__(longer, item.source),))
    with pytest.raises(ConversionError, match="came out as 1048576 bytes, where 2097152 belong"):
        save(plan, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == []


def test_a_file_system_that_takes_no_more_leaves_the_old_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    process = start(model, out, preexec_fn=limit)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert b"cannot be written: File too large" in errors
    assert b"hint:" in errors
    assert out.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_an_input_that_shrinks_meanwhile_leaves_the_old_file(tmp_path: Path) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.gguf"
    save(Plan.copy(random_weights(), "safetensors"), target(str(source)))
    out.write_bytes(OLD)
    plan = cast(Plan.copy(open_weights(source), "gguf"), ENCODINGS["Q8_0"])
    os.truncate(source, source.stat().st_size // 2)
    with pytest.raises(FormatError, match="the file ends here"):
        save(plan, target(str(out)), force=True)
    assert out.read_bytes() == OLD
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.gguf"]


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


def test_a_failure_leaves_an_existing_directory_as_it_was(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), target(str(out)))
    (out / "model.safetensors").write_bytes(OLD)
    copy = tmp_path / "copy"
    shutil.copytree(tiny_llama, copy)
    plan = Plan.copy(open_weights(copy), "safetensors")
    os.truncate(copy / "model.safetensors", 1 << 20)
    with pytest.raises(FormatError):
        save(plan, target(f"{out}/"), force=True)
    assert (out / "model.safetensors").read_bytes() == OLD
    assert sorted(os.listdir(tmp_path)) == ["copy", "out"]


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
