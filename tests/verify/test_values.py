"""Each tensor is compared with the reference, and all that differ too much are reported."""

from __future__ import annotations

import json
import shutil
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import faults
import small_models
from arrays import stored
from each import each
from verdicts import assert_healthy, report_on, saved
from weightctl import WeightData
from weightctl.cli import app
from weightctl.codecs import can_encode
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families import recognize
from weightctl.formats.open.opening import open_weights
from weightctl.verify import Request, Subject, verify_request
from weightctl.verify.checks.forward.walk import degrade
from weightctl.verify.checks.values import check
from weightctl.verify.compare.distance import (
    MOST_KEPT,
    Measured,
    is_within,
    measure_pair,
    measure_sample,
)
from weightctl.verify.compare.mismatch import find_mismatch
from weightctl.verify.compare.pairing import (
    Pair,
    PairSide,
    convert_convention,
    pair_tensors,
)
from weightctl.verify.figures import ValuesFigures
from weightctl.weights import as_checkpoint
from weightctl.weights.derived import DerivedTensor, ReadableTensor, tensor_of
from weightctl.weights.steps.numbers import AsFloat32, numbers_of

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models
    from weightctl.verify import Result
    from weightctl.verify.compare.pairing import Pairing

RANDOM = np.random.default_rng(8)
MATRIX = RANDOM.normal(0, 0.02, (64, 128)).astype(np.float32)


def against(one: Path, other: Path, **options: Any) -> Result:
    return check(Request(subject=Subject(one), reference=Subject(other), **options))


def compared(tmp_path: Path, own: dict[str, Any], other: dict[str, Any], **options: Any) -> Result:
    paths = [tmp_path / "own.safetensors", tmp_path / "other.safetensors"]
    for path, arrays in zip(paths, (own, other), strict=True):
        path.unlink(missing_ok=True)
        stored(path, **arrays)
    return against(*paths, **options)


def converted(source: Path, out: Path, *arguments: str) -> Path:
    assert not app(["convert", str(source), str(out), "-q", *arguments], standalone_mode=False)
    return out


@each("kind", ["Q8_0", "Q6_K", "Q4_K", "Q4_0", "Q4_1", "Q2_K", "IQ4_XS", "MXFP4"])
def test_a_healthy_quantization_is_not_a_problem_either_way(
    tmp_path: Path, tiny_llama: Path, kind: str
) -> None:
    out = converted(tiny_llama, tmp_path / "out.gguf", "--quant", kind)
    for result in (against(out, tiny_llama), against(tiny_llama, out)):
        assert result.problems == ()
        assert isinstance(result.figures, ValuesFigures)
        worst = max(result.figures.tensors, key=lambda each: each.relative_rmse)
        assert worst.relative_rmse == pytest.approx(worst.expected, rel=0.3)


def test_two_quantizations_of_one_model_are_not_a_problem(tmp_path: Path, tiny_llama: Path) -> None:
    one = converted(tiny_llama, tmp_path / "one.gguf", "--quant", "Q4_K")
    other = converted(tiny_llama, tmp_path / "other.gguf", "--quant", "Q4_0")
    assert against(one, other).problems == ()
    assert against(other, one).problems == ()


def test_equal_checkpoints_have_no_error_at_all(tiny_llama: Path) -> None:
    result = against(tiny_llama, tiny_llama)
    assert result.problems == ()
    assert isinstance(result.figures, ValuesFigures)
    assert {each.relative_rmse for each in result.figures.tensors} == {0.0}


def test_an_error_ten_times_what_the_encoding_costs_is_a_problem(tmp_path: Path) -> None:
    noise = RANDOM.normal(0, 0.02 * 0.02, MATRIX.shape).astype(np.float32)
    result = compared(tmp_path, {"w": (MATRIX + noise).astype(np.float16)}, {"w": MATRIX})
    (problem,) = result.problems
    assert problem.where == "w"
    assert "of F16" in problem.text


