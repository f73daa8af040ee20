"""Conversions with products of columns: what is rounded with error feedback, and always alike."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from executing import execute
from importances import imatrix_gguf, imatrix_with_products, mean_products
from outcomes import leftovers, random_model
from ready_children import run_ready
from weightctl import convert, open_weights
from weightctl.codecs import transcode
from weightctl.codecs.feedback.parts import has_parts
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.formats.imatrix import read_importance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from conftest import Completed

    Run = Callable[..., Completed]

QUERY, DOWN, NORM = "blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.0.attn_norm.weight"
EXPERTS, EMBEDDING = "blk.0.ffn_up_exps.weight", "token_embd.weight"
KEPT = {"names": "keep", "force": True}


def draw(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(0.02)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "model.gguf"
    arrays = {
        EMBEDDING: draw(1, 16, 256), NORM: draw(2, 256), QUERY: draw(3, 700, 256),
        DOWN: draw(4, 200, 512), EXPERTS: draw(5, 2, 16, 256),
    }  # fmt: skip
    convert(arrays, path, **KEPT)
    return path


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "imatrix.gguf"
    return imatrix_with_products(path, {QUERY: 256, DOWN: 512})


def read(path: Path) -> dict[str, bytes]:
    return {name: bytes(node.data().view()) for name, node in open_weights(path).items()}


def plan(source: Path, matrix: Path, **more: Any) -> Any:
    return convert(source, "out.gguf", imatrix=matrix, dry_run=True, **KEPT, **more)


def list_fed_back(conversion: Any) -> set[str]:
    return {item.info.name for item in conversion.plan.items if item.hessian is not None}


def test_types_whose_codes_can_be_chosen_are_rounded_with_feedback_and_others_are_not(
    source: Path, matrix: Path
) -> None:
    for encoding in ENCODINGS.values():
        if not encoding.quantization or not encoding.codec or encoding.needs_importance:
            continue
        made = plan(source, matrix, quant=encoding.name)
        assert list_fed_back(made) == ({QUERY, DOWN} if has_parts(encoding) else set()), encoding
        stated = made.plan.metadata.get("weightctl.rounding")
        assert (stated is not None) is has_parts(encoding)
    made = plan(source, matrix, quant="Q4_K", tensor_types={"attn_q": "Q8_0", "ffn_down": "IQ4_XS"})
    assert list_fed_back(made) == {DOWN}
    assert made.plan.metadata["weightctl.rounding"].content == "error feedback"
    made = plan(source, matrix, quant="Q4_K", tensor_types={"attn_q|ffn_down": "f16"})
    assert list_fed_back(made) == set()


def test_the_bytes_are_those_of_the_codec_with_the_stored_products(
    source: Path, matrix: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "out.gguf", quant="Q4_K", imatrix=matrix, **KEPT)
    plain = convert(source, tmp_path / "plain.gguf", quant="Q4_K", imatrix=matrix, feedback=False,
                    **KEPT)  # fmt: skip
    made, others, rows = (read(tmp_path / name) for name in ("out.gguf", "plain.gguf", source))
    assert {name for name in made if made[name] != others[name]} == {QUERY, DOWN}
    assert "weightctl.rounding" not in plain.plan.metadata
    assert not any("feedback" in note for note in plain.notes)
    importance = read_importance(str(matrix))
    for name in (QUERY, DOWN):
        hessian = importance.hessians[name]
        raw = np.frombuffer(rows[name], np.uint8).reshape(-1, 4 * hessian.columns)
        alone = transcode(
            raw, ENCODINGS["F32"], ENCODINGS["Q4_K"], hessian.read().diagonal().copy()
        )
        assert alone.raw.tobytes() == others[name]
        error = {}
        for part, stored in (("fed back", made), ("alone", others)):
            blocks = np.frombuffer(stored[name], np.uint8).reshape(len(raw), -1)
            held = transcode(blocks, ENCODINGS["Q4_K"], ENCODINGS["F32"]).raw.view(np.float32)
            lost = held - raw.view(np.float32)
            error[part] = float(np.sum((lost @ hessian.read()) * lost))
        assert error["fed back"] < 0.5 * error["alone"]


def test_types_of_a_plan_can_be_changed_later(source: Path, matrix: Path, tmp_path: Path) -> None:
    made = plan(source, matrix, quant="Q4_K").plan
    for chosen in ({"quant": "Q8_0"}, {"dtype": "f16"}, {"quant": "Q5_0"}):
        alike = {} if chosen != {"quant": "Q5_0"} else {"imatrix": matrix}
        convert(made, tmp_path / "later.gguf", force=True, **chosen)
        convert(source, tmp_path / "at once.gguf", **chosen, **alike, **KEPT)
        assert read(tmp_path / "later.gguf") == read(tmp_path / "at once.gguf")


def test_threads_memory_and_workers_change_no_byte(
    source: Path, matrix: Path, tmp_path: Path
) -> None:
    made = plan(source, matrix, quant="IQ4_XS").plan
    infos = tuple(item.info for item in made.items)
    found = []
    for threads, memory, task_bytes in (
        (1, 1 << 28, 1 << 26), (2, 1 << 28, 1 << 14), (1, 1 << 14, 1 << 26), (2, 1 << 16, 1 << 15),
    ):  # fmt: skip
        pieces = execute(made, infos, threads=threads, memory=memory, task_bytes=task_bytes)
        found.append([(info.name, bytes(piece)) for info, piece in pieces])  # type: ignore[arg-type]
    joined = [
        {name: b"".join(part for each, part in pieces if each == name) for name in (QUERY, DOWN)}
        for pieces in found
    ]
    assert {len(pieces) for pieces in found} == {5, 73}
    assert all(each == joined[0] for each in joined)
    convert(source, tmp_path / "out.gguf", quant="IQ4_XS", imatrix=matrix, on="processes:2", **KEPT)
    stored = read(tmp_path / "out.gguf")
    assert {name: stored[name] for name in (QUERY, DOWN)} == joined[0]


def test_products_of_another_number_of_columns_are_refused(
    source: Path, tmp_path: Path, weightctl: Run
) -> None:
    # Two experts have as many columns together, and one matrix has other ones.
    for name, columns, reason in (
        (EXPERTS, 512, "the products of 512 columns"), (QUERY, 512, "has 256 columns"),
    ):  # fmt: skip
        other = imatrix_with_products(tmp_path / f"{columns}.gguf", {name: columns})
        with pytest.raises(ConversionError, match=reason):
            plan(source, other, quant="Q4_K")
        done = weightctl("convert", source, tmp_path / "out.gguf", "--quant", "Q4_K",
                         "--imatrix", other)  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def spoil(products: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    if kind == "indefinite":
        products[0, 1] = products[1, 0] = 1e4 * products.max()
    if kind == "NaN":
        products[3, 9] = products[9, 3] = np.nan
    if kind == "negative":
        products[7, 7] *= -1
    return products


@each(
    "kind, said",
    [
        ("indefinite", "their matrix is not positive semidefinite"),
        ("NaN", "nan at element 771 of its products"),
        ("negative", "of its products, which is not a sum of products"),
    ],
)
@each("threads", [1, 2])
def test_what_cannot_be_products_ends_the_command_with_a_message(
    kind: str, said: str, threads: int, source: Path, tmp_path: Path, weightctl: Run
) -> None:
    sound = mean_products(256)
    entries = {QUERY: (sound.diagonal()[None].copy(), np.ones(1, np.float32))}
    other = imatrix_gguf(tmp_path / "i.gguf", entries, products={QUERY: spoil(sound, kind)})
    asked = ("convert", source, tmp_path / "out.gguf", "--quant", "Q4_K", "--imatrix", other,
             "-j", str(threads))  # fmt: skip
    done = weightctl(*asked)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert f"products of `{QUERY}`" in done.stderr or f"`{QUERY}` has" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["i.gguf"]
    # Without feedback they are not read.
    assert weightctl(*asked, "--no-feedback").returncode == 0


class StopError(Exception):
    """What a caller's own progress raises."""


