"""The dtypes of tensors that a translation computed: those of the model instead of float32."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.names import is_matrix_weight
from weightctl.formats import has_type
from weightctl.formats.huggingface import CONFIG, config, json_document
from weightctl.schemes.settings import without_settings
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.tree import Checkpoint

_SHORT = ("BF16", "F16")
# Names of dtypes in config.json, and ours; models are not trained in others.
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def make_unquantized_config(stored: Checkpoint) -> dict[str, bytes]:
    """Return the config of a model whose weights are no longer quantized."""
    document = config(header_of(stored))
    if not document:
        return {}
    try:
        return {CONFIG: json_document(without_settings(document))}
    except RecursionError as error:
        raise ConversionError(
            f"{CONFIG} is nested too deeply, so its quantization settings cannot be removed",
            hint="check that the config belongs to this checkpoint",
        ) from error


def store_in_own_dtypes(
    plan: Plan, apart: set[str], stored: Checkpoint, tower: frozenset[str]
) -> Plan:
    """Store computed tensors in the model's own dtype instead of float32.

    These are weights that were decoded from several tensors, and tensors that GGUF stores in
    float32 for llama.cpp. The tensors of a tower have a dtype of their own.
    """
    own = _own_dtype(plan, stored) if apart else None
    is_translated = bool(plan.translation) and plan.format != "gguf"
    is_unconverted = "gguf" not in {plan.format, header_of(stored).format}
    text = [item for item in plan.items if item.info.name not in tower]
    # GGUF stores whole matrices of a tower in float32: patches, and positions.
    matrices = [
        item for item in plan.items if item.info.name in tower and is_matrix_weight(item.stored)
    ]
    vectors = _most(text) if is_translated else None
    of_tower = _most(matrices) if is_translated else None

    def settle_dtype(item: Item) -> Item:
        was_apart = any(source.name in apart for source in item.sources)
        usual = of_tower if item.info.name in tower else vectors
        encoding = own if was_apart and len(item.info.shape) > 1 else usual
        if is_unconverted and not was_apart and item.stored.encoding.name in _SHORT:
            # Undoing the form of MLX subtracted a number.
            encoding = item.stored.encoding
        if encoding is None or item.info.encoding.name != "F32":
            return item
        return replace(item, info=item.info._replace(encoding=encoding))

    return plan.with_items(tuple(map(settle_dtype, plan.items)))


def _own_dtype(plan: Plan, stored: Checkpoint) -> Encoding:
    document = config(header_of(stored))
    named = str(document.get("dtype") or document.get("torch_dtype"))
    found = ENCODINGS[_DTYPES[named]] if named in _DTYPES else _of_rest(plan)
    return found if has_type(plan.format, found) else ENCODINGS["F32"]


def _of_rest(plan: Plan) -> Encoding:
    """Return the 16-bit encoding of most tensors that were not computed."""
    kept = Counter(item.info.encoding.name for item in plan.items)
    return ENCODINGS[max(_SHORT, key=lambda name: kept[name])]


def _most(items: Sequence[Item]) -> Encoding | None:
    """Return the encoding of most values if it has 16 bits, otherwise None."""
    sizes: Counter[str] = Counter()
    for item in items:
        sizes[item.info.encoding.name] += item.info.size
    name = sizes.most_common(1)[0][0] if sizes else ""
    return ENCODINGS[name] if name in _SHORT else None
