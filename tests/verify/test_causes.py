"""A change of a tensor is identified by applying it to the reference."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import faults
from arrays import stored
from each import each
from faults import MISTAKES, Mistake, inject, of, swapped_rows
from tiny import SMALL, as_gguf, changed, make_small
from verdicts import explain, report_on
from weightctl import Plan, WeightData
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.verify import Explanation, Request, Subject, verify_request
from weightctl.verify.checks.values import check
from weightctl.verify.compare.configs import correct, find_differences, find_spelling
from weightctl.verify.compare.explaining import PATIENCE, explain_each
from weightctl.verify.compare.pairing import Samples, pair_tensors, take_sample
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.steps.rows import RowRange
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from crossing_fixtures import Models
    from families import Made
    from faults import Files
    from weightctl.families import RecognizedModel
    from weightctl.verify import Problem, Report
    from weightctl.verify.compare.pairing import Pairing

    Arrays = dict[str, Any]
    Array = np.ndarray[Any, Any]


RANDOM = np.random.default_rng(8)


def layer(number: int) -> Arrays:
    """Return the weights of a layer of no known family."""
    sizes = {"q": (64, 64), "down": (64, 128)}
    return {
        f"layers.{number}.{part}.weight": RANDOM.normal(0, 0.02, shape).astype(np.float32)
        for part, shape in sizes.items()
    } | {f"layers.{number}.norm.weight": RANDOM.uniform(0.5, 1.5, 64).astype(np.float32)}


HEALTHY = {name: array for number in range(4) for name, array in layer(number).items()}
Q, DOWN, NORM = (f"layers.1.{part}.weight" for part in ("q", "down", "norm"))


def problems_of(tmp_path: Path, changes: Arrays) -> tuple[Problem, ...]:
    own = stored(tmp_path / "own.safetensors", **(HEALTHY | changes))
    reference = stored(tmp_path / "reference.safetensors", **HEALTHY)
    return check(Request(subject=Subject(own), reference=Subject(reference))).problems


def _row_wiped(array: Any) -> Any:
    array[5] = 0
    return array


def _one_huge(array: Any) -> Any:
    array[7, 9] = 1e12
    return array


@each(
    "name, change, cause, text",
    [
        (Q, lambda array: array.T.copy(), "transposed", "rows and columns are swapped"),
        (Q, lambda array: array * 0, "zeroed", "all its values are 0"),
        (Q, _row_wiped, "rows_lost", "row 5 is zeros"),
        (Q, lambda array: array / 2, "scaled", "0.5 times"),
        (Q, lambda array: -array, "scaled", "-1 times"),
        (Q, lambda array: array * np.float32(4 / 3), "scaled", "1.33 times"),
        (Q, lambda array: np.roll(array, 1, 0), "shifted", "after"),
        (NORM, lambda array: array - 1, "norm_offset", "1 too small"),
        (NORM, lambda array: array + 1, "norm_offset", "1 too large"),
        (DOWN, lambda _: HEALTHY["layers.3.down.weight"], "layers_exchanged", "of layer 3"),
    ],
)
@each("dtype", [np.float32, np.float16])
def test_a_mistake_is_named(
    tmp_path: Path, name: str, change: Callable[[Any], Any], cause: str, text: str, dtype: type
) -> None:
    changed = change(HEALTHY[name].copy()).astype(dtype)
    (problem,) = problems_of(tmp_path, {name: changed})
    assert problem.where == name
    assert problem.cause is not None
    assert problem.cause.name == cause
    assert text in problem.cause.text


def test_one_huge_number_is_not_a_factor_of_all(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, {Q: _one_huge(HEALTHY[Q].copy())})
    assert problem.cause is None


def test_random_numbers_have_no_cause(tmp_path: Path) -> None:
    other = RANDOM.normal(0, 0.02, (64, 64)).astype(np.float32)
    (problem,) = problems_of(tmp_path, {Q: other})
    assert problem.where == Q
    assert problem.cause is None


def test_many_tensors_with_one_cause_are_told_as_one(tmp_path: Path) -> None:
    zeros = {name: np.zeros_like(array) for name, array in HEALTHY.items()}
    (problem,) = problems_of(tmp_path, zeros)
    assert problem.cause is not None
    assert problem.text.endswith(
        "; in all, 12 tensors differ in this way: q, down, norm of layers 0 to 3"
    )


def test_a_part_that_is_wiped_is_not_a_factor_of_all(tmp_path: Path) -> None:
    data = WeightData.from_numpy(HEALTHY[DOWN], DOWN)
    kind = ENCODINGS["Q4_0"]
    raw = transcode(HEALTHY[DOWN].view(np.uint8), ENCODINGS["F32"], kind).raw.copy().reshape(-1)
    raw[90:360] = 0  # part of one row, and the next three
    blocks = WeightData.stored(data.info._replace(encoding=kind), memoryview(raw.tobytes()))
    own = tmp_path / "own.gguf"
    save(Plan.copy(as_checkpoint({DOWN: blocks}), "gguf"), own)
    reference = stored(tmp_path / "reference.safetensors", **{DOWN: HEALTHY[DOWN]})
    (problem,) = check(Request(subject=Subject(own), reference=Subject(reference))).problems
    assert problem.cause is not None
    assert problem.cause.name == "rows_lost"


# The causes of tools' mistakes are named in every family, in both naming conventions.


def expert_copied(files: Files) -> tuple[str, ...]:
    names: list[str] = []
    for part in ("gate", "up", "down"):
        copy, copied = (of(f"mlp.experts.{number}.{part}.weight") for number in (2, 0))
        numbers = files.numbers(copied)
        if files.is_gguf:
            numbers[2] = numbers[0]
        names.append(files.put(copy, numbers))
    return tuple(names)


def experts_swapped(files: Files) -> tuple[str, ...]:
    one, other = (of(f"mlp.experts.{number}.down.weight") for number in (1, 2))
    if not files.is_gguf:
        return files.exchange(one, other)
    return (files.put(one, swapped_rows(files.numbers(one), 1, 2, 1)),)


def in_outputs(module: str, change: Callable[[Array], Array]) -> Callable[[Files], tuple[str, ...]]:
    """Return what changes the outputs of a layer, and its bias where it has one."""

    def hurt(files: Files) -> tuple[str, ...]:
        names: list[str] = []
        for kind in ("weight", "bias"):
            if files.has(of(f"{module}.{kind}")):
                array = files.numbers(of(f"{module}.{kind}"))
                is_turned = (
                    files.model.family.name == "gpt2" and not files.is_gguf and array.ndim > 1
                )
                new = change(array.T).T if is_turned else change(array)
                names.append(files.put(of(f"{module}.{kind}"), np.ascontiguousarray(new)))
        return tuple(names)

    return hurt


def key_heads_of_gpt2(array: Array) -> Array:
    """Swap the first two of 4 heads in the second third of the rows."""
    return swapped_rows(array, 4, 5, len(array) // 12)


def rows_by_turns(array: Array) -> Array:
    return np.stack(np.split(array, 2), 1).reshape(array.shape)


def norms(one: str, other: str) -> Callable[[Files], tuple[str, ...]]:
    def hurt(files: Files) -> tuple[str, ...]:
        kinds = [kind for kind in ("weight", "bias") if files.has(of(f"{one}.{kind}"))]
        return tuple(
            name
            for kind in kinds
            for name in files.exchange(of(f"{one}.{kind}"), of(f"{other}.{kind}"))
        )

    return hurt


CASES: list[tuple[str, Callable[[Files], tuple[str, ...]], str, str]] = [
    ("mixtral", expert_copied, "expert_copied", "expert 2 is a copy of expert 0"),
    ("mixtral", experts_swapped, "expert_order", "another order"),
    ("phi3", in_outputs("mlp.gate_up", rows_by_turns), "gate_and_up_interleaved", "interleaved"),
    ("gpt2", in_outputs("attention.qkv", key_heads_of_gpt2), "heads_exchanged",
     "key heads 0 and 1"),
    ("bert", in_outputs("attention.v", lambda rows: swapped_rows(rows, 1, 2, len(rows) // 4)),
     "heads_exchanged", "value heads 1 and 2"),
    ("bert", norms("attention_norm", "mlp_norm"), "norms_exchanged", "are swapped"),
    ("gemma2", norms("post_attention_norm", "post_mlp_norm"), "norms_exchanged", "are swapped"),
]  # fmt: skip


@each("form", ["directory", "gguf"], in_turn=True)
@each("name, hurt, cause, text", CASES)
def test_a_mistake(
    name: str,
    hurt: Callable[[Files], tuple[str, ...]],
    cause: str,
    text: str,
    form: str,
    family: Callable[[str], families.Made],
    gguf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    is_gguf = form == "gguf"
    files = faults.read(gguf(name) if is_gguf else family(name).path)
    where = hurt(files)
    path = files.write(tmp_path / ("a.gguf" if is_gguf else "a"))
    report = report_on(path, family(name).path, ["values"])
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    for problem in report.problems:
        assert problem.cause is not None, explain(report)
        assert problem.cause.name == cause, explain(report)
        assert text in problem.cause.text, explain(report)


MODEL = "tiny-llama"


def made(source: Path, out: Path, mistake: Mistake) -> tuple[Path, tuple[str, ...]]:
    files = faults.read(source)
    where = mistake.hurt(files)
    return files.write(out), where


def assert_caused(report: Report, where: tuple[str, ...], mistake: Mistake) -> None:
    """Fail where not exactly what was changed is named, each with its cause."""
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    for problem in report.problems:
        assert problem.cause is not None, explain(report)
        assert problem.cause.name == mistake.cause, explain(report)
        assert mistake.text in problem.cause.text


# What the mistake is made in, and what it is compared with; nothing is the directory in bf16.
SIDES = [("", ""), ("f32", ""), ("bf16", "Q4_K"), ("", "Q8_0")]


@each("name", MISTAKES, in_turn=True)
@each("kind, reference", SIDES)
def test_a_mistake_in_a_convention(
    name: str, kind: str, reference: str, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf(MODEL, kind) if kind else healthy(MODEL)
    against = healthy.gguf(MODEL, reference) if reference else healthy(MODEL)
    path, where = made(source, tmp_path / ("a.gguf" if kind else "a"), MISTAKES[name])
    assert_caused(report_on(path, against, ["values"]), where, MISTAKES[name])


@each("kind", ["Q4_K"])
# NaN, of which swapped bytes make many, has no place in blocks.
@each("name", sorted(MISTAKES.keys() - {"bytes swapped"}))
def test_a_mistake_that_was_quantized(
    name: str, kind: str, healthy: Models, tmp_path: Path
) -> None:
    path, _ = made(healthy(MODEL), tmp_path / "a", MISTAKES[name])
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", kind)
    report = report_on(quantized, healthy(MODEL), ["values"])
    causes = {problem.cause and problem.cause.name for problem in report.problems}
    assert causes == {MISTAKES[name].cause}, explain(report)


READ_AS = [("bf16", np.float16), ("f16", ml_dtypes.bfloat16)]


@each("kind, stored", READ_AS, in_turn=True)
@each("is_widened", [False, True])
@each("reference", ["bf16", "Q8_0", "Q4_K"])
def test_bits_of_another_dtype(
    kind: str, stored: Any, is_widened: bool, reference: str, healthy: Models, tmp_path: Path
) -> None:
    module = of("mlp.down.weight")
    files = faults.read(healthy.gguf(MODEL, kind))
    right = faults.read(healthy.gguf(MODEL, "bf16")).numbers(module)
    misread = right.astype(stored).view(files.numbers(module).dtype)
    if is_widened:
        files = faults.read(healthy.gguf(MODEL, "f32"))
    where = files.put(module, misread)
    report = report_on(files.write(tmp_path / "a.gguf"), healthy.gguf(MODEL, reference), ["values"])
    names = {np.float16: "F16", ml_dtypes.bfloat16: "BF16"}
    text = f"those of {names[stored]} values, but were read as {kind.upper()}"
    assert_caused(report, (where,), Mistake(lambda _: (), "wrong_dtype", text))


def test_bits_of_another_dtype_are_named_after_they_were_quantized(
    healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy(MODEL))
    module = of("mlp.down.weight")
    files.put(module, files.numbers(module).view(np.float16))
    path = files.write(tmp_path / "a")
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", "Q8_0")
    (problem,) = report_on(quantized, healthy(MODEL), ["values"]).problems
    assert problem.cause is not None
    assert problem.cause.name == "wrong_dtype"


# Config keys that cause differences, and where checkpoints state them.


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def _half_turned(checkpoint: RecognizedModel) -> RecognizedModel:
    """Return a checkpoint whose config.json states that half of each head is rotated."""
    rotations = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return changed(checkpoint, rope_parameters=rotations)


def _keys(subject: RecognizedModel, reference: RecognizedModel) -> list[str]:
    return [each.problem.where for each in find_differences(subject, reference)]


@pytest.fixture(scope="module")
def llama() -> RecognizedModel:
    return make_small("llama", head_dim=16)


@each("family", SMALL)
def test_a_model_in_both_conventions_has_one_config(family: str) -> None:
    checkpoint = make_small(family)
    gguf = as_gguf(checkpoint)
    assert _keys(checkpoint, gguf) == _keys(gguf, checkpoint) == []


@each(
    "key, value, in_gguf",
    [
        ("rms_norm_eps", 1e-2, "llama.attention.layer_norm_rms_epsilon"),
        ("num_attention_heads", 8, "llama.attention.head_count"),
        ("num_hidden_layers", 1, "llama.block_count"),
    ],
)
def test_a_key_that_differs_is_named_as_the_checkpoint_spells_it(
    llama: RecognizedModel, key: str, value: float, in_gguf: str
) -> None:
    other = changed(llama, **{key: value})
    assert _keys(other, llama) == [key]
    assert _keys(as_gguf(llama), other) == [in_gguf]


def test_the_cause_has_both_values(llama: RecognizedModel) -> None:
    (found,) = find_differences(changed(llama, rms_norm_eps=1e-2), llama)
    cause = found.problem.cause
    assert cause is not None
    assert cause.name == "config"
    assert "is 0.01 here and 1e-06 in the reference" in cause.text
    assert found.problem.text == "differs from the reference"


def test_a_value_that_follows_from_one_that_differs_is_not_told(llama: RecognizedModel) -> None:
    other = changed(llama, num_attention_heads=2, num_key_value_heads=1, head_dim=None)
    assert _keys(other, llama) == ["num_attention_heads", "num_key_value_heads"]


def test_a_part_of_a_head_that_is_turned_is_reported() -> None:
    checkpoint = make_small("phi3")
    other = _half_turned(checkpoint)
    made = correct(other, find_differences(other, checkpoint))
    assert made is not None
    assert made.config == checkpoint.config != other.config


def test_a_rotation_in_older_words_is_told_in_these(llama: RecognizedModel) -> None:
    older = changed(llama, rope_parameters=None, rope_theta=500.0)
    assert _keys(older, llama) == ["rope_theta"]


def test_rotations_stretched_alike_are_alike_whichever_way_that_is_written() -> None:
    checkpoint = make_small("llama", rope_parameters=LLAMA3)
    gguf = as_gguf(checkpoint)
    assert _keys(checkpoint, gguf) == _keys(gguf, checkpoint) == []


def test_rotations_stretched_otherwise_are_reported() -> None:
    checkpoint = make_small("llama", rope_parameters=LLAMA3)
    other = changed(checkpoint, rope_parameters=LLAMA3 | {"factor": 4.0})
    assert _keys(other, checkpoint) == ["rope_parameters.factor"]


def test_the_length_of_texts_changes_nothing_where_positions_have_no_table(
    llama: RecognizedModel,
) -> None:
    assert _keys(changed(llama, max_position_embeddings=99), llama) == []


def test_a_corrected_checkpoint_has_the_references_config(llama: RecognizedModel) -> None:
    other = changed(llama, num_attention_heads=2, num_key_value_heads=1, head_dim=None)
    made = correct(other, find_differences(other, llama))
    assert made is not None
    assert made.config == llama.config


SHARE = "rope_parameters.partial_rotary_factor"


def compare(subject: RecognizedModel, reference: RecognizedModel) -> dict[str, str]:
    problems = [each.problem for each in find_differences(subject, reference)]
    return {each.where: "" if each.cause is None else each.cause.text for each in problems}


def _words(checkpoint: RecognizedModel) -> set[str]:
    """Return the keys of a family in a checkpoint's convention, without what they stand in."""
    lines = checkpoint.family.keys
    if checkpoint.convention == "gguf":
        keys = {key.gguf.format(arch=checkpoint.family.gguf_name) for key in lines}
        seen = {key.seen.tensor for key in lines if key.seen is not None}
        return keys | seen | {"general.architecture"}
    return {key.hugging_face.split(".")[-1] for key in lines} | {"model_type"}