def stop_after(nbytes: int) -> Callable[[int], None]:
    """Return a progress that stops the run once so many bytes are written."""
    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count
        if seen >= nbytes:
            raise StopError

    return progress


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of several tasks, and its importance matrix."""
    place = tmp_path_factory.mktemp("large")
    columns = {f"layers.{number}.weight": 1024 for number in range(2)}
    return random_model(place / "model", 2, 512), imatrix_with_products(place / "i.gguf", columns)


@pytest.mark.usefixtures("journal_from_the_start")
def test_a_stopped_run_continues_only_with_the_same_rounding(
    large: tuple[Path, Path], tmp_path: Path
) -> None:
    model, matrix = large
    options = {"quant": "Q4_K", "imatrix": matrix, "names": "keep"}
    convert(model, tmp_path / "whole.gguf", **options)
    expected = (tmp_path / "whole.gguf").read_bytes()
    out = tmp_path / "out.gguf"
    for stopped, is_kept in ((False, False), (True, True)):
        begun = convert(model, out, dry_run=True, feedback=stopped, **options)
        with pytest.raises(StopError):
            begun.save(threads=1, progress=stop_after(begun.outcome.tensor_bytes // 2))
        assert leftovers(tmp_path) != []
        made = convert(model, out, dry_run=True, **options)
        assert (made.kept_bytes > 0) is is_kept
        made.save(threads=1)
        assert out.read_bytes() == expected
        out.unlink()
    assert leftovers(tmp_path) == []


KILLED = """
import os, signal, sys
from weightctl import convert
import weightctl.write.journal

weightctl.write.journal.BEGIN_AFTER = 0.0
model, matrix, out = sys.argv[1:]
done = 0

def kill(count):
    global done
    done += count
    if done > 200_000:
        os.kill(os.getpid(), signal.SIGKILL)

made = convert(model, out, quant="Q4_K", imatrix=matrix, names="keep", dry_run=True)
made.save(threads=1, progress=kill)
"""


@pytest.mark.long
def test_a_killed_run_continues_with_the_same_bytes(
    large: tuple[Path, Path], tmp_path: Path
) -> None:
    options = {"quant": "Q4_K", "imatrix": large[1], "names": "keep"}
    convert(large[0], tmp_path / "whole.gguf", **options)
    out = tmp_path / "out.gguf"
    assert run_ready(KILLED, *large, out).returncode == -signal.SIGKILL
    assert not out.exists()
    made = convert(large[0], out, **options)
    assert made.kept_bytes > 0
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert leftovers(tmp_path) == []
