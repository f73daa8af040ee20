"""NaN, infinity, and lost matrices and rows are found; values of healthy models are not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

import small_models
from arrays import stored, weights_of
from build import F32, Gguf, Tensor
from each import each
from lazy import torch
from verdicts import saved
from weightctl.codecs import can_encode, transcode
from weightctl.dtype import ENCODINGS
from weightctl.formats.open.opening import open_weights
from weightctl.kernels import RunComparer, levels
from weightctl.verify import Request, Result, Subject, verify_request
from weightctl.verify.checks.finite import check
from weightctl.verify.checks.finite.scales import form_of, read_codes
from weightctl.verify.checks.finite.survey import survey_tensors
from weightctl.verify.compare import distance
from weightctl.verify.compare.distance import RunSums, compare_runs
from weightctl.verify.figures import FiniteFigures
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import Plus

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.verify import Problem

    U8 = NDArray[np.uint8]


def matrix(rows: int = 64, columns: int = 48, seed: int = 8) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def finite(path: Path, **arrays: NDArray[Any]) -> Result:
    """Return what the check finds in a safetensors file of arrays; `__` stands for a dot."""
    path.mkdir(exist_ok=True)
    named = {name.replace("__", "."): array for name, array in arrays.items()}
    return check(Request(subject=Subject(stored(path / "model.safetensors", **named))))


def only(result: Result) -> Problem:
    (problem,) = result.problems
    return problem


def test_a_nan_is_found_where_it_is(tmp_path: Path) -> None:
    numbers = matrix()
    numbers[3, 7] = np.nan
    problem = only(finite(tmp_path, a__weight=numbers, b__weight=matrix()))
    assert problem.where == "a.weight"
    assert problem.text == "1 of 3,072 values is NaN, the first at [3, 7]"


@each("kind", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_swapped_bytes_are_named_and_a_changed_bit_is_not_one(tmp_path: Path, kind: type) -> None:
    numbers = matrix().astype(kind)
    cause = only(finite(tmp_path / "swapped", a__weight=numbers.byteswap())).cause
    assert cause is not None
    assert cause.name == "byte_order"
    numbers[5, 7] = np.inf
    assert only(finite(tmp_path / "flipped", a__weight=numbers)).cause is None


@each("kind", [np.float16, np.float32, np.float64])
def test_infinities_are_counted(tmp_path: Path, kind: type) -> None:
    numbers: NDArray[Any] = matrix().astype(kind)
    numbers[5, 1:3] = np.inf, -np.inf
    assert only(finite(tmp_path, a__weight=numbers)).text == (
        "2 of 3,072 values are infinite, the first at [5, 1]"
    )


def test_a_nan_in_a_complex_number_is_found(tmp_path: Path) -> None:
    numbers = matrix().astype(np.complex64)
    numbers[4, 2] = complex(1, np.nan)
    assert "NaN" in only(finite(tmp_path, a__weight=numbers)).text


def test_a_nan_in_a_vector_is_found(tmp_path: Path) -> None:
    bias = np.zeros(100_000, np.float32)
    bias[77_777] = np.nan
    assert "[77777]" in only(finite(tmp_path, a__bias=bias)).text


def test_a_number_that_no_training_makes_is_found(tmp_path: Path) -> None:
    numbers = matrix()
    numbers[3, 7] = 1e30
    assert "1e+30" in only(finite(tmp_path, a__weight=numbers)).text


def test_numbers_whose_squares_float32_cannot_hold_are_numbers(tmp_path: Path) -> None:
    tiny = np.full((64, 48), 1e-30, np.float32)
    tiny[0, 0] = 2e-30
    assert not finite(tmp_path, a__weight=tiny).problems


def test_a_matrix_of_zeros_is_found(tmp_path: Path) -> None:
    problem = only(finite(tmp_path, a__weight=np.zeros((64, 48), np.float32)))
    assert problem.text == "all 3,072 values are 0"
    assert problem.cause is not None
    assert problem.cause.name == "zeroed"


def test_a_constant_matrix_is_found(tmp_path: Path) -> None:
    problem = only(finite(tmp_path, a__weight=np.full((64, 48), 0.5, np.float16)))
    assert problem.text == "all 3,072 values are 0.5"


def test_rows_of_zeros_are_found(tmp_path: Path) -> None:
    numbers = matrix()
    numbers[[3, 4, 9]] = 0
    problem = only(finite(tmp_path, a__weight=numbers))
    assert problem.text == "3 of 64 rows are all zeros: rows 3 to 4, 9"
    assert problem.cause is not None
    assert problem.cause.name == "rows_lost"


def test_stretches_of_a_large_tensor_are_one_tensor(tmp_path: Path) -> None:
    numbers = np.zeros((34_000, 512), np.float16)
    assert "all 17,408,000 values" in only(finite(tmp_path / "zero", a__weight=numbers)).text
    numbers[:, 0] = 1
    numbers[[5, 33_000]] = 0
    assert "rows 5, 33000" in only(finite(tmp_path / "rows", a__weight=numbers)).text


def test_a_lost_row_of_an_expert_is_named_with_the_expert(tmp_path: Path) -> None:
    experts = matrix(6 * 40, 32).reshape(6, 40, 32)
    experts[4, 11] = 0
    assert "row [4, 11]" in only(finite(tmp_path, experts__weight=experts)).text


@each(
    "name, array",
    [
        ("a__bias", np.zeros(64, np.float32)),
        ("norm__weight", np.ones(64, np.float32)),
        ("experts__bias", np.zeros((8, 64), np.float32)),
        ("layer_scale", np.full((1, 1, 64), 1e-6, np.float32)),
        ("scale", np.ones((1, 1), np.float32)),
        ("causal_mask", np.triu(np.full((64, 64), -np.inf, np.float32), 1)),
        ("forward_basis_buffer", np.sin(np.outer(np.arange(64), np.arange(64))).astype("f4")),
        ("conv__weight", np.pad(matrix(60, 9), ((4, 0), (0, 0))).reshape(64, 1, 3, 3)),
        ("stft__weight", np.pad(matrix(60, 48), ((4, 0), (0, 0))).reshape(64, 1, 48)),
        ("router__weight", np.zeros((64, 48), np.int32)),
        ("roberta__token_type_embeddings__weight", np.zeros((2, 64), np.float32)),
        ("q_proj__lora_B__weight", np.zeros((64, 8), np.float32)),
        ("empty", np.zeros((0, 8), np.float32)),
        ("scalar", np.zeros((), np.float32)),
    ],
)
def test_what_healthy_models_have_is_not_a_problem(
    tmp_path: Path, name: str, array: NDArray[Any]
) -> None:
    assert not finite(tmp_path, **{name: array}).problems


def test_a_fresh_adapter_is_one_note(tmp_path: Path) -> None:
    zeros = np.zeros((64, 8), np.float32)
    result = finite(tmp_path, **{f"layers__{n}__q__lora_B__weight": zeros for n in range(10)})
    (note,) = result.notes
    assert note.startswith("`layers.0.q.lora_B.weight`, ")
    assert note.endswith(
        "and 6 more are all zeros and have no effect, which is usual for such tensors"
    )


def test_a_lost_row_of_an_embedding_is_found_and_padding_at_its_ends_is_noted(
    tmp_path: Path,
) -> None:
    numbers = matrix()
    numbers[0] = numbers[60:] = 0
    result = finite(tmp_path, embed_tokens__weight=numbers)
    assert not result.problems
    assert "5 rows of zeros" in result.notes[0]
    numbers[30] = 0
    assert "row 30" in only(finite(tmp_path / "lost", embed_tokens__weight=numbers)).text


def test_rows_of_reserved_tokens_are_told_from_those_of_words(tmp_path: Path) -> None:
    numbers = matrix(40, 32)
    numbers[[2, 7, 8, 30, 39]] = 0
    tokens = [f"word{number}" for number in range(36)]
    types = [1] * 36
    tokens[7], tokens[8] = "<|reserved_special_token_3|>", "<new>"
    types[8] = 3
    metadata = {
        "tokenizer.ggml.model": ("string", "gpt2"),
        "tokenizer.ggml.tokens": ("array[string]", tokens),
        "tokenizer.ggml.token_type": ("array[i32]", types),
        "tokenizer.ggml.eos_token_id": ("u32", 30),
        "tokenizer.ggml.padding_token_id": ("u32", 30),
    }
    tensor = Tensor("token_embd.weight", (40, 32), F32, numbers.tobytes())
    (tmp_path / "model.gguf").write_bytes(Gguf().file([tensor], metadata))
    result = check(Request(subject=Subject(tmp_path / "model.gguf")))
    assert only(result).text == "2 of 40 rows are all zeros: rows 2, 30"
    assert "3 rows of zeros" in result.notes[0]


def test_a_norm_of_zeros_is_found_where_the_family_is_known(
    tmp_path: Path, tiny_llama: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    subject = Subject(model)
    name = "model.layers.1.input_layernorm.weight"
    extent = subject.stored.header.extents[name]
    raw = bytearray((model / "model.safetensors").read_bytes())
    raw[extent.offset : extent.offset + extent.nbytes] = bytes(extent.nbytes)
    (model / "model.safetensors").write_bytes(raw)
    problem = only(check(Request(subject=Subject(model))))
    assert problem.where == name
    assert problem.cause is not None
    assert problem.cause.name == "zeroed"


def test_the_shipped_model_has_no_problem(tiny_llama: Path) -> None:
    reported: list[float] = []
    request = Request(subject=Subject(tiny_llama), progress=lambda _, done: reported.append(done))
    result = check(request)
    assert not result.problems
    assert not result.notes
    assert isinstance(result.figures, FiniteFigures)
    assert result.figures.numbers == sum(
        info.size for info in open_weights(tiny_llama).header.tensors.values()
    )
    assert reported == sorted(reported)
    assert reported[-1] == 1


def test_of_many_tensors_with_one_fault_the_first_are_named(tmp_path: Path) -> None:
    zeros = {f"layers__{number}__weight": np.zeros((8, 32), np.float32) for number in range(25)}
    problems = finite(tmp_path, **zeros).problems
    assert len(problems) == 21
    assert "5 more tensors" in problems[-1].text


def test_only_layers_that_are_asked_for_are_looked_at(tmp_path: Path) -> None:
    zeros = {f"layers.{number}.weight": np.zeros((8, 32), np.float32) for number in range(4)}
    subject = Subject(stored(tmp_path / "model.safetensors", **zeros))
    result = check(Request(subject=subject, layers=range(1, 3)))
    assert [problem.where for problem in result.problems] == ["layers.1.weight", "layers.2.weight"]
    assert check(Request(subject=subject, layers=range(90, 95))).skipped


def test_a_matrix_in_parts_is_judged_by_its_numbers(tmp_path: Path) -> None:
    codes = torch.from_numpy(matrix(128, 256)).to(torch.float8_e4m3fn)
    scales = torch.ones(1, 2)
    scales[0, 1] = torch.nan
    from safetensors.torch import save_file

    tensors = {"a.weight": codes, "a.weight_scale_inv": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = json.dumps({"quantization_config": quantization})
    (tmp_path / "config.json").write_text(config)
    problem = only(check(Request(subject=Subject(tmp_path))))
    assert problem.where == "a.weight"
    assert "at [0, 128]" in problem.text


def test_a_tensor_that_repeats_a_few_bytes_is_not_read_over_and_over(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1).expand(1 << 40)}, tmp_path / "model.pt")
    result = check(Request(subject=Subject(tmp_path / "model.pt")))
    assert not result.problems
    assert "repeats a few values" in result.notes[0]


@given(
    zeros=st.sets(st.integers(0, 299), max_size=40),
    columns=st.sampled_from([32, 33, 1000, 9000]),
    threads=st.integers(1, 3),
)
def test_rows_of_zeros_are_counted_however_a_tensor_is_cut(
    zeros: set[int], columns: int, threads: int
) -> None:
    numbers = np.ones((300, columns), np.float32)
    numbers[0, 0] = 2
    numbers[list(zeros)] = 0
    source = weights_of({"a": numbers}).source
    info = source.header.tensors["a"]
    found = survey_tensors(source, [info], lambda _: None, threads=threads)["a"]
    assert not isinstance(found, str)
    rows = {row for start, stop in found.zero_runs for row in range(start, stop)}
    assert (found.zeros, rows) == (len(zeros), zeros)


# Values that cause arithmetic errors are found, without warnings of NumPy.


# Warnings are errors in tests. A NaN that signals trips over any arithmetic, a quiet one does not.
_SIGNALLING = 0x7F800001
_QUERY = "model.layers.0.self_attn.q_proj.weight"


def ruined(arrays: small_models.Arrays) -> None:
    arrays[_QUERY].view(np.uint32)[3, 5] = _SIGNALLING


@pytest.fixture
def models(tmp_path: Path) -> tuple[Subject, Subject]:
    model = small_models.llama(num_hidden_layers=1)
    for name in ("whole", "ruined"):
        (tmp_path / name).mkdir()
    return saved(tmp_path / "ruined", model, change=ruined), saved(tmp_path / "whole", model)


def test_a_signalling_nan_is_found_without_warnings(models: tuple[Subject, Subject]) -> None:
    report = verify_request(Request(subject=models[0]), ["finite"])
    assert [problem.where for problem in report.problems] == [_QUERY]


@each("is_reference", [False, True])
def test_a_signalling_nan_is_compared_without_warnings(
    is_reference: bool, models: tuple[Subject, Subject]
) -> None:
    subject, reference = reversed(models) if is_reference else models
    report = verify_request(Request(subject=subject, reference=reference), ["values"])
    assert [problem.where for problem in report.problems] == [_QUERY]


def test_numbers_that_float32_does_not_hold_are_found_without_warnings(tmp_path: Path) -> None:
    def widened(arrays: small_models.Arrays) -> None:
        arrays[_QUERY] = arrays[_QUERY].astype(np.float64) * 1e300

    subject = saved(tmp_path, small_models.llama(num_hidden_layers=1), change=widened)
    report = verify_request(Request(subject=subject), ["finite", "forward"])
    assert [problem.where for problem in report.problems][:1] == [_QUERY]


def test_a_number_is_added_to_a_signalling_nan_without_warnings() -> None:
    source = weights_of({"a": np.array([1, _SIGNALLING], np.uint32).view(np.float32)}).source
    made = DerivedTensor("a", Plus(1.0), [tensor_of(source, "a")])
    raw = bytearray(8)
    made.read_into(0, memoryview(raw))
    assert np.isnan(np.frombuffer(raw, np.float32)).tolist() == [False, True]


# Scales in blocks that no healthy tensor has are found, in every encoding.


ROWS, COLUMNS = 40, 512
BLOCKS = [name for name, encoding in ENCODINGS.items() if encoding.quantization is not None]
# IQ1_M has the bits of its scale in those of others.
ENCODED = [
    name
    for name in BLOCKS
    if can_encode(ENCODINGS[name]) and not ENCODINGS[name].needs_importance and name != "IQ1_M"
]
# The field at the beginning of a block is a float16 scale that is never below zero.
POSITIVE = ["Q8_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K"]


def blocks_of(encoding: str, spread: float = 0.05) -> U8:
    """Return the blocks of a matrix of bell-shaped numbers, some of them far out, in rows."""
    random = np.random.default_rng(8)
    numbers = random.standard_normal((ROWS, COLUMNS)).astype(np.float32) * np.float32(spread)
    numbers[random.random(numbers.shape) < 0.001] *= 8
    raw = numbers.view(np.uint8)
    return transcode(raw, ENCODINGS["F32"], ENCODINGS[encoding]).raw


def found_in(path: Path, encoding: str, raw: U8) -> tuple[Problem, ...]:
    """Return the problems of a GGUF file with one matrix of such blocks."""
    number = int(ENCODINGS[encoding].ids["gguf"])
    matrix = Tensor("blk.0.ffn_up.weight", (ROWS, COLUMNS), number, raw.tobytes())
    (path / "matrix.gguf").write_bytes(Gguf().file([matrix]))
    return check(Request(subject=Subject(path / "matrix.gguf"))).problems


def flipped(raw: U8, block: int, offset: int, bits: int, encoding: str) -> U8:
    """Return blocks of which one has other bits in the 16 at an offset."""
    changed = raw.copy().reshape(-1, ENCODINGS[encoding].size)
    changed[block, offset : offset + 2].view("<u2")[...] ^= np.uint16(bits)
    return changed.reshape(raw.shape)


@each("encoding", BLOCKS)
def test_it_is_known_where_the_scales_of_every_block_encoding_are(encoding: str) -> None:
    fields = ENCODINGS[encoding].scales
    size = ENCODINGS[encoding].size
    assert fields
    for field in fields:
        assert read_codes(field, np.zeros(3 * size, np.uint8), size).shape == (3, field.width)


@each("encoding", ENCODED)
def test_a_healthy_matrix_has_no_problem(tmp_path: Path, encoding: str) -> None:
    assert not found_in(tmp_path, encoding, blocks_of(encoding))


@each("encoding", ENCODED)
def test_a_scale_that_is_not_finite_is_found(tmp_path: Path, encoding: str) -> None:
    raw = blocks_of(encoding)
    field = ENCODINGS[encoding].scales[0]
    rows = raw.reshape(-1, ENCODINGS[encoding].size)
    form = form_of(field)
    width = np.dtype(form.kind).itemsize
    code = np.array([form.limit], form.kind).view(np.uint8)
    rows[70, field.offset : field.offset + width] = code
    (problem,) = found_in(tmp_path, encoding, rows.reshape(raw.shape))
    assert problem.where == "blk.0.ffn_up.weight"
    assert problem.cause is not None
    assert problem.cause.name == "scale"
    row = 70 * ENCODINGS[encoding].block // COLUMNS
    assert f"at [{row}, " in problem.text


@each("encoding", POSITIVE)
def test_a_sign_that_no_encoder_writes_is_found(tmp_path: Path, encoding: str) -> None:
    raw = flipped(blocks_of(encoding), 5, 0, 0x8000, encoding)
    (problem,) = found_in(tmp_path, encoding, raw)
    assert "negative" in problem.text


@each("encoding", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "IQ4_NL", "IQ4_XS"])
def test_a_flipped_bit_that_makes_a_scale_enormous_is_found(tmp_path: Path, encoding: str) -> None:
    raw = flipped(blocks_of(encoding), 7, 0, 0x4000, encoding)
    (problem,) = found_in(tmp_path, encoding, raw)
    assert "1 block is implausibly large" in problem.text


def test_a_flipped_bit_that_makes_one_scale_vanish_is_found(tmp_path: Path) -> None:
    raw = flipped(blocks_of("Q8_0", spread=300), 7, 0, 0x4000, "Q8_0")
    (problem,) = found_in(tmp_path, "Q8_0", raw)
    assert "1 block is implausibly small" in problem.text


def test_blocks_whose_numbers_are_all_tiny_are_not_a_problem_beside_their_like(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(8)
    numbers = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    numbers[3] *= np.float32(1e-3)
    raw = transcode(numbers.view(np.uint8), ENCODINGS["F32"], ENCODINGS["Q8_0"]).raw
    assert not found_in(tmp_path, "Q8_0", raw)


def test_numbers_that_are_too_small_for_their_scales_are_reported(tmp_path: Path) -> None:
    (problem,) = found_in(tmp_path, "Q8_0", blocks_of("Q8_0", spread=3e-6))
    assert "too small for float16" in problem.text


def test_a_tensor_of_negative_scales_is_that_of_another_encoder(tmp_path: Path) -> None:
    blocks = blocks_of("Q8_0").reshape(-1, 34)
    blocks[::2, 1] |= 0x80
    assert not found_in(tmp_path, "Q8_0", blocks.reshape(ROWS, -1))


def test_rows_whose_scales_are_zero_are_found_where_numbers_cannot_be_decoded(
    tmp_path: Path,
) -> None:
    blocks = np.random.default_rng(8).integers(0, 256, (ROWS, 2 * 66), np.uint8)
    scales = blocks.reshape(-1, 66)[:, :2].view("<f2")
    scales[...] = 0.01
    assert not found_in(tmp_path, "IQ2_XXS", blocks)
    blocks[9].reshape(-1, 66)[:, :2] = 0
    (problem,) = found_in(tmp_path, "IQ2_XXS", blocks)
    assert "row 9" in problem.text


def test_rows_of_zeros_are_found_whatever_their_scales_are(tmp_path: Path) -> None:
    rows = blocks_of("Q8_0").reshape(ROWS, -1, 34)
    rows[11, :, 2:] = 0
    rows[12, 0, 2:] = 0
    (problem,) = found_in(tmp_path, "Q8_0", rows.reshape(ROWS, -1))
    assert problem.text == "1 of 40 rows is all zeros: row 11"


def test_a_constant_matrix_of_blocks_is_found(tmp_path: Path) -> None:
    raw = transcode(
        np.full((ROWS, COLUMNS), 0.5, np.float32).view(np.uint8),
        ENCODINGS["F32"],
        ENCODINGS["Q4_1"],
    ).raw
    (problem,) = found_in(tmp_path, "Q4_1", raw)
    assert "values are 0.5" in problem.text


def test_the_scale_in_the_nibbles_of_iq1_m_is_that_of_ggml() -> None:
    blocks = np.random.default_rng(8).integers(0, 256, (64, 56), np.uint8)
    (field,) = ENCODINGS["IQ1_M"].scales
    scales = form_of(field).as_float32(read_codes(field, blocks.reshape(-1), 56))
    with np.errstate(all="ignore"):
        numbers = dequantize(blocks, GGMLQuantizationType.IQ1_M)
        # All of a block are its scale times some number of sixteenths.
        ratios = numbers / scales * 16
    finite = np.isfinite(scales[:, 0]) & (np.abs(scales[:, 0]) > 1e-3)
    assert finite.sum() > 10
    assert np.allclose(ratios[finite], np.round(ratios[finite]), atol=1e-3)


# The sums over runs of two tables: the kernels give what NumPy gives, at every level.


RUNS = 40
NEAR = 1e-6


def pair() -> tuple[np.ndarray, np.ndarray]:
    """Return two tables; some of their runs are equal, zero, huge or tiny."""
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((RUNS, 32), np.float32)
    own = reference + rng.standard_normal((RUNS, 32), np.float32) / 16
    own[1] = reference[1]
    own[2] = reference[2] = 0
    own[3] = 0
    for table in (own, reference):
        table[4] *= np.float32(1e25)
        table[5] *= np.float32(1e-30)
    return own, reference


def expected(own: np.ndarray, reference: np.ndarray) -> RunSums:
    difference = own - reference
    a, b, d = (each.astype(np.float64) for each in (own, reference, difference))
    sums = ((each**2).sum(1) for each in (d, b, a))
    return RunSums(*sums, float((a * b).sum()), float(np.abs(difference).max()))


def require_near(found: RunSums, wanted: RunSums) -> None:
    for name in ("error", "squares", "own_squares", "product"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=NEAR)
    assert found.max_error == wanted.max_error


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_sums_are_those_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    require_near(compare_runs(*pair()), expected(*pair()))
    monkeypatch.setattr(distance, "run_comparer", lambda: None)
    require_near(compare_runs(*pair()), expected(*pair()))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_all_levels_give_the_same_sums() -> None:
    made: set[bytes] = set()
    for level in range(len(levels())):
        out = np.empty((3, RUNS), np.float64)
        totals = RunComparer(level).compare(*pair(), out)
        made.add(out.tobytes() + np.array(totals).tobytes())
    assert len(made) <= 1


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_runs_with_values_that_are_not_finite_have_such_sums() -> None:
    for value in (np.inf, np.nan):
        own, reference = pair()
        own[7, 3] = value
        sums = compare_runs(own, reference)
        assert np.flatnonzero(~np.isfinite(sums.error)).tolist() == [7]
        assert np.isfinite(sums.squares).all()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_tables_that_do_not_fit_are_refused() -> None:
    own, reference = pair()
    for level in range(len(levels())):
        for shape in ((3, RUNS - 1), (2, RUNS)):
            with pytest.raises(ValueError, match="do not fit"):
                RunComparer(level).compare(own, reference, np.empty(shape, np.float64))
