"""AWQ's scaling: models compute the same without rounding, and lose less with it; refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_models
from each import usual
from importances import imatrix_dat
from lazy import torch
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.formats.imatrix import read_importance
from weightctl.plan.cast import is_layer_matrix
from weightctl.plan.scheme_decisions import Decision
from weightctl.plan.scheme_names import find_scheme
from weightctl.plan.scheme_scaling import scale_activations
from weightctl.plan.scheme_weights import SchemeSearch, find_searches
from weightctl.schemes.arrays.activation import ActivationScale, DividedNorm
from weightctl.translate.plans import plan_of
from weightctl.weights import TensorInfo
from weightctl.weights.steps.numbers import numbers_of
from written_models import convert, small_llama, values_in

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.plan.scheme_scaling import ScaledTensors

_ONE_LAYER = {"num_hidden_layers": 1}
# The models, and how many weights of a layer are scaled.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "llama": ({}, 7),
    "qwen2": (_ONE_LAYER, 7),
    "gemma3": (_ONE_LAYER, 7),
    "mixtral": (_ONE_LAYER, 4),
    "phi3": (_ONE_LAYER, 1),
    "gpt2": ({}, 0),
}


def write_importance(path: Path, model: Any) -> Path:
    """Write importance with large differences for all matrices of a model."""
    random = np.random.default_rng(4)
    entries = {
        name: (random.exponential(1, value.shape[1]).astype(np.float32) ** 4, 1)
        for name, value in model.state_dict().items()
        if value.ndim == 2
    }
    return imatrix_dat(path, entries)


def scale(folder: Path, importance: Path) -> ScaledTensors:
    """Return the tensors of a model that AWQ scales."""
    plan = plan_of(open_weights(folder), "safetensors", is_model=True, is_cast=True)
    recipe = find_scheme("AWQ:group=32", is_directory=True)
    assert recipe is not None
    decisions = [
        Decision(each, is_layer_matrix(plan, each.info), each.info.encoding) for each in plan.items
    ]
    search = SchemeSearch(read_importance(str(importance)))
    searches, _ = find_searches(plan, decisions, search)
    encodings = {
        name: recipe.choice.scheme.encode((8, 32), recipe.choice.options, ENCODINGS["F32"])
        for name in searches
    }
    return scale_activations(plan, recipe, decisions, encodings, searches)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if number else [])
        for number, name in enumerate(MODELS)
    ],
)
def test_scaled_models_compute_the_same(tmp_path: Path, name: str) -> None:
    changes, count = MODELS[name]
    model = getattr(small_models, name)(**changes)
    for key, value in model.named_parameters():
        if value.ndim == 1:  # norms and biases as trained models have them
            value.data += torch.linspace(-0.3, 0.3, len(value)) * (1 if "norm" in key else 0.1)
    model.save_pretrained(tmp_path / "m")
    found = scale(tmp_path / "m", write_importance(tmp_path / "i.dat", model))
    layers = model.config.num_hidden_layers
    assert len(found.searches) == count * layers
    tokens = small_models.tokens_below(model.config.vocab_size)
    wanted = small_models.logits(model, tokens)
    scaled = {key: torch.from_numpy(numbers_of(each)) for key, each in found.tensors.items()}
    changed = [key for key, each in scaled.items() if not each.equal(model.state_dict()[key])]
    assert bool(changed) is bool(count)
    model.load_state_dict({**model.state_dict(), **scaled})
    assert np.abs(small_models.logits(model, tokens) - wanted).max() < 1e-4


def test_norms_are_divided_exactly_in_their_own_type(tmp_path: Path) -> None:
    model = small_models.llama().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "m")
    found = scale(tmp_path / "m", write_importance(tmp_path / "i.dat", model))
    name = "model.layers.0.input_layernorm.weight"
    assert str(found.tensors[name].info.encoding) == "BF16"
    before = model.state_dict()[name].float().numpy()
    after = numbers_of(found.tensors[name])
    weight = "model.layers.0.self_attn.q_proj.weight"
    columns = numbers_of(found.tensors[weight]) / model.state_dict()[weight].float().numpy()
    assert len(set(after.tolist())) > 10
    assert np.allclose(columns * after, before, rtol=1e-5)


@pytest.mark.parametrize("quant", usual(["AWQ"], ["AWQ", "W4A16:scaled=yes"]))
def test_columns_with_large_inputs_lose_less(tmp_path: Path, quant: str) -> None:
    important = np.full(256, 1e-4, np.float32)
    important[::64] = 1
    entries = {f"model.layers.0.mlp.{each}_proj.weight": (important, 1) for each in ("gate", "up")}
    imatrix_dat(tmp_path / "i.dat", entries)
    name, norm = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.post_attention_layernorm"
    wanted = values_in(small_llama())
    errors: list[float] = []
    for case in (f"{quant.partition(':')[0]}:scaled=no", quant):
        done = convert(small_llama(), tmp_path / "o", case, imatrix=tmp_path / "i.dat", force=True)
        made = values_in(tmp_path / "o")
        factors = wanted[f"{norm}.weight"] / made[f"{norm}.weight"]
        difference = made[name] / factors - wanted[name]
        errors.append(float((difference.square() * torch.from_numpy(important)).sum()))
    assert errors[1] < 0.8 * errors[0]
    assert any("scales 2 of 14 weights" in note for note in done.plan.notes)


@pytest.mark.long
def test_the_output_does_not_depend_on_threads(tmp_path: Path) -> None:
    model = small_models.llama(num_hidden_layers=1)
    model.save_pretrained(tmp_path / "m")
    importance = write_importance(tmp_path / "i.dat", model)
    for threads in (1, 3):
        options: dict[str, Any] = {"imatrix": importance, "threads": threads}
        convert(tmp_path / "m", tmp_path / str(threads), "AWQ:group=32", **options)
    one, other = ((tmp_path / each / "model.safetensors").read_bytes() for each in ("1", "3"))
    assert one == other


def test_scaling_needs_an_importance_matrix(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"an importance matrix is needed") as caught:
        convert(small_llama(), tmp_path / "out", "W4A16:scaled=yes")
    assert "--imatrix" in caught.value.hint
    done = convert(small_llama(), tmp_path / "out", "AWQ")
    assert not any("scales" in note for note in done.plan.notes)
    with pytest.raises(ConversionError, match=r"FP8 does not have the option"):
        convert(small_llama(), tmp_path / "out", "FP8:scaled=yes")


def test_the_weight_of_a_norm_is_a_vector() -> None:
    kind = ENCODINGS["F32"]
    step = DividedNorm(ActivationScale(()), kind)
    assert step.infer([TensorInfo("norm", (8,), kind)]) == ((8,), kind)
    with pytest.raises(ConversionError, match="`norm` is not the weight of a norm"):
        step.infer([TensorInfo("norm", (8, 1), kind)])
