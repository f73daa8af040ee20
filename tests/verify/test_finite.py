"""NaN, infinity, and lost matrices and rows are found; values of healthy models are not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arrays import stored, weights_of
from build import F32, Gguf, Tensor
from weightctl.formats.open.opening import open_weights
from weightctl.verify import Request, Result, Subject
from weightctl.verify.checks.finite import check
from weightctl.verify.checks.finite.survey import survey_tensors
from weightctl.verify.figures import FiniteFigures

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.verify import Problem


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


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_swapped_bytes_are_named_and_a_changed_bit_is_not_one(tmp_path: Path, kind: type) -> None:
    numbers = matrix().astype(kind)
    cause = only(finite(tmp_path / "swapped", a__weight=numbers.byteswap())).cause
    assert cause is not None
    assert cause.name == "byte_order"
    numbers[5, 7] = np.inf
    assert only(finite(tmp_path / "flipped", a__weight=numbers)).cause is None


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
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


@pytest.mark.parametrize(
    ("name", "array"),
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
