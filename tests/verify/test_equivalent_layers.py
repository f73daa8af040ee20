"""Units in the same other order on both sides of a layer are not a problem, but a note."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import families
import faults
from arrays import stored
from crossing_fixtures import SMALL
from each import each, usual
from faults import Injected, heads_permuted, inject, of, swapped_rows, units_permuted
from verdicts import assert_healthy, assert_named, explain, report_on
from weightctl.dtype import ENCODINGS
from weightctl.verify import Request, Subject
from weightctl.verify.checks.values import check
from weightctl.verify.compare.pairing import PairSide

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossing_fixtures import Models
    from faults import Files
    from weightctl.verify import Problem

    Family = Callable[[str], families.Made]
    Arrays = dict[str, Any]


MODEL = "tiny-llama"
SAME = "the model computes the same"
UNITS, HEADS = "inner units of its MLP", "attention heads"


def written(source: Path, out: Path, permute: Callable[..., Any], *layers: int) -> Path:
    files = faults.read(source)
    for layer in layers:
        permute(files, layer)
    return files.write(out)


def assert_noted(path: Path, reference: Path, text: str) -> None:
    """Fail where something is said to be wrong, or it is not noted why nothing is."""
    report = report_on(path, reference)
    assert_healthy(report)
    notes = [note for note in report.notes if SAME in note]
    assert len(notes) == 1, explain(report)
    assert text in notes[0]


def all_units(prefix: str, files: Files, layer: int) -> None:
    """Reverse the inner units of an MLP, in whatever form a family has it."""
    modules = files.modules(of(prefix, layer))
    for module in modules:
        part = module.removeprefix(of(prefix, layer))
        array = files.numbers(module)
        is_turned = not files.is_gguf and files.model.family.name == "gpt2" and array.ndim == 2
        rows = array.T if is_turned else array
        if part.startswith("gate_up."):
            rows = np.concatenate([half[::-1] for half in np.split(rows, 2)])
        elif part in {"gate.weight", "gate.bias", "up.weight", "up.bias"}:
            rows = rows[::-1]
        elif part == "down.weight":
            rows = rows[:, ::-1]
        files.put(module, rows.T if is_turned else rows)


@each("form", ["directory", "gguf"], in_turn=True)
@each("permute, text", [(units_permuted, UNITS), (heads_permuted, HEADS)])
def test_of_a_llama(
    permute: Callable[..., Any], text: str, form: str, healthy: Models, tmp_path: Path
) -> None:
    is_gguf = form == "gguf"
    source = healthy.gguf(MODEL, "f32") if is_gguf else healthy(MODEL)
    path = written(source, tmp_path / ("a.gguf" if is_gguf else "a"), permute, 0, 1)
    assert_noted(path, healthy(MODEL), text)


@each("kind", ["Q8_0", "Q4_K"], in_turn=True)
@each("permute", [units_permuted, heads_permuted])
def test_of_a_quantized_model(
    permute: Callable[..., Any], kind: str, healthy: Models, tmp_path: Path
) -> None:
    path = written(healthy(MODEL), tmp_path / "a", permute, 1)
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", kind)
    assert_noted(quantized, healthy(MODEL), SAME)
    assert_noted(path, healthy.gguf(MODEL, kind), SAME)


@each("name", usual(["gpt2", "phi3"], ["gpt2", "bert", "phi3", "gemma2"]))
def test_of_other_families(name: str, family: Family, tmp_path: Path) -> None:
    source = family(name).path
    path = written(source, tmp_path / "a", partial(all_units, "mlp."), 0, 1)
    assert_noted(path, source, UNITS)


def test_of_one_expert(family: Family, tmp_path: Path) -> None:
    source = family("mixtral").path
    path = written(source, tmp_path / "a", partial(all_units, "mlp.experts.2."), 1)
    assert_noted(path, source, UNITS)


def experts_swapped(files: Files, layer: int, *, with_router: bool = True) -> None:
    for part in ("gate", "up", "down"):
        one, other = (of(f"mlp.experts.{number}.{part}.weight", layer) for number in (0, 3))
        if files.is_gguf:
            files.put(one, swapped_rows(files.numbers(one), 0, 3, 1))
        else:
            files.exchange(one, other)
    if with_router:
        router = of("mlp.router.weight", layer)
        files.put(router, swapped_rows(files.numbers(router), 0, 3, 1))


@each("form", ["directory", "gguf"])
def test_of_experts_and_their_router(
    form: str, family: Family, gguf: Callable[..., Path], tmp_path: Path
) -> None:
    is_gguf = form == "gguf"
    source = gguf("mixtral") if is_gguf else family("mixtral").path
    path = written(source, tmp_path / ("a.gguf" if is_gguf else "a"), experts_swapped, 0, 1)
    assert_noted(path, family("mixtral").path, "experts of the layer")


@each(
    "permute, cause",
    [
        (partial(units_permuted, with_down=False), "permuted"),
        (partial(heads_permuted, with_outputs=False), "heads_exchanged"),
    ],
)
def test_one_side_alone_is_a_problem(
    permute: Callable[..., tuple[str, ...]], cause: str, healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy(MODEL))
    where = permute(files, 1)
    report = report_on(files.write(tmp_path / "a"), healthy(MODEL), ["values"])
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    assert {each.cause and each.cause.name for each in report.problems} == {cause}, explain(report)


def test_experts_without_their_router_are_a_problem(family: Family, tmp_path: Path) -> None:
    source = family("mixtral").path
    permute = partial(experts_swapped, with_router=False)
    report = report_on(written(source, tmp_path / "a", permute, 1), source, ["values"])
    causes = {each.cause and each.cause.name for each in report.problems}
    assert causes == {"expert_order"}, explain(report)


@each("checks", [["forward"], ["values", "forward"]])
def test_another_fault_of_the_layer_is_blamed_alone(
    checks: list[str], healthy: Models, tmp_path: Path
) -> None:
    path = written(healthy(MODEL), tmp_path / "a", units_permuted, 1)
    files = faults.read(path)
    query = files.put(of("attention.q.weight"), -files.numbers(of("attention.q.weight")))
    report = report_on(files.write(tmp_path / "b"), healthy(MODEL), checks)
    assert {problem.where for problem in report.problems} == {query}, explain(report)


def test_a_limit_that_was_asked_for_holds_all_the_same(healthy: Models, tmp_path: Path) -> None:
    path = written(healthy(MODEL), tmp_path / "a", units_permuted, 1)
    report = report_on(path, healthy(MODEL), ["values"], max_rmse=0.1)
    causes = {each.cause and each.cause.name for each in report.problems}
    assert len(report.problems) == 3
    assert causes == {"units_permuted"}


# If a conversion omits one of its steps, the step and the place are named.


PERMUTED = "q and k permuted everywhere"
FORMS = ["gguf", "directory"]
SQUARE, NOT_SQUARE = ("attention.o.weight",), (".qkv.weight", ".up.weight", ".down.weight")


def cases(soon: dict[str, tuple[str, ...]]) -> list[Any]:
    """Return families in both forms; those that are not to be looked at soon take long."""
    return [
        pytest.param(name, form, marks=() if form in forms else pytest.mark.long)
        for name, forms in soon.items()
        for form in FORMS
    ]


def left_out(
    source: Path, out: Path, forget: Callable[[Files], tuple[str, ...]], cause: str
) -> Injected:
    """Write what a conversion would have made that forgets something."""
    files = faults.read(source)
    where = forget(files)
    assert where
    return Injected(files.write(out), where, cause)


@pytest.fixture
def sides(
    family: Callable[[str], families.Made], gguf: Callable[..., Path], tmp_path: Path
) -> Callable[[str, str], tuple[Path, Path, Path]]:
    """Return the right result, where a wrong one goes, and what both are made of."""

    def give(name: str, form: str) -> tuple[Path, Path, Path]:
        directory, file = family(name).path, gguf(name)
        if form == "gguf":
            return file, tmp_path / "wrong.gguf", directory
        return directory, tmp_path / "wrong", file

    return give


def norms_as_they_were(files: Files) -> tuple[str, ...]:
    """Leave out the 1 that GGUF's norms of Gemma are more than those of transformers."""
    one = -1 if files.is_gguf else 1
    modules = [module for module in files.modules("") if "norm" in module]
    return tuple(files.put(module, files.numbers(module) + one) for module in modules)


