"""Quantization to a budget: limits are met when measured, and the result beats the recipes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from each import each
from weightctl import open_weights
from weightctl.budget.search import QuantizationBudget, quantize
from weightctl.budget.type_search import TypeSearch, _share_work
from weightctl.errors import ConversionError
from weightctl.verify import Request, Subject, verify_request
from weightctl.weights.tree import header_of
from weightctl.write.convert import convert

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.budget.found import FoundTypes

# Short texts, so that each search takes a second or two.
CALIBRATION = (
    "The whale rose slowly from the deep water, and the men in the boats were silent. " * 2
)
TEXT = "It was a calm morning, and nobody on board had seen the captain since the day before. " * 2


def find(source: Path, out: Path, **options: Any) -> FoundTypes:
    """Search with the short texts, and write the file."""
    budget = QuantizationBudget(text=TEXT, calibration=CALIBRATION, **options)
    made, found = quantize(source, out, budget, force=True)
    made.save(force=True)
    return found


def measure(model: Path, reference: Path) -> Any:
    request = Request(subject=Subject(model), reference=Subject(reference), text=TEXT, compare=True)
    figures: Any = verify_request(request, ["forward"]).results["forward"].figures
    return figures


def types_of(path: Path) -> dict[str, str]:
    tensors = header_of(open_weights(path)).tensors
    return {name: info.encoding.name for name, info in tensors.items()}


def test_a_size_is_met_from_below_with_less_divergence_than_a_recipe_has(
    tiny_llama: Path, tmp_path: Path
) -> None:
    usual, out = tmp_path / "usual.gguf", tmp_path / "found.gguf"
    convert(tiny_llama, usual, quant="Q3_K_M")
    size = usual.stat().st_size
    found = find(tiny_llama, out, size=size)
    assert 0.995 * size <= out.stat().st_size <= size
    recipe, own = measure(usual, tiny_llama), measure(out, tiny_llama)
    assert own.divergence.mean < 0.9 * recipe.divergence.mean
    # The certificate is what the file is measured to be.
    certificate = found.certificate
    assert certificate.divergence == pytest.approx(own.divergence.mean, rel=1e-3)
    assert certificate.top_1 == own.divergence.top_1
    assert certificate.perplexity == pytest.approx(own.perplexity, rel=1e-4)
    metadata = header_of(open_weights(out)).metadata
    stated = metadata["weightctl.budget.divergence"].content
    assert stated == pytest.approx(certificate.divergence, rel=1e-6)
    # The recipe gives the same types, without a search.
    (tmp_path / "found.toml").write_text(found.toml)
    again = convert(tiny_llama, tmp_path / "again.gguf", quant=str(tmp_path / "found.toml"))
    assert types_of(tmp_path / "again.gguf") == types_of(out)
    assert again.plan.recipe == "found.toml"


def test_bits_per_weight_are_met_and_types_are_those_listed(
    tiny_llama: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"bits": 5.0, "types": ["Q4_K", "Q6_K"], "same_type": "attn_[qkv]"}
    found = find(tiny_llama, tmp_path / "out.gguf", **options)
    assert 4.9 < found.bits_per_weight <= 5.0
    by_name = {each.name: each.type for each in found.tensors}
    assert {*by_name.values()} == {"Q4_K", "Q6_K"}
    for layer in range(3):
        assert len({by_name[f"blk.{layer}.attn_{part}.weight"] for part in "qkv"}) == 1
    assert find(tiny_llama, tmp_path / "out.gguf", **options) == found


def test_a_divergence_is_met_when_measured(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    found = find(tiny_llama, out, divergence=0.02)
    assert measure(out, tiny_llama).divergence.mean <= 0.02
    assert 0.015 < found.certificate.divergence <= 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1.5}, "--bpw 1.5 is too little"),
        ({"divergence": 1e-9, "types": ["Q4_K", "Q6_K"]}, "cannot be reached"),
        ({"bits": 4.0, "types": ["IQ2_XXS"]}, "needs an importance matrix"),
        ({"bits": 4.0, "same_type": "(" }, "not a valid regular expression"),
        ({"bits": 4.0, "types": ["Q4_K_M"]}, "is a recipe, not a single type"),
        ({"bits": 4.0, "types": []}, "--types is empty"),
        ({"bits": 4.0, "size": 10}, "exactly one limit"),
        ({"bits": -1.0}, "not a positive number"),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_met_are_refused(
    options: dict[str, Any], message: str, tiny_llama: Path, tmp_path: Path
) -> None:
    budget = replace(
        QuantizationBudget(text="The sea.", calibration="The sea was calm."), **options
    )
    with pytest.raises(ConversionError, match=message.replace("(", r"\(")):
        quantize(tiny_llama, tmp_path / "out.gguf", budget)


def test_outputs_that_are_not_a_whole_model_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="needs a GGUF file of a model, or a model directory"):
        quantize(tiny_llama, tmp_path / "out.safetensors", QuantizationBudget(bits=4.5))


@each(
    "width, types, tokens",
    [(64, 2, range(512, 1 << 62)), (1024, 1, range(100, 1000)), (1 << 14, 1, [32])],
)
def test_a_larger_model_is_measured_on_fewer_tokens_but_not_on_too_few(
    width: int, types: int, tokens: Any
) -> None:
    info = SimpleNamespace(size=4 * width * width)
    names = [f"layers.{number}.mlp.up.weight" for number in range(64)]
    tensors = {name: SimpleNamespace(info=info) for name in names}
    running: Any = SimpleNamespace(
        checkpoint=SimpleNamespace(tensors=tensors), vocabulary=32000, width=width
    )
    space: Any = SimpleNamespace(tensors=names)
    found = _share_work(space, running)
    assert found[0] == types
    assert found[1] in tokens


@each("is_text, count, has_perplexity", [(True, 2, True), (True, 1, False), (False, 9, False)])
def test_only_tokens_that_follow_others_in_a_text_have_a_perplexity(
    is_text: bool, count: int, has_perplexity: bool
) -> None:
    search: Any = object.__new__(TypeSearch)
    search._held_out = SimpleNamespace(is_text=is_text, count=count, source="tokens")
    draft = search.make_draft(3.5)
    wanted = 3.5 if has_perplexity else None
    assert (draft.perplexity, draft.source_perplexity, draft.divergence) == (wanted, wanted, 3.5)
