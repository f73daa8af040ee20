"""Compared with a healthy checkpoint, every fault is named: its tensor or key, and its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import families
import faults
from crossing_fixtures import CONVERSIONS, SMALL
from each import each, usual
from family_cases import make_checkpoint
from faults import APPLY, FAULTS, KINDS, inject
from once import once
from verdicts import assert_healthy, assert_named, explain, names, report_on
from weightctl import convert
from weightctl.verify import CHECKS
from weightctl.write.attestation import write_attestation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossing_fixtures import Models
    from faults import Injected
    from weightctl.verify import Report


CASES = [(model, fault) for model in SMALL for fault in APPLY[model]]


def take_turns() -> list[tuple[str, str]]:
    """Return each fault with one of the models that it applies to, in turn."""
    models = {fault: [model for model, other in CASES if other == fault] for _, fault in CASES}
    return [
        (those[number % len(those)], fault) for number, (fault, those) in enumerate(models.items())
    ]


# What is in the config, or tensors that are not there, a GGUF file says otherwise.
SAID_OTHERWISE = {
    "q and k permuted everywhere", "rope theta", "norm eps", "head count", "kv heads contradict",
    "bias dropped", "output forgotten",
}  # fmt: skip
NOT_IN_TENSORS = {fault for fault, each in FAULTS.items() if each.cause == "config"}
CANNOT_RUN = {"kv heads contradict", "bias dropped", "output forgotten"}
NOT_IN_THE_TEXT = {"row lost"}
ACROSS = ["q and k permuted everywhere", "gate and up swapped", "norm off by one", "rope theta"]


def assert_named_alone(report: Report, injected: Injected, fault: str) -> None:
    """Fail where it is not named, where the block is not found, and where another is blamed."""
    assert_named(report, injected)
    if fault not in CANNOT_RUN | NOT_IN_THE_TEXT:
        # A key of the config that `metadata` has named is not named again.
        first, *_ = (*report.results["forward"].problems, *report.results["metadata"].problems)
        assert names(first, (*injected.where, f"layers.{injected.layer}")), explain(report)
    if fault not in NOT_IN_TENSORS:
        for problem in report.results["values"].problems:
            assert names(problem, injected.where), explain(report)


@each("model, fault", usual(take_turns(), CASES))
def test_a_fault_is_named_and_nothing_else(
    model: str, fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy(model), tmp_path / "faulty", fault)
    assert_named_alone(report_on(injected.path, healthy(model)), injected, fault)


@each("model, fault", usual([case for case in take_turns() if case[1] in SAID_OTHERWISE], CASES))
def test_a_fault_of_a_gguf_file_is_named_against_the_directory(
    model: str, fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy.gguf(model), tmp_path / "faulty.gguf", fault)
    assert_named(report_on(injected.path, healthy(model)), injected)


@each("fault", ACROSS)
def test_a_fault_of_a_directory_is_named_against_a_gguf_file(
    fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, healthy.gguf("tiny-llama")), injected)


@each("fault", usual(["gate and up swapped", "rope theta"], ACROSS))
def test_a_fault_is_named_against_a_quantized_file(
    fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, healthy.gguf("tiny-llama", "Q4_K")), injected)


@each("bit", faults.EXPONENT_BITS, in_turn=True)
@each("model", SMALL)
def test_an_exponent_bit_of_one_scale_is_named_against_the_numbers(
    model: str, bit: int, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf(model, "Q8_0")
    injected = faults.flip(source, tmp_path / "faulty.gguf", bit)
    report = report_on(injected.path, healthy(model), ["finite", "values"])
    assert_named(report, injected)


@each("bit", range(16))
def test_any_bit_of_one_scale_is_named_against_the_same_blocks(
    bit: int, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf("tiny-llama", "Q8_0")
    injected = faults.flip(source, tmp_path / "faulty.gguf", bit)
    assert_named(report_on(injected.path, source, ["values"]), injected, cause=False)


# Without a reference, faults are found that no healthy checkpoint has.


# As tool's mistakes show in numbers, tensors and the config; and for which models.
FOUND = [
    *((model, fault) for model in SMALL for fault in ("zeroed", "row lost")),
    ("gpt2", "bias dropped"),
    ("bert", "bias dropped"),
    ("tiny-llama", "output forgotten"),
    ("tiny-llama", "kv heads contradict"),
]
# What was trained on such text is seldom as surprised as this.
MOST_SURPRISED = 30


def trained_on(tiny_llama: Path) -> str:
    return (tiny_llama / "held-out.txt").read_text()[:2000]


@each("model, fault", FOUND)
def test_a_fault_is_found(model: str, fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy(model), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path), injected)


@each("model, fault", usual(
    [("gpt2", "zeroed"), ("bert", "row lost"), ("gpt2", "bias dropped"),
     ("tiny-llama", "kv heads contradict")],
    [case for case in FOUND if case[1] != "output forgotten"],
))  # fmt: skip
def test_a_fault_of_a_gguf_file_is_found(
    model: str, fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy.gguf(model), tmp_path / "faulty.gguf", fault)
    assert_named(report_on(injected.path), injected)


@each("kind", faults.SCALE_AT)
@each("model", SMALL)
def test_a_scale_that_is_nan_is_found(
    model: str, kind: str, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf(model, kind)
    injected = faults.make_nan(source, tmp_path / "faulty.gguf", kind)
    assert_named(report_on(injected.path, checks=["finite"]), injected)


def test_a_row_that_is_lost_in_blocks_is_found(healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy.gguf("tiny-llama", "Q8_0"), tmp_path / "faulty.gguf", "row lost")
    assert_named(report_on(injected.path, checks=["finite"]), injected)


@each("form", ["directory", "gguf"])
def test_a_healthy_model_is_not_surprised(form: str, healthy: Models, tiny_llama: Path) -> None:
    path = tiny_llama if form == "directory" else healthy.gguf("tiny-llama")
    assert_healthy(report_on(path, text=trained_on(tiny_llama), max_perplexity=MOST_SURPRISED))


@each("fault", ["q and k permuted everywhere", "layers exchanged"])
@each("form", ["directory", "gguf"])
def test_a_model_that_is_ruined_is_surprised(
    form: str, fault: str, healthy: Models, tiny_llama: Path, tmp_path: Path
) -> None:
    source = tiny_llama if form == "directory" else healthy.gguf("tiny-llama")
    injected = inject(source, tmp_path / f"faulty{source.suffix}", fault)
    report = report_on(injected.path, text=trained_on(tiny_llama), max_perplexity=MOST_SURPRISED)
    (problem,) = report.problems
    assert "perplexity" in problem.text, explain(report)


# `verify --against` names faults of every kind of block, and never by another cause.


LEAST_FAULTS = 6
BY_BLOCK = [(kind, fault) for kind, (_, found) in KINDS.items() for fault in found]
# One fault of each of these kinds of blocks, which differ most.
USUAL_KINDS = (
    "grouped heads", "experts by softmax", "latent attention", "encoder", "gated delta net",
    "time mixing", "short convolution",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fault"), usual([(kind, next(iter(KINDS[kind][1]))) for kind in USUAL_KINDS], BY_BLOCK)
)
def test_a_fault_of_a_block_is_named_by_its_own_cause_or_none(
    kind: str, fault: str, crossed: Path, tmp_path: Path
) -> None:
    case, of_kind = KINDS[kind]
    sound = make_checkpoint(case, crossed).path
    whole = once(
        sound.with_name("model.gguf"), lambda half: convert(sound, half, to="gguf", dtype="f32")
    )
    files = faults.read(whole)
    where = of_kind[fault].hurt(files)
    report = report_on(files.write(tmp_path / "model.gguf"), sound)
    assert any(names(problem, where) for problem in report.problems), explain(report)
    causes = {problem.cause.name for problem in report.problems if problem.cause}
    expected = of_kind[fault].cause
    assert causes == ({expected} if expected else set()), explain(report)


def test_each_kind_of_block_has_six_faults_or_more() -> None:
    assert min(len(found) for _, found in KINDS.values()) >= LEAST_FAULTS


# Every fault of a real model is named, without a reference if possible, else by comparison.


@pytest.mark.real
@pytest.mark.long
@each("fault", APPLY["smollm2"])
def test_a_fault_is_named(fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("smollm2"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, healthy("smollm2")), injected)


@pytest.mark.real
@pytest.mark.long
@each("fault", ["q permuted", "gate and up swapped", "rope theta"])
def test_a_fault_of_a_quantized_file_is_named(fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy.gguf("smollm2", "Q8_0"), tmp_path / "faulty.gguf", fault)
    assert_named(report_on(injected.path, healthy("smollm2")), injected)


@pytest.mark.real
@pytest.mark.long
def test_bits_of_a_scale_are_named(healthy: Models, tmp_path: Path) -> None:
    source = healthy.gguf("smollm2", "Q8_0")
    for bit in faults.EXPONENT_BITS:
        injected = faults.flip(source, tmp_path / f"{bit}.gguf", bit)
        report = report_on(injected.path, healthy("smollm2"), ["finite", "values"])
        assert_named(report, injected)
    for bit in (0, 9, 15):
        injected = faults.flip(source, tmp_path / f"same-{bit}.gguf", bit)
        assert_named(report_on(injected.path, source, ["values"]), injected, cause=False)


@pytest.mark.real
@pytest.mark.long
@each("fault", ["zeroed", "row lost", "kv heads contradict"])
def test_a_fault_is_found_alone(fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("smollm2"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, checks=["finite", "names"]), injected)


@pytest.mark.real
@pytest.mark.long
def test_a_scale_that_is_nan_is_found_alone(healthy: Models, tmp_path: Path) -> None:
    source = healthy.gguf("smollm2", "Q8_0")
    injected = faults.make_nan(source, tmp_path / "faulty.gguf", "Q8_0")
    assert_named(report_on(injected.path, checks=["finite"]), injected)


@pytest.mark.real
@pytest.mark.long
@each("fault", ["q and k permuted everywhere", "layers exchanged"])
def test_a_real_model_is_surprised_only_if_it_is_ruined(
    fault: str, smollm2: Path, tmp_path: Path
) -> None:
    assert_healthy(report_on(smollm2, max_perplexity=MOST_SURPRISED))
    injected = inject(smollm2, tmp_path / "faulty.gguf", fault)
    report = report_on(injected.path, max_perplexity=MOST_SURPRISED)
    # It is above the limit, and above what the model's own predictions allow.
    assert report.problems
    assert all("perplexity" in problem.text for problem in report.problems), explain(report)


# No problem is found in a healthy checkpoint, whatever it was converted to.


@each("kind", CONVERSIONS, in_turn=True)
@each("model", SMALL)
def test_a_conversion_is_well_alone_and_against_its_source(
    kind: str, model: str, healthy: Models
) -> None:
    assert_healthy(report_on(healthy.gguf(model, kind)))
    assert_healthy(report_on(healthy.gguf(model, kind), healthy(model)))


@each("model", usual(["gpt2"], SMALL))
def test_a_source_against_a_conversion(model: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy(model), healthy.gguf(model, "Q4_K")))


@each("model", usual(["tiny-llama"], SMALL))
def test_a_conversion_against_another(model: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy.gguf(model, "Q4_0"), healthy.gguf(model, "Q6_K")))


# Of the others, the tests of every family have the same by default.
@each("name", usual(["llama-yarn", "gemma2"], families.FAMILIES))
def test_a_family_in_both_forms(
    name: str, family: Callable[[str], families.Made], gguf: Callable[..., Path]
) -> None:
    assert_healthy(report_on(gguf(name), family(name).path))


@pytest.mark.long
@each("name", families.FAMILIES)
def test_a_family_alone(name: str, family: Callable[[str], families.Made]) -> None:
    assert_healthy(report_on(family(name).path))


@each("form", ["directory", "gguf"])
def test_every_check_of_a_healthy_model(form: str, healthy: Models, tmp_path: Path) -> None:
    path = healthy("tiny-llama") if form == "directory" else healthy.gguf("tiny-llama", "Q4_K")
    statement = str(tmp_path / "made.intoto.json")
    write_attestation(statement, str(path), [str(path)], {"source": {"files": []}})
    report = report_on(path, healthy("tiny-llama"), list(CHECKS), attestation=statement)
    assert_healthy(report)
    assert list(report.results) == list(CHECKS)


@pytest.mark.long
@pytest.mark.real
@each("kind", CONVERSIONS)
def test_a_real_model(kind: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy.gguf("smollm2", kind), healthy("smollm2"), max_perplexity=30))


@pytest.mark.long
@pytest.mark.real
@each("kind", CONVERSIONS)
def test_a_real_encoder(kind: str, healthy: Models, minilm: Path) -> None:
    made = healthy.converted(minilm, f"minilm-healthy-{kind}.gguf", *CONVERSIONS[kind])
    assert_healthy(report_on(made, minilm))
