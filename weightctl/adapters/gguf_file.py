"""Adapters as llama.cpp loads them: pairs under GGUF's names, in the form of GGUF's weights.

The keys and names are those of llama.cpp's `convert_lora_to_gguf.py` and `llama-adapter.cpp`.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.adapters.reading import read_adapter
from weightctl.adapters.target_modules import Places, Targets, list_places
from weightctl.errors import ConversionError
from weightctl.families import recognize
from weightctl.families.model import ARCHITECTURE
from weightctl.families.steps import TRANSPOSED, convert_form
from weightctl.formats.huggingface import CONFIG, read_object
from weightctl.formats.open.opening import open_weights
from weightctl.plan.plan import Plan
from weightctl.text.wording import pluralize
from weightctl.weights.derived import Derived, DerivedTensor
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.steps.numbers import AsFloat32, Multiplied
from weightctl.weights.steps.stacked import Stacked
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from weightctl.adapters.reading import LoraAdapter, LowRank
    from weightctl.families import RecognizedModel
    from weightctl.families.modules import TensorNames
    from weightctl.weights.derived import ReadableTensor

_MERGE = "merge the adapter into its model with `weightctl merge`, and run the result"


def plan_adapter(weights: Checkpoint, base: str) -> Plan:
    """Plan to store an adapter of a model for llama.cpp; `base` is the path of the model.

    Of the model, only its config is needed. Raises as `read_adapter` and `recognize` do, and
    `ConversionError` for what llama.cpp does not apply: DoRA, biases, and replaced tensors.
    """
    adapter = read_adapter(weights)
    model = _recognize(weights, base)
    places = list_places(model)
    _refuse_more_than_pairs(adapter)
    alpha = _choose_alpha(adapter)
    tensors = _Translation(places, alpha).translate(adapter)
    metadata = {
        ARCHITECTURE: MetadataValue("string", model.family.gguf_name),
        "general.type": MetadataValue("string", "adapter"),
        "adapter.type": MetadataValue("string", "lora"),
        "adapter.lora.alpha": MetadataValue("f32", alpha),
    }
    if adapter.base:
        metadata["general.base_model.count"] = MetadataValue("u32", 1)
        metadata["general.base_model.0.name"] = MetadataValue("string", adapter.base)
    plan = Plan.copy(Checkpoint(Derived(source_of(weights), tensors, metadata)), "gguf")
    notes = list(plan.notes)
    if adapter.copies:
        notes.append(
            f"not written: {pluralize(len(adapter.copies), 'copy of a weight')} that PEFT saved "
            "beside the adapter"
        )
    text = f"LoRA adapter of {model.family.name}, Hugging Face -> GGUF"
    return replace(plan, translation=text, notes=tuple(notes))


def _recognize(weights: Checkpoint, base: str) -> RecognizedModel:
    """Return the family and the config of the model at a path."""
    document = read_object(os.path.join(base, CONFIG))
    if document:
        return recognize(weights, document)
    return recognize(open_weights(base))


def _refuse_more_than_pairs(adapter: LoraAdapter) -> None:
    for module in adapter.replaced:
        if module not in adapter.copies:
            raise ConversionError(
                f"the adapter replaces `{module}`, which llama.cpp does not do with adapters",
                hint=_MERGE,
            )
    for pair in adapter.pairs.values():
        other = pair.magnitude or pair.bias
        if other is not None:
            raise ConversionError(
                f"the adapter has `{other.info.name}`, which llama.cpp does not apply", hint=_MERGE
            )


def _choose_alpha(adapter: LoraAdapter) -> float:
    """Return the alpha of most pairs: llama.cpp multiplies each product by alpha / rank."""
    alphas = Counter(pair.scale() * pair.rank for pair in adapter.pairs.values())
    alpha = alphas.most_common(1)[0][0]
    return alpha or 1.0  # llama.cpp does not scale if alpha is 0


class _Translation:
    """The translation of the pairs of an adapter to GGUF's names and order of rows."""

    def __init__(self, places: Places, alpha: float) -> None:
        self._places, self._alpha = places, alpha
        self._targets = Targets(places.names)

    def translate(self, adapter: LoraAdapter) -> dict[str, ReadableTensor]:
        """Return the matrices of all pairs by GGUF's names."""
        experts: dict[str, dict[int, tuple[ReadableTensor, ReadableTensor]]] = {}
        made: dict[str, ReadableTensor] = {}
        counts: dict[str, int] = {}
        for module, pair in adapter.pairs.items():
            name = self._targets.find(module)
            if name is None:
                raise ConversionError(
                    f"the adapter has `{pair.first.info.name}`, but a model of the family "
                    f"{self._places.family} has no weight for `{module}`",
                    hint=self._targets.describe_near(module),
                )
            names = self._places.find(name)
            matrices = self._convert(pair, names)
            gguf = names.gguf or ""
            if names.is_stacked("gguf"):
                experts.setdefault(gguf, {})[names.expert] = matrices
                counts[gguf] = getattr(self._places.config, names.line.count)
                continue
            for half, tensor in zip("ab", matrices, strict=True):
                made[f"{gguf}.lora_{half}"] = tensor
        for gguf, found in experts.items():
            if len(found) != counts[gguf]:
                raise ConversionError(
                    f"the adapter has matrices of {len(found)} of the {counts[gguf]} experts of "
                    f"`{gguf}`, and llama.cpp needs those of all experts",
                    hint=_MERGE,
                )
            ordered = [found[expert] for expert in sorted(found)]
            for half, tensors in zip("ab", zip(*ordered, strict=True), strict=True):
                step = Stacked("experts", len(tensors))
                made[f"{gguf}.lora_{half}"] = DerivedTensor(gguf, step, tensors)
        return made

    def _convert(self, pair: LowRank, names: TensorNames) -> tuple[ReadableTensor, ReadableTensor]:
        """Return the two matrices of a pair in float32, in the form of GGUF's weight."""
        first, second = _as_float32(pair.first), _as_float32(pair.second)
        _refuse_kernel(first)
        factor = pair.scale() * pair.rank / self._alpha
        if factor != 1:
            second = DerivedTensor(second.info.name, Multiplied(factor), [second])
        if pair.is_embedding:
            return DerivedTensor(first.info.name, Transposed(), [first]), second
        change = names.change
        if change is not None and change.is_of_rows:
            second = convert_form(names, second, self._places.config, "hugging_face", "gguf")
        elif change is not None and change is not TRANSPOSED:
            raise ConversionError(
                f"the adapter has `{pair.first.info.name}`, whose weight has another form in GGUF "
                "files",
                hint=_MERGE,
            )
        return first, second


def _as_float32(tensor: ReadableTensor) -> ReadableTensor:
    if tensor.info.encoding.name == "F32":
        return tensor
    return DerivedTensor(tensor.info.name, AsFloat32(), [tensor])


def _refuse_kernel(tensor: ReadableTensor) -> None:
    if len(tensor.info.shape) != 2:
        raise ConversionError(
            f"`{tensor.info.name}` has shape {list(tensor.info.shape)}, but llama.cpp's adapters "
            "have matrices only",
            hint=_MERGE,
        )
