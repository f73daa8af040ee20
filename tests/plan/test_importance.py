"""Importance weights the search for blocks as in ggml, for each tensor and each expert."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import weights_of
from executing import execute
from importances import imatrix_dat, imatrix_gguf, mean_products
from llama_cpp import ggml_quantize
from rows import required
from weightctl import Plan, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.imatrix import Importance, read_importance
from weightctl.plan.cast import cast
from weightctl.plan.importance import apply_importance
from weightctl.storage.base import FileRange
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from conftest import Completed

    Run = Callable[..., Completed]
    F32 = NDArray[np.float32]

RANDOM = np.random.default_rng(5)
MATRIX = "blk.0.attn_q.weight"
EXPERTS = "blk.0.ffn_up_exps.weight"
EMBEDDING = "token_embd.weight"
NORM = "blk.0.attn_norm.weight"


def normal(*shape: int) -> F32:
    return RANDOM.standard_normal(shape, np.float32)


ARRAYS = {
    EMBEDDING: normal(8, 256),
    NORM: normal(256),
    MATRIX: normal(16, 256),
    EXPERTS: normal(3, 8, 256),
}
SUMS = RANDOM.uniform(0.1, 1000, (3, 256)).astype(np.float32)
COUNTS = np.array([2, 0, 5], np.float32)


def planned(encoding: str = "Q4_K", names: tuple[str, ...] = tuple(ARRAYS)) -> Plan:
    plan = Plan.copy(weights_of({name: ARRAYS[name] for name in names}), "gguf")
    return cast(plan, ENCODINGS[encoding])


def importance(**sizes: int) -> Importance:
    values = {name: np.ones(size, np.float32) for name, size in sizes.items()}
    return Importance("i.gguf", values)


def plan_importance(plan: Plan, **sizes: int) -> dict[str, tuple[int, ...] | None]:
    found = apply_importance(plan, importance(**sizes)).items
    return {
        item.info.name: None if item.importance is None else item.importance.shape for item in found
    }


def test_each_matrix_of_a_tensor_has_its_own_row_of_importance() -> None:
    found = plan_importance(planned(), **{MATRIX: 256, EXPERTS: 768})
    assert found == {EMBEDDING: None, NORM: None, MATRIX: (1, 256), EXPERTS: (3, 256)}


@pytest.mark.parametrize("encoding", ["Q8_0"])
def test_a_type_whose_search_heeds_nothing_gets_nothing(encoding: str) -> None:
    plan = apply_importance(planned(encoding), importance(**{MATRIX: 256}))
    assert all(item.importance is None for item in plan.items)
    assert plan.notes == ("i.gguf changes nothing: no tensor becomes a type that can use it",)


@pytest.mark.parametrize(
    "encoding",
    [
        # ggml takes seconds to prepare the grids of the first three groups.
        pytest.param(
            name, marks=[pytest.mark.long] if name.startswith(("IQ1", "IQ2", "IQ3")) else []
        )
        for name, encoding in ENCODINGS.items()
        if encoding.quantization and encoding.codec
    ],
)
def test_the_types_that_heed_importance_are_those_of_ggml(encoding: str) -> None:
    rows = ARRAYS[MATRIX]
    plain = ggml_quantize(encoding, rows, required(encoding, rows, None))
    heeded = ggml_quantize(encoding, rows, SUMS[0]).tobytes() != plain.tobytes()
    assert heeded is ENCODINGS[encoding].takes_importance


def test_what_stays_as_it_is_gets_nothing() -> None:
    assert plan_importance(planned(), **{MATRIX: 256, NORM: 256})[NORM] is None


def test_another_size_than_the_tensors_is_an_error_that_names_both() -> None:
    with pytest.raises(ConversionError, match=f"`{MATRIX}` has 256 columns, but i.gguf has 255"):
        plan_importance(planned(), **{MATRIX: 255})
    with pytest.raises(ConversionError, match=f"`{EXPERTS}` has 3 x 256 columns, .* has 256 valu"):
        plan_importance(planned(), **{EXPERTS: 256})


def test_an_embedding_of_another_size_is_quantized_without() -> None:
    assert plan_importance(planned(), **{EMBEDDING: 9, MATRIX: 256})[EMBEDDING] is None


def test_notes_count_tensors_without_entries_and_entries_without_tensors() -> None:
    plan = apply_importance(planned(), importance(**{MATRIX: 256, "blk.9.attn_q.weight": 256}))
    assert plan.notes == (
        "2 of 3 tensors have no entry in i.gguf, and are quantized without it: "  # noqa: ISC004
        f"`{EMBEDDING}`, `{EXPERTS}`",
        "1 of 2 entries of i.gguf belong to no tensor: `blk.9.attn_q.weight`",
    )


def test_what_was_left_out_of_the_plan_is_not_unmatched() -> None:
    plan = planned().only([MATRIX])
    assert apply_importance(plan, importance(**{MATRIX: 256, EXPERTS: 768})).notes == ()


def entries(**tables: F32) -> Importance:
    return Importance("i.dat", {name: table.ravel() for name, table in tables.items()})


@pytest.mark.parametrize("idle", [0, 1e-45, 1e-37])
def test_a_matrix_whose_importance_is_0_is_quantized_without_and_told_of(idle: float) -> None:
    table = SUMS.copy()
    table[1] = idle
    plan = apply_importance(
        planned("Q4_0", (MATRIX, EXPERTS)), entries(**{MATRIX: table[1], EXPERTS: table})
    )
    assert [item.importance is None for item in plan.items] == [True, False]
    assert plan.notes == (
        "2 of 4 matrices in 2 tensors have importance 0 in i.dat, and are quantized "  # noqa: ISC004
        f"without it: `{MATRIX}`, `{EXPERTS}`",
    )
    made = {info.name: b"" for info in (item.info for item in plan.items)}
    for info, piece in execute(plan, tuple(item.info for item in plan.items)):
        assert not isinstance(piece, FileRange)
        made[info.name] += bytes(piece)
    rows = [SUMS[0], None, SUMS[2]]
    expected = [ggml_quantize("Q4_0", part, row).tobytes()
                for part, row in zip(ARRAYS[EXPERTS], rows, strict=True)]  # fmt: skip
    assert made[EXPERTS] == b"".join(expected)
    assert made[MATRIX] == ggml_quantize("Q4_0", ARRAYS[MATRIX], None).tobytes()


def test_a_wrong_number_is_refused_before_anything_is_written_where_a_tensor_uses_it(
    tmp_path: Path,
) -> None:
    table = SUMS.copy()
    table[2, 7] = np.nan
    path = imatrix_dat(tmp_path / "i.dat", {MATRIX: (SUMS[0], 1), EXPERTS: (table, 1)})
    found = read_importance(str(path))
    with pytest.raises(FormatError, match=f"`{EXPERTS}` has nan at element 519"):
        apply_importance(planned(), found)
    assert apply_importance(planned(names=(MATRIX, NORM)), found).items[0].importance is not None


def test_importance_that_overflows_a_scale_is_reported_with_what_holds_the_tensor(
    weightctl: Run, tmp_path: Path
) -> None:
    rows = np.ones((2, 256), np.float32)
    rows[1, 5] = 300
    arrays = {MATRIX: rows, EXPERTS: ARRAYS[EXPERTS]}
    save(Plan.copy(weights_of(arrays), "gguf"), tmp_path / "in.gguf")
    imatrix = imatrix_dat(tmp_path / "i.dat", {MATRIX: (np.full(256, 3e38, np.float32), 1)})
    asked = ("convert", tmp_path / "in.gguf", tmp_path / "out.gguf", "--quant", "Q4_K",
             "--imatrix", imatrix)  # fmt: skip
    done = weightctl(*asked)
    assert done.returncode == 2
    assert "overflows the scale of its Q4_K block if the importance" in done.stderr
    rule = r"^blk\.0\.attn_q\.weight$=bf16"
    assert f"--tensor-type '{rule}'" in done.stderr
    assert weightctl(*asked, "--tensor-type", rule).returncode == 0


def test_the_matrix_of_another_model_is_refused() -> None:
    with pytest.raises(ConversionError, match="its first entry is `h") as error:
        plan_importance(planned(), **{"h.0.w": 256})
    assert error.value.hint


def test_without_blocks_there_is_nothing_to_weigh() -> None:
    with pytest.raises(ConversionError, match="no tensor is quantized to one"):
        plan_importance(planned("F16"), **{MATRIX: 256})
    with pytest.raises(ConversionError, match="no tensor is quantized to one"):
        plan_importance(Plan.copy(weights_of(ARRAYS), "gguf"), **{MATRIX: 256})


def test_a_matrix_that_the_text_never_reached_is_not_rounded_with_feedback(tmp_path: Path) -> None:
    sums = np.zeros((1, 256), np.float32)
    entries = {MATRIX: (sums, COUNTS[:1]), EMBEDDING: (SUMS[:1], COUNTS[:1])}
    products = {MATRIX: np.zeros((256, 256), np.float32), EMBEDDING: mean_products(256)}
    path = imatrix_gguf(tmp_path / "i.gguf", entries, products=products)
    plan = apply_importance(planned("Q4_K"), read_importance(str(path)))
    found = {item.info.name: item for item in plan.items}
    assert found[MATRIX].importance is found[MATRIX].hessian is None
    assert found[EMBEDDING].hessian is not None
    assert plan.metadata["weightctl.rounding"] == MetadataValue("string", "error feedback")
    assert any("error feedback" in note and f"`{MATRIX}`" in note for note in plan.notes)
    # A later plan without products states nothing of the kind.
    again = apply_importance(plan, importance(**{EMBEDDING: 256}))
    assert "weightctl.rounding" not in again.metadata
    again = apply_importance(planned("Q4_K"), read_importance(str(path)), feedback=False)
    assert "weightctl.rounding" not in again.metadata
    assert not any("error feedback" in note for note in again.notes)


def test_metadata_says_what_weighed_as_that_of_llama_cpp_does() -> None:
    given = importance(**{MATRIX: 256})._replace(dataset="text.txt", chunks=3)
    plan = apply_importance(planned(), given)
    assert {key: value for key, value in plan.metadata.items() if key.startswith("quantize.")} == {
        "quantize.imatrix.file": MetadataValue("string", "i.gguf"),
        "quantize.imatrix.dataset": MetadataValue("string", "text.txt"),
        "quantize.imatrix.entries_count": MetadataValue("u32", 1),
        "quantize.imatrix.chunks_count": MetadataValue("u32", 3),
    }
    again = apply_importance(plan, importance(**{MATRIX: 256}))
    assert "quantize.imatrix.dataset" not in again.metadata


def model(path: Path) -> Path:
    save(Plan.copy(weights_of(ARRAYS), "gguf"), path)
    return path


@pytest.mark.parametrize("encoding", ["Q4_K", "Q5_0"])
def test_blocks_are_those_of_ggml_with_the_same_importance(
    weightctl: Run, tmp_path: Path, encoding: str
) -> None:
    source = model(tmp_path / "in.gguf")
    entries = {MATRIX: (SUMS[:1], COUNTS[:1]), EXPERTS: (SUMS, COUNTS)}
    imatrix = imatrix_gguf(tmp_path / "i.gguf", entries)
    out = tmp_path / "out.gguf"
    done = weightctl("convert", source, out, "--quant", encoding, "--imatrix", imatrix, "--json")
    assert done.returncode == 0, done.stderr
    weights = open_weights(out)
    used = {entry["name"]: entry["weighted"] for entry in json.loads(done.stdout)["tensors"]}
    assert used == {EMBEDDING: False, NORM: False, MATRIX: True, EXPERTS: True}
    rows = [SUMS[0] / COUNTS[0], np.ones(256, np.float32), SUMS[2] / COUNTS[2]]
    expected = [ggml_quantize(encoding, part, row)
                for part, row in zip(ARRAYS[EXPERTS], rows, strict=True)]  # fmt: skip
    found = {name: weights[name].data().view().tobytes() for name in ARRAYS}
    assert found[MATRIX] == ggml_quantize(encoding, ARRAYS[MATRIX], rows[0]).tobytes()
    assert found[EMBEDDING] == ggml_quantize(encoding, ARRAYS[EMBEDDING], None).tobytes()
    assert found[EXPERTS] == b"".join(part.tobytes() for part in expected)
    assert weights.metadata["quantize.imatrix.file"].content == str(imatrix)


def test_both_forms_give_the_same_blocks(weightctl: Run, tmp_path: Path) -> None:
    source, made = model(tmp_path / "in.gguf"), []
    for imatrix in (
        imatrix_gguf(tmp_path / "i.gguf", {MATRIX: (SUMS[:1], COUNTS[:1])}),
        imatrix_dat(tmp_path / "i.dat", {MATRIX: (SUMS[:1], 2)}),
    ):
        out = tmp_path / f"{imatrix.suffix}.gguf"
        done = weightctl("convert", source, out, "--quant", "Q4_K", "--imatrix", imatrix)
        assert done.returncode == 0, done.stderr
        made.append(open_weights(out)[MATRIX].data().view().tobytes())
    assert made[0] == made[1]


def test_the_importance_matrix_itself_is_never_overwritten(weightctl: Run, tmp_path: Path) -> None:
    imatrix = imatrix_gguf(tmp_path / "i.gguf", {MATRIX: (SUMS[:1], COUNTS[:1])})
    before = imatrix.read_bytes()
    done = weightctl("convert", model(tmp_path / "in.gguf"), imatrix, "--quant", "Q4_K",
                     "--imatrix", imatrix, "--force")  # fmt: skip
    assert done.returncode == 2
    assert "is the importance matrix" in done.stderr
    assert imatrix.read_bytes() == before