@each("convention", ["hugging_face", "gguf"])
@each("family", SMALL)
def test_each_field_is_told_by_a_key_of_the_convention(family: str, convention: str) -> None:
    checkpoint = make_small(family, convention)
    config: Any = checkpoint.config
    names = [each.name for each in fields(config)]
    names += [key.field for key in checkpoint.family.keys if key.field.startswith("scaling.")]
    keys = {name: find_spelling(checkpoint, name).key for name in names}
    words = _words(checkpoint) - {""}
    is_plain = convention == "gguf"
    wrong = {
        name: key
        for name, key in keys.items()
        if (key if is_plain else key.split(".")[-1]) not in words
    }
    assert not wrong


def test_a_share_of_a_head_is_told_by_its_key() -> None:
    checkpoint = make_small("phi3")
    half = _half_turned(checkpoint)
    assert compare(half, checkpoint) == {SHARE: f"`{SHARE}` is 0.5 here and 1 in the reference"}
    older = changed(checkpoint, rope_parameters=None, partial_rotary_factor=0.5)
    assert list(compare(older, checkpoint)) == ["partial_rotary_factor"]


def test_a_share_and_the_number_that_it_makes_are_told_as_each_says_it() -> None:
    checkpoint = make_small("phi3")
    half = _half_turned(checkpoint)
    share = f"`{SHARE}` sets the rope dimensions to 8"
    count = "`phi3.rope.dimension_count` is 16"
    gguf = as_gguf(checkpoint)
    assert compare(half, gguf) == {SHARE: f"{share}, and {count} in the reference"}
    assert compare(gguf, half) == {
        "phi3.rope.dimension_count": f"{count}, and {share} in the reference"
    }