def matrices_as_they_were(ends: tuple[str, ...], files: Files) -> tuple[str, ...]:
    modules = [module for module in files.modules("") if module.endswith(ends)]
    return tuple(
        files.put(module, np.ascontiguousarray(files.numbers(module).T)) for module in modules
    )


def experts_in_another_order(files: Files) -> tuple[str, ...]:
    ours: Any = files.ours
    count = ours.experts
    changed: list[str] = []
    for layer in range(ours.layers):
        for part in ("gate", "up", "down"):
            first, *others = [
                module
                for module in files.modules(f"layers.{layer}.")
                if module.endswith(f".{part}.weight") and "experts" in module
            ]
            assert len(others) == count - 1
            if files.is_gguf:
                changed.append(files.put(first, np.roll(files.numbers(first), 1, 0)))
            else:
                numbers = [files.numbers(each) for each in (first, *others)]
                changed += map(files.put, (*others, first), numbers)
    return tuple(changed)


@pytest.mark.parametrize(
    ("name", "form"), cases({"llama": ("gguf", "directory"), "mistral": (), "mixtral": ()})
)
def test_the_permutation_of_rotated_rows(
    name: str, form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides(name, form)
    injected = inject(right, wrong, PERMUTED)
    assert_named(report_on(injected.path, made_of), injected)


@pytest.mark.parametrize(
    ("ends", "form"),
    usual([(SQUARE, "gguf"), (NOT_SQUARE, "directory")], product([SQUARE, NOT_SQUARE], FORMS)),
)
def test_the_transposing_of_matrices(
    ends: tuple[str, ...], form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides("gpt2", form)
    injected = left_out(right, wrong, partial(matrices_as_they_were, ends), "transposed")
    assert_named(report_on(injected.path, made_of), injected)


@pytest.mark.parametrize(("name", "form"), cases({"gemma2": ("directory",), "gemma3": ("gguf",)}))
def test_the_one_of_norms(
    name: str, form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides(name, form)
    injected = left_out(right, wrong, norms_as_they_were, "norm_offset")
    assert_named(report_on(injected.path, made_of), injected)


@pytest.mark.parametrize(
    ("name", "form"), cases({"mixtral": ("gguf",), "qwen3moe": ("directory",)})
)
def test_the_order_of_experts(
    name: str, form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides(name, form)
    injected = left_out(right, wrong, experts_in_another_order, "expert_order")
    assert_named(report_on(injected.path, made_of), injected)


# Dequantized files are detected by their values, with a single message and the encoding.


RANDOM = np.random.default_rng(21)
ORIGINAL: Arrays = {
    f"layers.{number}.{part}.weight": RANDOM.normal(0, 0.02, shape).astype(np.float32)
    for number in range(2)
    for part, shape in {"q": (32, 256), "down": (32, 512)}.items()
}
NORM = {"norm.weight": RANDOM.uniform(0.5, 1.5, 256).astype(np.float32)}


def through(numbers: Any, *names: str) -> Any:
    """Return numbers that were stored in some encodings, one after another."""
    flat = numbers.reshape(-1).copy()
    for encoding in (ENCODINGS[name] for name in names):
        made = PairSide(encoding, encoding.size * 8 / encoding.block).through(flat)
        assert made is not None
        flat = made
    return flat.reshape(numbers.shape).copy()


def problems_of(tmp_path: Path, own: Arrays, reference: Arrays) -> tuple[Problem, ...]:
    paths = [
        stored(tmp_path / f"{n}.safetensors", **each) for n, each in enumerate((own, reference))
    ]
    subject, other = map(Subject, paths)
    return check(Request(subject=subject, reference=other)).problems


DETECTED = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "MXFP4", "F8_E4M3",
]  # fmt: skip


@each("kind, kept", [*((kind, "F32") for kind in DETECTED), ("Q8_0", "BF16"), ("Q4_K", "F16")])
def test_the_encoding_is_named_once_for_all_tensors(tmp_path: Path, kind: str, kept: str) -> None:
    own = {name: through(array, kind, kept) for name, array in ORIGINAL.items()}
    (problem,) = problems_of(tmp_path, own | NORM, ORIGINAL | NORM)
    assert problem.cause is not None
    assert problem.cause.name == "dequantized"
    assert problem.cause.text.startswith("the values look dequantized")
    assert f"in {kind} before" in problem.cause.text
    assert problem.text.endswith("; in all, 4 tensors differ in this way: q, down of layers 0 to 1")


def test_a_mixture_is_one_cause_that_names_both(tmp_path: Path) -> None:
    own = {
        name: through(array, "Q6_K" if name == "layers.1.down.weight" else "Q4_K", "BF16")
        for name, array in ORIGINAL.items()
    }
    (problem,) = problems_of(tmp_path, own, ORIGINAL)
    assert problem.cause is not None
    assert "in Q4_K and Q6_K before" in problem.cause.text


def test_it_is_reported_for_the_reference_where_that_was_quantized(tmp_path: Path) -> None:
    other = {name: through(array, "Q4_0", "F16") for name, array in ORIGINAL.items()}
    (problem,) = problems_of(tmp_path, ORIGINAL, other)
    assert problem.cause is not None
    assert problem.cause.text.startswith("the values of the reference look dequantized")


@each("size", [0.001, 0.02, 0.07, 0.3], in_turn=True)
@each("kept", ["F32", "BF16"])
def test_noise_of_any_size_is_not_taken_for_an_encoding(
    tmp_path: Path, size: float, kept: str
) -> None:
    own: Arrays = {}
    for name, array in ORIGINAL.items():
        noise = 1 + size * RANDOM.standard_normal(array.size)
        noisy: Any = array.reshape(-1) * noise
        own[name] = through(noisy.astype(np.float32).reshape(array.shape), kept)
    rounded = {name: through(array, kept) for name, array in ORIGINAL.items()}
    found = problems_of(tmp_path, own, rounded)
    assert found
    assert {each.cause and each.cause.name for each in found} <= {None, "training_steps"}


CONVERTED = [(model, kind) for model in SMALL for kind in ("Q4_K", "Q8_0", "Q4_0")]


@pytest.mark.parametrize(
    ("model", "kind"),
    usual([("tiny-llama", "Q4_K"), ("bert", "Q4_0")], CONVERTED),
)
def test_a_model_converted_back_has_one_cause(model: str, kind: str, healthy: Models) -> None:
    report = report_on(healthy.directory(model, kind), healthy(model), ["values", "forward"])
    values, forward = report.problems
    assert values.cause is not None
    assert values.cause.name == "dequantized"
    assert kind in values.cause.text
    assert (values.check, forward.check, forward.cause) == ("values", "forward", values.cause)


@pytest.mark.parametrize("name", usual(["gemma2", "bert"], families.FAMILIES))
def test_no_family_that_was_changed_otherwise_is_told_so(
    name: str, family: Callable[[str], families.Made], tmp_path: Path
) -> None:
    path = family(name).path
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = {
        name: (1.0625 * tensor + 0.05 * tensor[..., ::-1]).astype(np.float32)
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = report_on(tmp_path, path, ["values"]).problems
    assert found
    assert "dequantized" not in {each.cause.name for each in found if each.cause is not None}
