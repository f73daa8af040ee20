"""However a conversion is divided, its output is the same and its progress adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from outcomes import EACH_KIND, Kind, random_weights, standing
from weightctl import Plan, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.plan.cast import cast
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

RANDOM = np.random.default_rng(11)


@EACH_KIND
def test_progress_adds_up_to_the_bytes_of_the_tensors(kind: Kind, tmp_path: Path) -> None:
    plan, where = kind.plan(random_weights(3, 500), tmp_path)
    done: list[int] = []
    save(plan, where, memory=4_000_000, progress=done.append)
    assert sum(done) == sum(item.info.nbytes for item in plan.items)
    assert len(done) > 3


@EACH_KIND
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


@pytest.mark.parametrize("name", ["out.gguf", "out.safetensors", "out.pt"])
@pytest.mark.parametrize("encoding", ["F32", "F16"])
def test_copies_beside_conversions_come_in_the_same_order_however_they_are_cut(
    name: str, encoding: str, tmp_path: Path
) -> None:
    # Every other tensor already has its type, and stays in its file until it is copied.
    arrays = {
        f"layers.{number}.weight": RANDOM.standard_normal((500, 1024)).astype(dtype)
        for number, dtype in enumerate([np.float32, np.float16] * 3)
    }
    source = stored(tmp_path / "model.safetensors", **arrays)
    made = set()
    for threads, memory in [(None, None), (1, 1), (1, 4_000_000), (2, 9_000_000), (5, 1 << 30)]:
        plan, where = Kind(name, encoding).plan(open_weights(source), tmp_path)
        save(plan, where, force=True, threads=threads, memory=memory)
        made.add((tmp_path / name).read_bytes())
    assert len(made) == 1
    made_of = open_weights(tmp_path / name)
    for each, array in arrays.items():
        expected = array.astype(np.float32 if encoding == "F32" else np.float16)
        assert np.array_equal(made_of[each].data().to_numpy(), expected)


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


def test_the_output_does_not_depend_on_memory(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    made = []
    for size in ("4MB", "50MiB", "1GiB"):
        out = tmp_path / f"{size}.gguf"
        assert (
            weightctl("convert", tiny_llama, out, "--quant", "q4_k", "--mem", size).returncode == 0
        )
        made.append(out.read_bytes())
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_the_output_does_not_depend_on_threads(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, threads: str
) -> None:
    out = tmp_path / "out.gguf"
    asked = ("--quant", "q5_k", "--names", "keep", "-j", threads)
    assert weightctl("convert", tiny_llama, out, *asked).returncode == 0
    save(cast(Plan.copy(open_weights(tiny_llama), "gguf"), ENCODINGS["Q5_K"]), tmp_path / "b.gguf")
    assert out.read_bytes() == (tmp_path / "b.gguf").read_bytes()