def test_a_share_of_a_head_is_reported_beside_other_keys() -> None:
    checkpoint = make_small("phi3")
    both = changed(_half_turned(checkpoint), rms_norm_eps=1e-2)
    assert sorted(compare(both, checkpoint)) == ["rms_norm_eps", SHARE]


def test_what_no_key_of_gguf_says_is_told_by_the_architecture() -> None:
    checkpoint = make_small("llama")
    differences = compare(as_gguf(checkpoint), changed(checkpoint, hidden_act="relu"))
    assert differences == {
        "general.architecture": "`general.architecture` sets the activation to 'silu', "
        "and `hidden_act` is 'relu' in the reference"
    }


def test_two_fields_that_one_key_says_are_reported_once() -> None:
    checkpoint = make_small("gemma3")
    wider = changed(checkpoint, sliding_window=checkpoint.document["sliding_window"] * 2)
    one, other = as_gguf(checkpoint), as_gguf(wider)
    assert list(compare(one, other)) == ["gemma3.attention.sliding_window"]
    made = correct(one, find_differences(one, other))
    assert made is not None
    assert made.config == other.config


def test_factors_that_gguf_has_in_a_tensor_are_told_by_that() -> None:
    checkpoint = make_small("llama", rope_parameters=LLAMA3)
    other = changed(checkpoint, rope_parameters=LLAMA3 | {"low_freq_factor": 2.0})
    assert list(compare(as_gguf(checkpoint), other)) == ["rope_freqs.weight"]


