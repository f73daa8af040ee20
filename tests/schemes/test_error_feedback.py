"""Codes of serving engines with error feedback: lower errors of outputs, the same bytes anyhow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each, usual
from weightctl import convert, imatrix
from weightctl.codecs.feedback import prepare_curvature
from weightctl.schemes.arrays.feedback import feed_back, find_grid
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
from weightctl.schemes.arrays.search import search_codes
from written_models import values_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

ROUNDINGS: dict[str, Any] = {
    "symmetric": Symmetric(4, 128, "BF16"),
    "symmetric, rows": Symmetric(4, 1 << 60, "BF16"),
    "symmetric of 8 bits": Symmetric(8, 64, "F16"),
    "affine": Affine(4, 64, "F16"),
    "biased": Biased(4, 32, "BF16"),
    "MXFP4": Microscaled4(32),
    "NVFP4": Microscaled4(16, is_nvidia=True),
}
# Those whose codes are rounded alone: 8-bit floats, and blocks that are not parts of rows.
OTHERS = (Float8(1, 128, "BF16"), Float8(32, 32, "F32"), Microscaled8(), RowScaled(),
          Coded(tuple(np.linspace(-1, 1, 16).tolist())))  # fmt: skip
COLUMNS = 256
MODEL = Path(__file__).parents[2] / "fixtures" / "tiny-llama"


def draw_case(rows: int = 40) -> tuple[F32, F32]:
    """Return values, and products of columns that are strongly correlated."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(4 * COLUMNS, 32)) @ random.normal(size=(32, COLUMNS))
    inputs += 0.3 * random.normal(size=inputs.shape)
    products = (inputs.T @ inputs / len(inputs)).astype(np.float32)
    values = random.normal(size=(rows, COLUMNS)).astype(np.float32)
    values.reshape(-1)[::97] *= 3
    return values, (products + products.T) / 2


def measure_loss(values: F32, held: F32, products: F32) -> float:
    """Return the squared error of the outputs."""
    errors = (held - values).astype(np.float64)
    return float(np.einsum("ri,ij,rj->", errors, products.astype(np.float64), errors))


@each("name", ROUNDINGS)
def test_errors_of_outputs_become_much_smaller(name: str) -> None:
    rounding, (values, products) = ROUNDINGS[name], draw_case()
    peak, weights = np.abs(values).max(), np.diag(products)[None]
    grid = find_grid(rounding, COLUMNS)
    assert grid is not None
    curvature = prepare_curvature(products.copy(), grid.block)
    found = search_codes(rounding, values, peak, weights).codes
    made = feed_back(rounding, values, found, peak, grid=grid, curvature=curvature)
    before, after = (
        measure_loss(values, rounding.restore(each, peak), products) for each in (found, made)
    )
    assert after < 0.5 * before
    # Scales are those of the search, and rows do not depend on each other.
    assert made.scales is found.scales
    part = found._replace(
        codes=found.codes[:3],
        scales=found.scales[:3],
        offsets=None if found.offsets is None else found.offsets[:3],
    )
    alone = feed_back(rounding, values[:3], part, peak, grid=grid, curvature=curvature)
    np.testing.assert_array_equal(alone.codes, made.codes[:3])


@each("rounding", OTHERS, ids=lambda each: type(each).__name__)
def test_other_codes_are_rounded_alone(rounding: Any) -> None:
    assert find_grid(rounding, COLUMNS) is None


def test_rows_of_other_lengths_are_rounded_alone() -> None:
    assert find_grid(Symmetric(4, 16, "BF16"), 48) is None
    assert find_grid(Symmetric(4, 1 << 60, "BF16"), 48) is None


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("products") / "imatrix.gguf"
    imatrix(MODEL, made, chunks=8, context=64, hessian=True)
    return made


USUAL = ("W4A16:group=32", "GPTQ:group=64", "NVFP4A16")
RARE = (
    "W4A16",
    "AWQ:group=64",
    "W8A16",
    "MXFP4",
    "GPTQ-8bit:group=32",
    "W4A16:group=32,symmetric=no",
    "MLX-4bit",
)


@each("quant", usual(USUAL, (*USUAL, *RARE)))
def test_bytes_do_not_depend_on_threads_and_memory(
    quant: str, products: Path, tmp_path: Path
) -> None:
    made = [
        convert(
            MODEL, tmp_path / str(threads), quant=quant, imatrix=products,
            threads=threads, memory=memory,
        )
        for threads, memory in ((1, "16MiB"), (2, "256MiB"))
    ]  # fmt: skip
    one, two = ((tmp_path / each / "model.safetensors").read_bytes() for each in "12")
    assert one == two
    assert any("are rounded with error feedback" in note for note in made[0].notes)
    convert(MODEL, tmp_path / "alone", quant=quant, imatrix=products, feedback=False)
    assert (tmp_path / "alone" / "model.safetensors").read_bytes() != one
    # Values stay near those of the model.
    own, plain = (values_in(tmp_path / each) for each in ("1", "alone"))
    for name, values in plain.items():
        difference = own[name].float() - values.float()
        assert difference.norm() <= 0.35 * values.float().norm(), name
