from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from build import F32, Gguf, Tensor, safetensors_of
from weightctl import WeightData, open_weights
from weightctl.errors import FormatError
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.digests import compute_digests

# Larger than any piece that is read at a time.
LARGE = 9_000_001

if TYPE_CHECKING:
    from pathlib import Path


def stored(path: Path, **sizes: int) -> dict[str, bytes]:
    """Write tensors of these sizes in bytes; return the bytes."""
    generator = np.random.default_rng(7)
    tensors = {name: generator.bytes(size) for name, size in sizes.items()}
    path.write_bytes(
        safetensors_of({name: ("U8", (len(raw),), raw) for name, raw in tensors.items()})
    )
    return tensors


def test_digests_are_those_of_hashlib(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = stored(path, a=0, b=1, c=1 << 23, d=LARGE)
    expected = {name: hashlib.sha256(raw).hexdigest() for name, raw in tensors.items()}
    found = compute_digests(open_weights(path).source)
    assert found == expected
    assert list(found) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_digests_do_not_depend_on_threads(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "model.safetensors"
    tensors = stored(path, **{f"t{number}": 1000 * number for number in range(40)})
    found = compute_digests(open_weights(path).source, threads=threads)
    assert found == {name: hashlib.sha256(raw).hexdigest() for name, raw in tensors.items()}


def test_only_what_is_asked_for_is_read_in_the_order_asked(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    stored(path, a=10, b=20, c=30)
    done: list[int] = []
    found = compute_digests(open_weights(path).source, ["c", "a"], progress=done.append)
    assert list(found) == ["c", "a"]
    assert sorted(done) == [10, 30]


def test_progress_adds_up_and_is_called_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    stored(path, **{f"t{number}": 3000 for number in range(50)}, large=LARGE)
    busy, total = threading.Lock(), 0

    def advance(nbytes: int) -> None:
        nonlocal total
        assert busy.acquire(blocking=False)
        total += nbytes
        busy.release()

    compute_digests(open_weights(path).source, threads=4, progress=advance)
    assert total == 50 * 3000 + LARGE


def test_big_endian_files_hash_as_little_endian_ones(tmp_path: Path) -> None:
    numbers = np.arange(6, dtype=np.float32)
    found = []
    for order in "<>":
        path = tmp_path / f"{ord(order)}.gguf"
        data = numbers.astype(f"{order}f4").tobytes()
        path.write_bytes(Gguf(order=order).file([Tensor("a", (2, 3), F32, data)]))
        found.append(compute_digests(open_weights(path).source))
    expected = {"a": hashlib.sha256(numbers.astype("<f4").tobytes()).hexdigest()}
    assert found == [expected, expected]


def test_tensors_in_memory_have_digests_too() -> None:
    data = WeightData.from_numpy(np.arange(5, dtype=np.int16), "a")
    expected = hashlib.sha256(np.arange(5, dtype="<i2").tobytes()).hexdigest()
    assert compute_digests(as_checkpoint({"a": data}).source) == {"a": expected}


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    stored(path, **{f"t{number}": 1000 for number in range(20)})
    source = open_weights(path).source
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 500)
    with pytest.raises(FormatError, match="the file ends here"):
        compute_digests(source)