# In a block that differs, only the tensors that cause the difference are named.


def texts(path: Path, reference: Path) -> dict[str | None, str]:
    """Return what is said of what is named."""
    report = report_on(path, reference, ["forward"])
    assert report.problems, explain(report)
    return {problem.where: problem.text for problem in report.problems}


def test_every_problem_says_which_check_found_it(healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "zeroed")
    report = report_on(injected.path, healthy("tiny-llama"))
    found = {name: result.problems for name, result in report.results.items() if result.problems}
    assert found.keys() == {"finite", "values", "forward"}
    assert all({each.check for each in found[name]} == {name} for name in found)


def test_one_expert_is_named_and_not_those_beside_it(
    family: Callable[[str], Made], tmp_path: Path
) -> None:
    files = faults.read(family("mixtral").path)
    expert = next(each for each in files.modules("layers.1.") if "experts.2." in each)
    where = files.put(expert, -files.numbers(expert))
    assert [*texts(files.write(tmp_path / "model"), family("mixtral").path)] == [where]


def test_what_the_check_of_values_has_found_is_not_looked_for_again(
    healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "zeroed")
    request = Request(
        subject=Subject(injected.path), reference=Subject(healthy("tiny-llama")), tokens=(5, 6, 7)
    )
    (found,) = verify_request(request, ["values"]).problems
    pairs = {pair.name: pair for pair in request.pairing.pairs}
    assert request.pairing.within.keys() == request.pairing.by_module.keys()
    assert request.pairing.causes == {pairs[found.where].module: found.cause}
    # As if it had been another.
    request.pairing.causes[pairs[found.where].module] = Explanation("told", "so it was told")
    (again,) = verify_request(request, ["forward"]).problems
    assert (again.where, again.cause) == (found.where, ("told", "so it was told"))


