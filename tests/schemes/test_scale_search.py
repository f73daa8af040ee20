"""The search for scales: errors that become smaller, weights of columns, reports and refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each, usual
from importances import imatrix_dat
from small_models import qwen3moe
from weightctl import convert as convert_any
from weightctl.errors import ConversionError
from weightctl.schemes.arrays.rounding import (
    Affine,
    Biased,
    Coded,
    Float8,
    Microscaled4,
    Microscaled8,
    RowScaled,
    Symmetric,
)
from weightctl.schemes.arrays.search import find_block, find_ratio, search_codes
from written_models import convert, small_llama, values_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from conftest import Completed

    Run = Callable[..., Completed]

ONE = np.float32(1)
ROUNDINGS: dict[str, Any] = {
    "symmetric": Symmetric(4, 32, "BF16"),
    "symmetric of 8 bits": Symmetric(8, 64, "F16"),
    "affine": Affine(4, 64, "F16"),
    "biased": Biased(4, 32, "BF16"),
    "rows of 8-bit floats": Float8(1, 128, "BF16"),
    "blocks of 8-bit floats": Float8(32, 32, "F32"),
    "MXFP8": Microscaled8(),
    "MXFP4": Microscaled4(32),
    "NVFP4": Microscaled4(16, is_nvidia=True),
    "codes": Coded(tuple(np.linspace(-1, 1, 16).tolist())),
    "rows of 8 bits": RowScaled(),
}
# Powers of two are rarely better if they are smaller.
COARSE = {"MXFP8"}


def draw(rows: int = 40, columns: int = 128) -> NDArray[np.float32]:
    """Return values with a few large ones."""
    values = np.random.default_rng(5).standard_normal((rows, columns)).astype(np.float32)
    values.reshape(-1)[::97] *= 4
    return values


def sum_errors(
    rounding: Any, values: NDArray[np.float32], codes: Any, weights: Any, peak: np.float32
) -> NDArray[np.float64]:
    """Return the weighted squared error of each block."""
    held = rounding.restore(codes, peak)
    squares = (held.astype(np.float64) - values) ** 2 * weights
    rows, columns = find_block(rounding, values.shape[1])
    across = np.add.reduceat(squares, range(0, values.shape[1], columns), axis=1)
    found: NDArray[np.float64] = np.add.reduceat(across, range(0, len(values), rows), axis=0)
    return found


@each("weighted", [False, True])
@each("name", ROUNDINGS)
def test_no_block_has_a_larger_error_than_rounding_to_nearest(name: str, weighted: bool) -> None:
    rounding, values = ROUNDINGS[name], draw()
    peak = np.abs(values).max()
    weights = np.ones((1, 128), np.float32)
    if weighted:
        weights[0] = np.random.default_rng(6).exponential(1, 128) ** 2
    nearest = rounding.round(values, peak)
    made = search_codes(rounding, values, peak, weights if weighted else None)
    before = sum_errors(rounding, values, nearest, weights, peak)
    after = sum_errors(rounding, values, made.codes, weights, peak)
    assert (after <= before * (1 + 1e-5)).all()
    if name not in COARSE:
        assert after.sum() < before.sum()
    plain = sum_errors(rounding, values, nearest, np.ones(1), peak).sum()
    assert made.nearest_error == pytest.approx(plain, rel=1e-5)


@each("name", ROUNDINGS)
@each("size", [0, 1e-42, 1e-30, 1e30])
def test_zeros_and_extreme_values_are_not_worse(name: str, size: float) -> None:
    rounding, values = ROUNDINGS[name], draw(2) * np.float32(size)
    with np.errstate(all="ignore"):
        peak = np.abs(values).max()
        nearest = rounding.restore(rounding.round(values, peak), peak)
        held = rounding.restore(search_codes(rounding, values, peak).codes, peak)
        error, limit = (
            np.square(each.astype(np.float64) - values).sum() for each in (held, nearest)
        )
    assert not error > limit * (1 + 1e-5)


def test_weights_that_share_a_scale_have_the_smallest_sum_of_errors() -> None:
    rounding = Float8(0, 0, "F32")
    values = draw(8) * np.float32(1e-3)
    values[0, 0] = 40
    peak = np.abs(values).max()
    tiles = [(values[:4], None), (values[4:], None)]
    ratio = find_ratio(rounding, iter(tiles), peak)
    errors = [
        sum(
            sum_errors(rounding, tile, search_codes(rounding, tile, peak, None, each).codes,
                       1, peak).sum()
            for tile, _ in tiles
        )
        for each in (ratio, ONE)
    ]  # fmt: skip
    assert errors[0] <= errors[1]


def write_importance(path: Path, columns: dict[str, int]) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(8)
    made = {
        name: (generator.exponential(1, count) ** 2).astype(np.float32)
        for name, count in columns.items()
    }
    imatrix_dat(path, {name: (values, 1) for name, values in made.items()})
    return made


def weigh_errors(directory: str | Path, name: str, weights: NDArray[np.float32]) -> float:
    wanted, made = (values_in(each)[name].double().numpy() for each in (small_llama(), directory))
    return float(((made - wanted) ** 2 * weights).sum())


@pytest.mark.parametrize(
    "case", usual(["W4A16", "FP8"], ["W4A16", "NVFP4A16", "AWQ:scaled=no", "BNB-NF4", "FP8"])
)
def test_importance_reduces_the_errors_of_important_columns(tmp_path: Path, case: str) -> None:
    columns = {"blk.1.ffn_down.weight": 384, "blk.0.attn_q.weight": 256}
    weights = write_importance(tmp_path / "i.dat", columns)
    nearest = convert(small_llama(), tmp_path / "nearest", case)
    convert(small_llama(), tmp_path / "plain", case, search=True)
    done = convert(small_llama(), tmp_path / "weighted", case, imatrix=tmp_path / "i.dat")
    assert any("12 of 14 weights have no entry in" in note for note in done.plan.notes)
    name = "model.layers.1.mlp.down_proj.weight"
    important = weights["blk.1.ffn_down.weight"]
    plain, weighted, before = (
        weigh_errors(tmp_path / each, name, important) for each in ("plain", "weighted", "nearest")
    )
    assert weighted <= before
    if case != "FP8":
        assert weighted < plain < before
    assert {item.weight for item in done.plan.items if item.searched_with is not None} == {
        name, "model.layers.0.self_attn.q_proj.weight",
    }  # fmt: skip
    for tensor, loss in nearest.losses.items():
        assert done.losses[tensor].nearest_rmse == pytest.approx(loss.relative_rmse, rel=1e-4)
        assert loss.nearest_rmse is None


def test_experts_use_their_part_of_an_entry(tmp_path: Path) -> None:
    qwen3moe().save_pretrained(tmp_path / "m")
    importance = np.ones((4, 32), np.float32)
    importance[3, 1:] = 0
    imatrix_dat(tmp_path / "i.dat", {"blk.0.ffn_down_exps.weight": (importance.reshape(-1), 1)})
    convert(tmp_path / "m", tmp_path / "plain", "W4A16:group=32", search=True)
    convert(tmp_path / "m", tmp_path / "out", "W4A16:group=32", imatrix=tmp_path / "i.dat")
    wanted, plain, made = (values_in(tmp_path / each) for each in ("m", "plain", "out"))
    for expert in range(4):
        name = f"model.layers.0.mlp.experts.{expert}.down_proj.weight"
        assert made[name].equal(plain[name]) is (expert < 3)
        error, limit = ((each[name] - wanted[name])[:, 0].norm() for each in (made, plain))
        assert error < limit or expert < 3


def test_the_output_of_a_search_does_not_depend_on_threads_or_workers(tmp_path: Path) -> None:
    write_importance(tmp_path / "i.dat", {"blk.1.ffn_down.weight": 384})
    options: dict[str, Any] = {"search": True, "imatrix": tmp_path / "i.dat"}
    for case in ("GPTQ", "FP8"):
        convert(small_llama(), tmp_path / "a", case, threads=1, force=True, **options)
        convert(small_llama(), tmp_path / "b", case, threads=3, force=True, **options)
        whole = (tmp_path / "a" / "model.safetensors").read_bytes()
        assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole
    done = convert(small_llama(), tmp_path / "c", "FP8", on="processes:2", **options)
    assert (tmp_path / "c" / "model.safetensors").read_bytes() == whole
    assert all(loss.nearest_rmse for loss in done.losses.values())


def test_repacked_blocks_are_not_searched(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "m.gguf", "Q4_0")
    for case, search in (("plain", False), ("searched", True)):
        done = convert(tmp_path / "m.gguf", tmp_path / case, "W4A16:group=32", search=search)
    assert "--search changes nothing: no weight is rounded" in done.plan.notes
    found = [(tmp_path / case / "model.safetensors").read_bytes() for case in ("plain", "searched")]
    assert found[0] == found[1]


def test_reports_state_the_error_of_rounding_to_nearest(weightctl: Run, tmp_path: Path) -> None:
    arguments = ("convert", small_llama(), str(tmp_path / "out"), "--quant", "W4A16", "--search")
    done = weightctl(*arguments)
    assert done.returncode == 0, done.stderr
    assert " % (nearest: " in done.stdout
    done = weightctl(*arguments, "--force", "--json")
    entries = [each for each in json.loads(done.stdout)["tensors"] if each["relative_rmse"]]
    assert len(entries) == 14
    assert all(0 < each["relative_rmse"] < each["nearest_rmse"] for each in entries)


@pytest.mark.parametrize("options", [{"quant": "Q4_0"}, {"dtype": "f16"}])
def test_a_search_is_refused_for_gguf(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConversionError, match=r"--search .* applies only to types for model") as it:
        convert_any(small_llama(), tmp_path / "m.gguf", search=True, **options)
    assert "--imatrix" in it.value.hint


def test_an_importance_matrix_of_another_model_is_refused(tmp_path: Path) -> None:
    write_importance(tmp_path / "i.dat", {"blk.1.ffn_down.weight": 100})
    with pytest.raises(ConversionError, match=r"has 384 columns, but .* has 100 values"):
        convert(small_llama(), tmp_path / "out", "W4A16", imatrix=tmp_path / "i.dat")
    write_importance(tmp_path / "i.dat", {"other": 100})
    with pytest.raises(ConversionError, match=r"has no entry for any weight") as caught:
        convert(small_llama(), tmp_path / "out", "W4A16", imatrix=tmp_path / "i.dat")
    assert "--search" in caught.value.hint