def test_a_bar_of_ones_own_is_what_counts(tmp_path: Path) -> None:
    noise = RANDOM.normal(0, 0.02 * 0.02, MATRIX.shape).astype(np.float32)
    arrays = {"w": MATRIX + noise}, {"w": MATRIX}
    assert compared(tmp_path, *arrays, max_rmse=0.05).problems == ()
    (problem,) = compared(tmp_path, *arrays, max_rmse=0.01).problems
    assert "above 1 %" in problem.text
    assert problem.hint == ""


def test_an_error_that_is_usual_for_its_type_needs_another_type(tmp_path: Path) -> None:
    arrays = {"w": MATRIX.astype(np.float16)}, {"w": MATRIX}
    (problem,) = compared(tmp_path, *arrays, max_rmse=1e-6).problems
    assert "larger type" in problem.hint


def test_tensors_of_one_side_alone_are_problems(tmp_path: Path) -> None:
    result = compared(tmp_path, {"w": MATRIX, "more": MATRIX}, {"w": MATRIX, "a.bias": MATRIX[0]})
    missing, more = result.problems
    assert (missing.where, more.where) == ("a.bias", "more")
    assert missing.cause is not None
    assert missing.cause.name == "bias_dropped"


def test_another_shape_is_a_problem(tmp_path: Path) -> None:
    (problem,) = compared(tmp_path, {"w": MATRIX.T.copy()}, {"w": MATRIX}).problems
    assert problem.text == "has shape [128, 64], and the reference [64, 128]"
    assert problem.cause is not None
    assert problem.cause.name == "transposed"


def test_whole_numbers_are_compared_by_their_bytes(tmp_path: Path) -> None:
    table = np.arange(10)
    assert compared(tmp_path, {"t": table}, {"t": table}).problems == ()
    (problem,) = compared(tmp_path, {"t": table}, {"t": table + 1}).problems
    assert problem.where == "t"


def test_whole_numbers_in_place_of_weights_are_a_problem(tmp_path: Path) -> None:
    (problem,) = compared(tmp_path, {"w": MATRIX.astype(np.int32)}, {"w": MATRIX}).problems
    assert problem.text == "has the encoding I32, and the reference F32"


def test_nan_where_the_reference_has_numbers_is_a_problem(tmp_path: Path) -> None:
    damaged = MATRIX.copy()
    damaged[7, 3:5] = np.nan
    (problem,) = compared(tmp_path, {"w": damaged}, {"w": MATRIX}).problems
    assert problem.text == (
        "2 values are NaN or infinite here but not in the reference, the first in row 7"
    )