def test_what_was_to_blame_for_a_block_before_is_not_named_where_it_is_well(
    healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy("tiny-llama"))
    output, down = (f"layers.0.{part}.weight" for part in ("attention.o", "mlp.down"))
    later = "layers.1.mlp.down.weight"
    for module in (output, down, later):
        files.put(module, files.numbers(module)[::-1])
    found = texts(files.write(tmp_path / "model"), healthy("tiny-llama"))
    both = f"`{files.where(output)}` and `{files.where(down)}` are replaced by those of the"
    assert found.keys() == {files.where(each) for each in (output, down, later)}
    assert all(both in found[files.where(each)] for each in (output, down))
    assert found[files.where(later)].endswith(
        "; it matches if this tensor is replaced by that of the reference"
    )


@each("layers, count", [(1, 2), (3, 1)])
def test_tensors_with_one_cause_count_the_same_in_values_and_forward(
    layers: int, count: int, healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy("tiny-llama"))
    for layer in range(layers):
        gate, up = (f"layers.{layer}.mlp.{part}.weight" for part in ("gate", "up"))
        numbers = [files.numbers(each) for each in (gate, up)]
        for name, swapped in zip((up, gate), numbers, strict=True):
            files.put(name, swapped)
    path = files.write(tmp_path / "model")
    report = report_on(path, healthy("tiny-llama"), ["values", "forward"])
    counts = [len(result.problems) for result in report.results.values()]
    assert counts == [count, count], explain(report)