def test_rows_are_counted_as_the_file_has_them(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"

    def ruin(arrays: Any) -> None:
        arrays[name][5, 7] = np.nan

    subjects: list[Subject] = []
    for directory, change in (("own", ruin), ("other", None)):
        (tmp_path / directory).mkdir()
        subjects.append(saved(tmp_path / directory, small_models.llama(), change=change))
    own, other = subjects
    result = check(Request(subject=own, reference=other))
    assert [(each.where, each.text) for each in result.problems] == [
        (name, "1 value is NaN here but not in the reference, in row 5")
    ]
    figures = result.figures
    assert isinstance(figures, ValuesFigures)
    assert [each.name for each in figures.tensors if np.isnan(each.cosine)] == [name]


def test_plain_numbers_of_one_encoding_should_be_equal(tmp_path: Path) -> None:
    own = MATRIX.astype(np.float16)
    other = (MATRIX * RANDOM.normal(1, 0.3, MATRIX.shape)).astype(np.float16)
    (problem,) = compared(tmp_path, {"w": own}, {"w": other}).problems
    assert problem.text.endswith("%, expected 0 because both are F16")


def test_a_lone_infinity_of_the_reference_is_said_to_be_there(tmp_path: Path) -> None:
    damaged = MATRIX.copy()
    damaged[7, 3] = -np.inf
    (problem,) = compared(tmp_path, {"w": MATRIX}, {"w": damaged}).problems
    assert problem.text == "1 value is infinite in the reference but not here, in row 7"


def test_checkpoints_that_share_no_name_are_not_said_to_be_fine(tmp_path: Path) -> None:
    assert compared(tmp_path, {"a": MATRIX}, {"b": MATRIX}).problems


def test_layers_that_are_not_there_are_reported(tiny_llama: Path) -> None:
    assert "the model has 3 layers" in against(tiny_llama, tiny_llama, layers=range(7, 9)).skipped


def test_only_the_layers_asked_for_are_looked_at(tiny_llama: Path) -> None:
    figures = against(tiny_llama, tiny_llama, layers=range(1, 2)).figures
    assert isinstance(figures, ValuesFigures)
    assert {each.layer for each in figures.tensors} == {1}


def test_thousands_of_bad_tensors_are_not_all_named(tmp_path: Path) -> None:
    random, noise = RANDOM.normal(0, 1, (2, 60, 8, 32)).astype(np.float32)
    noise *= np.logspace(-3, 0, 60, dtype=np.float32)[:, None, None]
    own = {f"h.{n}.w": each for n, each in enumerate(random)}
    other = {f"h.{n}.w": each for n, each in enumerate(random + noise)}
    problems = compared(tmp_path, own, other).problems
    assert len(problems) == 21
    assert problems[-1].text == "40 more tensors differ as much"


def test_progress_is_reported_up_to_the_end(tiny_llama: Path) -> None:
    reported: list[float] = []
    request = Request(
        subject=Subject(tiny_llama),
        reference=Subject(tiny_llama),
        progress=lambda _, done: reported.append(done),
    )
    check(request)
    assert reported == sorted(reported)
    assert reported[-1] == 1


# Errors between tensors: of the whole tensor, and of each range of values.


NUMBERS = RANDOM.normal(0, 0.02, (64, 256)).astype(np.float32)


def held(numbers: Any, encoding: str = "F32") -> ReadableTensor:
    data = WeightData.from_numpy(numbers, "w")
    if encoding != "F32":
        from weightctl.codecs import transcode

        raw = transcode(
            np.ascontiguousarray(numbers, np.float32).view(np.uint8),
            ENCODINGS["F32"],
            ENCODINGS[encoding],
        ).raw
        info = data.info._replace(encoding=ENCODINGS[encoding])
        data = WeightData.stored(info, memoryview(raw.tobytes()))
    return tensor_of(as_checkpoint({"w": data}).source, "w")


def pair_of(tensor: ReadableTensor, reference: ReadableTensor) -> Pair:
    bits = [each.info.encoding.size * 8 / each.info.encoding.block for each in (tensor, reference)]
    return Pair("w", "w", None, "w", "w", tensor, reference, None, *bits)


def found(tensor: ReadableTensor, reference: ReadableTensor) -> tuple[Measured, bool]:
    pair = pair_of(tensor, reference)
    measure = measure_pair(pair)
    return measure, is_within(pair, measure)


def test_equal_tensors_are_not_apart() -> None:
    measure, is_fine = found(held(NUMBERS), held(NUMBERS))
    assert is_fine
    assert (measure.relative_rmse, measure.max_error, measure.cosine) == (0.0, 0.0, 1.0)


@given(st.integers(1, 300), st.integers(0, 1 << 30))
def test_the_figures_are_those_of_numpy(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    one, other = random.normal(0, 1, (2, size)).astype(np.float32)
    measure, _ = found(held(one), held(other))
    wide, reference = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(wide) * np.linalg.norm(reference)
    assert measure.count == size
    assert measure.relative_rmse == pytest.approx(
        np.linalg.norm(wide - reference) / np.linalg.norm(reference), rel=1e-5
    )
    assert measure.max_error == pytest.approx(np.abs(one - other).max())
    assert measure.cosine == pytest.approx(wide @ reference / lengths, abs=1e-5)


def test_what_was_measured_of_pieces_adds_up() -> None:
    whole = Measured(count=64, error=1.0, max_error=2.0, worst=5.0, beyond=[0, 1])
    whole.add(Measured(count=32, error=0.5, max_error=3.0, worst=4.0, first_nonfinite=70))
    whole.add(Measured(count=32, first_nonfinite=99, beyond=[*range(MOST_KEPT)]))
    assert (whole.count, whole.error, whole.max_error, whole.worst) == (128, 1.5, 3.0, 5.0)
    assert whole.first_nonfinite == 70
    assert (len(whole.beyond), whole.beyond[:4]) == (MOST_KEPT, [0, 1, 0, 1])


@each("encoding", ["BF16", "F16", "Q8_0", "Q6_K", "Q4_K", "Q4_0", "Q2_K"])
def test_an_encoding_costs_what_it_should(encoding: str) -> None:
    for pair in [
        (held(NUMBERS, encoding), held(NUMBERS)),
        (held(NUMBERS), held(NUMBERS, encoding)),
    ]:
        measure, is_fine = found(*pair)
        assert is_fine
        assert measure.relative_rmse == pytest.approx(measure.expected, rel=0.5)


@each("bit", range(10, 16))
def test_a_flipped_bit_of_one_scale_is_beyond_what_q8_0_costs(bit: int) -> None:
    measure, is_fine = found(flipped("Q8_0", bit), held(NUMBERS))
    assert not is_fine
    assert measure.runs_beyond == 1
    assert measure.beyond == [3]


@each("bit", range(16))
def test_any_flipped_bit_of_a_scale_shows_between_tensors_of_one_encoding(bit: int) -> None:
    measure, is_fine = found(flipped("Q8_0", bit), held(NUMBERS, "Q8_0"))
    assert not is_fine
    assert measure.unequal == [3]


def flipped(encoding: str, bit: int) -> ReadableTensor:
    tensor = held(NUMBERS, encoding)
    raw = bytearray(tensor.info.nbytes)
    tensor.read_into(0, memoryview(raw))
    raw[3 * tensor.info.encoding.size + bit // 8] ^= 1 << bit % 8
    data = WeightData.stored(tensor.info, memoryview(bytes(raw)))
    return tensor_of(as_checkpoint({"w": data}).source, "w")


def test_another_rounding_of_the_same_numbers_is_not_a_fault() -> None:
    cut = (NUMBERS.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    _, is_fine = found(held(cut, "BF16"), held(NUMBERS, "BF16"))
    assert is_fine


def test_numbers_that_are_not_finite_on_one_side_make_errors_infinite() -> None:
    damaged = NUMBERS.copy()
    damaged[5, 7] = np.nan
    measure, is_fine = found(held(damaged), held(NUMBERS))
    assert not is_fine
    assert (measure.nonfinite, measure.first_nonfinite) == (1, 5 * 256 + 7)
    assert measure.relative_rmse == inf


def test_numbers_that_are_not_finite_alike_are_equal() -> None:
    damaged = NUMBERS.copy()
    damaged[0, :3] = np.nan, np.inf, -np.inf
    _, is_fine = found(held(damaged), held(damaged.copy()))
    assert is_fine


@each("factor", [1e-30, 1e30])
def test_the_size_of_numbers_does_not_matter(factor: float) -> None:
    numbers = (NUMBERS * np.float32(factor)).astype(np.float32)
    measure, is_fine = found(held(numbers * np.float32(1.5)), held(numbers))
    assert not is_fine
    assert measure.relative_rmse == pytest.approx(0.5, rel=1e-3)


@each("factor, is_damage", [(0.5, True), (2.0, True), (0.58, False)])
def test_a_factor_that_no_bit_of_a_scale_makes_is_an_encoders_choice(
    factor: float, is_damage: bool
) -> None:
    # Of a block in which one number matters more than all others, by an importance matrix.
    rounded = held(NUMBERS, "Q4_0")
    raw = bytearray(rounded.info.nbytes)
    rounded.read_into(0, memoryview(raw))
    scale = np.frombuffer(raw, np.float16, 1, 180)
    scale *= np.float16(factor)
    data = WeightData.stored(rounded.info, memoryview(raw))
    _, is_fine = found(tensor_of(as_checkpoint({"w": data}).source, "w"), held(NUMBERS))
    assert is_fine is not is_damage


@each("huge", [1e9, 1e12, -1e20, 3e38])
def test_one_huge_number_does_not_make_tensors_parallel(huge: float) -> None:
    damaged = NUMBERS.copy()
    damaged[3, 5] = huge
    wide, reference = damaged.astype(np.float64), NUMBERS.astype(np.float64)
    lengths = np.linalg.norm(wide) * np.linalg.norm(reference)
    measure, is_fine = found(held(damaged), held(NUMBERS))
    assert not is_fine
    assert measure.cosine == pytest.approx(np.vdot(wide, reference) / lengths, rel=1e-5)


def test_zeros_where_the_reference_has_zeros_are_not_a_fault() -> None:
    zeros = np.zeros((4, 32), np.float32)
    assert found(held(zeros), held(zeros))[1]
    measure, is_fine = found(held(zeros + 1), held(zeros))
    assert not is_fine
    assert measure.relative_rmse == inf


def test_an_empty_tensor_is_its_reference() -> None:
    empty = np.zeros((0, 32), np.float32)
    assert found(held(empty), held(empty))[1]


def test_a_sample_tells_tensors_apart() -> None:
    assert measure_sample(pair_of(held(NUMBERS), held(NUMBERS))) == 0
    assert measure_sample(pair_of(held(NUMBERS[::-1].copy()), held(NUMBERS))) > 1


# Tensors of two checkpoints are paired across naming conventions, without reading data.


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("pairing") / "tiny.gguf"
    assert not app(["convert", str(tiny_llama), str(out), "-q"], standalone_mode=False)
    return out


def pairing(one: Path, other: Path) -> Pairing:
    return pair_tensors(Subject(one), Subject(other))


def test_every_tensor_of_a_conversion_has_its_pair(gguf: Path, tiny_llama: Path) -> None:
    found = pairing(gguf, tiny_llama)
    assert len(found.pairs) == len(Subject(tiny_llama).weights.header.tensors)
    assert not found.missing
    assert not found.unexpected
    assert found.how == ("by the tensor names of llama in GGUF and in Hugging Face")


def test_rows_that_a_convention_permutes_are_in_one_order(gguf: Path, tiny_llama: Path) -> None:
    pair = pairing(gguf, tiny_llama).by_module["layers.1.attention.q.weight"]
    assert (pair.name, pair.reference_name) == (
        "blk.1.attn_q.weight",
        "model.layers.1.self_attn.q_proj.weight",
    )
    assert (pair.part, pair.layer) == ("attention.q.weight", 1)
    assert np.array_equal(numbers_of(pair.tensor), numbers_of(pair.reference))


def test_a_tensor_goes_to_the_other_convention_and_back(tiny_llama: Path) -> None:
    model = Subject(tiny_llama).checkpoint
    assert model is not None
    names = next(
        each
        for each in model.family.tensors(model.config)
        if each.module.endswith("attention.k.weight")
    )
    tensor = model.tensors[names.module]
    there = convert_convention(names, tensor, model, "gguf")
    assert convert_convention(names, tensor, model, "hugging_face") is tensor
    assert not np.array_equal(numbers_of(there), numbers_of(tensor))


def test_a_file_without_a_config_is_paired_as_the_family_of_the_other(
    tmp_path: Path, gguf: Path, tiny_llama: Path
) -> None:
    shutil.copy(tiny_llama / "model.safetensors", tmp_path)
    found = pairing(tmp_path / "model.safetensors", gguf)
    assert not found.missing
    assert len(found.pairs) == len(Subject(gguf).weights.header.tensors)


def test_checkpoints_of_no_family_are_paired_by_equal_names(tmp_path: Path) -> None:
    ones = np.ones((4, 4), np.float32)
    one = stored(tmp_path / "one.safetensors", **{"h.3.a": ones, "b": ones})
    other = stored(tmp_path / "other.safetensors", **{"h.3.a": ones, "c": ones})
    found = pairing(one, other)
    assert [(pair.name, pair.part, pair.layer) for pair in found.pairs] == [("h.3.a", "a", 3)]
    assert (found.missing, found.unexpected) == (["c"], ["b"])


def test_a_file_with_few_tensors_of_a_model_is_paired_by_equal_names(
    tmp_path: Path, tiny_llama: Path
) -> None:
    norm = open_weights(tiny_llama)["model.norm.weight"].data().astype("float32").to_numpy()
    names = ["model.norm.weight", "lm_head.weight", "mine.0", "mine.1"]
    few = stored(tmp_path / "few.safetensors", **dict.fromkeys(names, norm))
    found = pairing(few, tiny_llama)
    assert found.how == "by equal names"
    assert [pair.name for pair in found.pairs] == names[:2]
    assert found.unexpected == names[2:]
    assert find_mismatch(Subject(few), Subject(tiny_llama)) is None


def test_heads_are_the_references_where_the_configs_differ(
    tmp_path: Path, gguf: Path, tiny_llama: Path
) -> None:
    wrong = shutil.copytree(tiny_llama, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    config["num_attention_heads"] //= 2
    config["num_key_value_heads"] //= 2
    config.pop("head_dim", None)
    (wrong / "config.json").write_text(json.dumps(config))
    pair = pairing(wrong, gguf).by_module["layers.0.attention.q.weight"]
    assert np.array_equal(numbers_of(pair.tensor), numbers_of(pair.reference))


# The loss of an encoding is measured on the actual values, also for a whole model.


WEIGHTS = np.random.default_rng(8).normal(0, 0.02, 1 << 14).astype(np.float32)
KINDS = [
    encoding
    for encoding in ENCODINGS.values()
    if can_encode(encoding)
    and not encoding.needs_importance
    and (encoding.quantization or encoding.name in {"F16", "BF16"})
]


def side(name: str) -> PairSide:
    encoding = ENCODINGS[name]
    return PairSide(encoding, encoding.size * 8 / encoding.block)


@each("encoding", KINDS, ids=str)
def test_what_is_usual_is_what_random_weights_cost(encoding: object) -> None:
    found = side(str(encoding))
    through = found.through(WEIGHTS)
    assert through is not None
    error = np.linalg.norm(through - WEIGHTS) / np.linalg.norm(WEIGHTS)
    assert found.typical / 2.5 < error < found.typical * 2.5


def test_float32_costs_nothing() -> None:
    assert side("F32").keeps_all
    assert side("F32").through(WEIGHTS) is WEIGHTS


def test_what_cannot_be_encoded_without_importance_is_not_measured() -> None:
    assert side("IQ2_XXS").through(WEIGHTS) is None


def test_numbers_that_blocks_cannot_hold_are_not_measured() -> None:
    assert side("Q8_0").through(np.full(32, 3e38, np.float32)) is None


def test_a_weight_in_parts_costs_what_its_bits_do() -> None:
    apart = PairSide(ENCODINGS["F32"], 4.25)
    assert apart.is_apart
    assert apart.through(WEIGHTS) is None
    assert 0.05 < apart.typical < 0.2
    assert PairSide(ENCODINGS["F32"], 1.0).typical <= 1


@each("is_coarser", [True, False])
@each("model", ["gpt2", "tiny-llama"])
def test_weights_are_as_far_off_as_the_encoding_put_them(
    model: str, is_coarser: bool, healthy: Models
) -> None:
    paths = [healthy.gguf(model, "Q4_K"), healthy(model)]
    subject, reference = map(Subject, paths if is_coarser else paths[::-1])
    own, other = subject.checkpoint, reference.checkpoint
    assert own
    assert other
    matrices = [
        pair
        for pair in pair_tensors(subject, reference).pairs
        if pair.layer is not None and len(pair.tensor.info.shape) == 2
    ]
    assert matrices
    for pair in matrices:
        assert pair.names
        made = degrade(pair, own, other)
        assert made is not None, pair.name
        turned = convert_convention(pair.names, own.tensors[pair.module], own, other.convention)
        wanted = numbers_of(DerivedTensor(pair.module, AsFloat32(), [turned]))
        np.testing.assert_allclose(numbers_of(made), wanted, rtol=0, atol=1e-8, err_msg=pair.name)


@each("share, is_other", [(0.1, False), (0.9, True)])
def test_blocks_of_one_type_are_as_far_off_as_it_puts_them_if_most_were_rounded_otherwise(
    share: float, is_other: bool, healthy: Models, tmp_path: Path
) -> None:
    path, module = healthy.gguf("tiny-llama", "Q4_K"), "layers.0.mlp.up.weight"
    files = faults.read(path)
    blocks = files.numbers(module).reshape(-1, ENCODINGS["Q4_K"].size)
    blocks[: round(share * len(blocks)), -1] ^= 1
    files.put(module, blocks)
    subject, reference = Subject(files.write(tmp_path / "other.gguf")), Subject(path)
    own, other = subject.checkpoint, reference.checkpoint
    assert own
    assert other
    made = degrade(pair_tensors(subject, reference).by_module[module], own, other)
    assert (made is not None) == is_other


@each("is_coarser", [True, False])
def test_an_output_that_is_a_copy_of_the_embedding_costs_what_the_embedding_does(
    is_coarser: bool, healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy.gguf("gpt2"))
    embedding = files.numbers("embedding.weight")
    files.tensors["output.weight"] = WeightData.from_numpy(embedding, "output.weight")
    untied = files.write(tmp_path / "untied.gguf")
    assert "output.weight" in recognize(open_weights(untied)).tensors
    tied = healthy.gguf("gpt2", "Q4_K")
    assert_healthy(report_on(tied, untied) if is_coarser else report_on(untied, tied))


# Weights in several tensors that do not match.


_QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def misfit(tmp_path: Path) -> Subject:
    """A checkpoint of which nothing says how a weight is made of its parts."""

    def packed(arrays: small_models.Arrays) -> None:
        arrays[_QUERY] = arrays[_QUERY].astype(np.uint8)
        arrays[f"{_QUERY}_scale_inv"] = np.ones((1, 1), np.float32)

    (directory := tmp_path / "misfit").mkdir()
    return saved(directory, small_models.llama(num_hidden_layers=1), change=packed)


def test_parts_that_do_not_fit_are_one_problem(misfit: Subject) -> None:
    report = verify_request(Request(subject=misfit), ["structure", "finite", "names", "forward"])
    assert [problem.check for problem in report.problems] == ["finite"]
    assert f"{_QUERY}_scale_inv" in report.problems[0].text
    assert report.results["names"].skipped
    assert report.results["forward"].skipped
    assert not report.results["structure"].skipped


def test_a_reference_of_parts_that_do_not_fit_is_refused(misfit: Subject, tmp_path: Path) -> None:
    (directory := tmp_path / "whole").mkdir()
    subject = saved(directory, small_models.llama(num_hidden_layers=1))
    with pytest.raises(ConversionError, match="scale_inv"):
        verify_request(Request(subject=subject, reference=misfit), ["names"])