# A difference that no known mistake explains has no cause, and the search for one ends.


ROWS, COLUMNS = 192, 160
MATRIX = RANDOM.normal(0, 0.02, (ROWS, COLUMNS)).astype(np.float32)


def noise(size: float, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Array:
    return RANDOM.normal(0, size, shape).astype(np.float32)


def problem_of(tmp_path: Path, own: Array, **bars: Any) -> Problem:
    paths = [
        stored(tmp_path / f"{name}.safetensors", **{"layers.0.w.weight": array})
        for name, array in (("own", own), ("reference", MATRIX))
    ]
    subject, reference = map(Subject, paths)
    (problem,) = check(Request(subject=subject, reference=reference, **bars)).problems
    return problem


def trained(array: Array) -> Array:
    """Add a change in all directions, some of which matter more."""
    directions = np.exp(-np.arange(COLUMNS) / 60)
    turned = np.linalg.qr(noise(1, (COLUMNS, COLUMNS)))[0]
    return array + (noise(0.003) * directions) @ turned


def columns_lost(array: Array) -> Array:
    """Put random numbers in two columns: a change of rank 2, and not an adapter."""
    array[:, [7, 90]] = noise(0.02, (ROWS, 2))
    return array


def one_limited(array: Array) -> Array:
    """Make the greatest number what the second greatest is, as if it was clipped."""
    flat = array.reshape(-1)
    second, first = np.argsort(flat)[-2:]
    flat[first] = flat[second]
    return array


def rows_drawn_anew(array: Array) -> Array:
    array[[3, 50, 51]] = noise(0.02, (3, COLUMNS))
    return array


def reordered_and_damaged(array: Array) -> Array:
    """Swap rows, and change another."""
    array[[4, 9]] = array[[9, 4]]
    array[100] += noise(0.02, (COLUMNS,))
    return array


@each(
    "change",
    [
        lambda array: array + noise(0.0002),
        lambda array: array + noise(0.002),
        lambda array: array + noise(0.02),
        trained,
        columns_lost,
        one_limited,
        rows_drawn_anew,
        reordered_and_damaged,
    ],
    ids=[
        "little noise", "noise", "as much noise", "trained", "columns lost", "one limited",
        "rows drawn anew", "reordered and damaged",
    ],
)  # fmt: skip
@each("dtype", [np.float32, np.float16])
def test_no_cause(tmp_path: Path, change: Callable[[Array], Array], dtype: type) -> None:
    problem = problem_of(tmp_path, change(MATRIX.copy()).astype(dtype))
    assert problem.cause is None, problem.cause


def test_a_limit_below_what_an_encoding_costs_has_no_cause(tmp_path: Path) -> None:
    own = MATRIX.astype(np.float16)
    assert problem_of(tmp_path, own, max_rmse=1e-6).cause is None


@each("rank", [1, 8, 20])
def test_the_rank_of_an_adapter_is_what_it_was(tmp_path: Path, rank: int) -> None:
    change = noise(0.01, (ROWS, rank)) @ noise(0.1, (rank, COLUMNS))
    cause = cause_of(problem_of(tmp_path, MATRIX + change))
    assert cause.name == "low_rank"
    assert f"of rank {rank} was" in cause.text
    assert "100 %" in cause.text


def test_clipping_says_the_limit_and_how_many_are_beyond_it(tmp_path: Path) -> None:
    cause = cause_of(problem_of(tmp_path, MATRIX.clip(-0.03125, 0.03125)))
    beyond = int(np.count_nonzero(np.abs(MATRIX) > 0.03125))
    assert cause.name == "clipped"
    assert f"±0.0312: {beyond:,} of {MATRIX.size:,}" in cause.text


def test_clipping_of_one_side_says_which(tmp_path: Path) -> None:
    cause = cause_of(problem_of(tmp_path, np.minimum(MATRIX, np.float32(0.03125))))
    assert cause.name == "clipped"
    assert "at most 0.0312" in cause.text


@each("dtype", [np.float32, np.float16])
def test_swapped_bytes_are_named_in_any_plain_type(tmp_path: Path, dtype: type) -> None:
    cause = cause_of(problem_of(tmp_path, MATRIX.astype(dtype).byteswap()))
    assert cause.name == "byte_order"


def cause_of(problem: Problem) -> Explanation:
    assert problem.cause is not None
    return problem.cause


COUNT = PATIENCE + 20


def _matrices() -> dict[str, Any]:
    return {
        f"layers.{number}.w.weight": RANDOM.normal(0, 1, (32, 64)).astype(np.float32)
        for number in range(COUNT)
    }


def _pairing(tmp_path: Path, own: dict[str, Any], reference: dict[str, Any]) -> Pairing:
    paths = [
        stored(tmp_path / f"{n}.safetensors", **each) for n, each in enumerate((own, reference))
    ]
    subject, other = map(Subject, paths)
    return pair_tensors(subject, other)


def test_no_cause_is_looked_for_once_many_had_none(tmp_path: Path) -> None:
    pairing = _pairing(tmp_path, _matrices(), _matrices())
    assert explain_each(pairing.pairs, pairing) == [None] * COUNT
    assert len(pairing.causes) == PATIENCE


def test_a_tensor_that_is_explained_gives_hope_for_the_next(tmp_path: Path) -> None:
    reference = _matrices()
    own = _matrices()
    names = list(own)
    for name in (names[PATIENCE - 1], names[-1]):
        own[name] = reference[name] / 2
    pairing = _pairing(tmp_path, own, reference)
    causes = explain_each(pairing.pairs, pairing)
    scaled = [number for number, cause in enumerate(causes) if cause and cause.name == "scaled"]
    assert scaled == [PATIENCE - 1, COUNT - 1]


def test_a_sample_is_kept_for_the_tensor_that_it_is_of(tmp_path: Path) -> None:
    pairing = _pairing(tmp_path, _matrices(), _matrices())
    samples = Samples()
    first = pairing.pairs[0].reference
    kept = samples.of(first)
    assert samples.of(first) is kept
    for number in range(1000):
        # Each is gone before the next is made.
        pair = pairing.pairs[number % COUNT]
        part = DerivedTensor("part", RowRange(1, 5), [pair.reference])
        assert np.array_equal(samples.of(part), take_sample(part))
    assert np.array_equal(samples.of(first), kept)


# Rows, and parts of rows, that are zeros are detected by their values.


NAME, WIDTH = "layers.1.down.weight", 256
FULL = RANDOM.normal(0, 0.02, (64, WIDTH)).astype(np.float32)


def problem_of_rows(tmp_path: Path, own: Any, reference: Any = FULL, kind: str = "F32") -> Problem:
    """Return what is found where a tensor, in an encoding, stands for the reference."""
    data = WeightData.from_numpy(own, NAME)
    raw = transcode(own.view(np.uint8), ENCODINGS["F32"], ENCODINGS[kind]).raw
    info = data.info._replace(encoding=ENCODINGS[kind])
    held = WeightData.stored(info, memoryview(raw.tobytes()))
    save(Plan.copy(as_checkpoint({NAME: held}), "gguf"), tmp_path / "own.gguf")
    other = stored(tmp_path / "reference.safetensors", **{NAME: reference})
    request = Request(subject=Subject(tmp_path / "own.gguf"), reference=Subject(other))
    (problem,) = check(request).problems
    return problem


def wiped(*places: Any) -> Any:
    """Return the tensor with zeros in some places."""
    array = FULL.copy()
    for place in places:
        array[place] = 0
    return array


def cause_of_rows(problem: Problem) -> tuple[str, str]:
    return ("", "") if problem.cause is None else (problem.cause.name, problem.cause.text)


@each("kind", ["F32", "BF16", "Q8_0", "Q4_K", "Q3_K", "Q2_K"], in_turn=True)
@each(
    "places, message",
    [
        ([slice(3, 21)], "rows 3-20 are zeros"),
        ([slice(1, 2), slice(5, 10), slice(20, 21)], "rows 1, 5-9, 20 are zeros"),
        ([slice(0, 48)], "rows 0-47 are zeros"),
        ([slice(0, 64, 4)], "rows 0, 4, 8, 12, 16 and 11 more are zeros"),
    ],
)
def test_rows_of_zeros_are_told_by_their_numbers(
    tmp_path: Path, places: list[slice], message: str, kind: str
) -> None:
    name, text = cause_of_rows(problem_of_rows(tmp_path, wiped(*places), kind=kind))
    assert name == "rows_lost"
    assert text == f"{message}: never written, or erased"


@each("kind", ["F32", "BF16", "Q8_0", "Q6_K", "Q4_K", "Q3_K", "Q2_K"])
def test_one_row_of_zeros_is_named_in_the_coarsest_encoding(tmp_path: Path, kind: str) -> None:
    problem = problem_of_rows(tmp_path, wiped(7), kind=kind)
    assert problem.where == NAME
    assert "in row 7 differ" in problem.text


@each("kind", ["F32", "BF16", "Q8_0"])
@each(
    "places, message",
    [
        ([(7, slice(64, 200))], "part of row 7 is zeros"),
        ([(slice(4, 7), slice(0, 64))], "parts of rows 4-6 are zeros"),
        ([(5, slice(40, 256)), slice(6, 9), (9, slice(0, 70))],
         "rows 6-8 and parts of rows 5, 9 are zeros"),
    ],
)  # fmt: skip
def test_rows_that_are_zeros_in_part_are_told_too(
    tmp_path: Path, places: list[Any], message: str, kind: str
) -> None:
    name, text = cause_of_rows(problem_of_rows(tmp_path, wiped(*places), kind=kind))
    assert name == "rows_lost"
    assert text == f"{message}: never written, or erased"


def test_of_a_large_tensor_all_rows_are_counted(tmp_path: Path) -> None:
    large = RANDOM.normal(0, 0.02, (3000, 512)).astype(np.float32)
    own = large.copy()
    own[1000:2900] = 0
    assert cause_of_rows(problem_of_rows(tmp_path, own, large))[1].startswith(
        "rows 1000-2899 are zeros"
    )


def test_rows_that_are_empty_in_the_reference_too_are_not_told(tmp_path: Path) -> None:
    reference = wiped(slice(10, 20))
    own = wiped(slice(10, 20), slice(30, 32))
    assert cause_of_rows(problem_of_rows(tmp_path, own, reference))[1].startswith(
        "rows 30-31 are zeros"
    )


@each("huge", [1.0, 1e12, 3e38])
def test_zeros_are_not_to_blame_where_more_is_wrong(tmp_path: Path, huge: float) -> None:
    own = wiped(slice(3, 6))
    own[40, 8] = huge
    assert cause_of_rows(problem_of_rows(tmp_path, own))[0] != "rows_lost"
