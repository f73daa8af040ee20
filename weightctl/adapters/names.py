"""Names of an adapter's tensors: which weight each belongs to, and which matrix it is."""

from __future__ import annotations

import re
from typing import NamedTuple

# PEFT: the words before a name, and the words behind it. `default` is the name of an adapter.
_PREFIX = re.compile(r"^base_model\.model\.")
_PEFT = re.compile(
    r"^(?P<module>.+)\.lora_(?P<half>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(?:\.(?!weight$|bias$)[^.]+)?(?P<kind>\.weight|\.bias)?$"
)
_SAVED = re.compile(r"\.modules_to_save(?:\.(?!weight$|bias$)[^.]+)?(?=\.)")
_BASE_LAYER = ".base_layer."
_HALVES = {
    "A": "first", "embedding_A": "first", "B": "second", "embedding_B": "second",
    "magnitude_vector": "magnitude",
}  # fmt: skip
# kohya's sd-scripts, diffusers and llama.cpp: the words behind a name.
_OTHERS = (
    re.compile(r"^(?P<module>.+)\.lora_(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)\.lora_linear_layer\.(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)\.lora\.(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)_lora\.(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)\.(?P<half>alpha|dora_scale)$"),
    re.compile(r"^(?P<module>.+)\.lora_(?P<half>a|b)$"),
)
_OTHER_HALVES = {
    "down": "first", "up": "second", "a": "first", "b": "second", "alpha": "alpha",
    "dora_scale": "magnitude",
}  # fmt: skip


class AdapterPart(NamedTuple):
    """What a tensor of an adapter is.

    - `module`: the name of the module or of the weight that it belongs to.
    - `part`: `first` or `second` for the matrices of a pair, `magnitude` for DoRA's magnitudes,
      `alpha`, `bias` for the bias of a pair, `saved` for a tensor that replaces the model's, and
      `copy` for a copy of a weight that a pair belongs to.
    - `is_embedding`: whether the pair is that of an embedding, whose product is transposed.
    """

    module: str
    part: str
    is_embedding: bool = False


def parse_name(name: str) -> AdapterPart:
    """Return what the tensor of a name is, in the conventions of PEFT, kohya and diffusers."""
    stem = _PREFIX.sub("", name)
    if found := _PEFT.match(stem):
        if found["kind"] == ".bias":
            return AdapterPart(found["module"], "bias")
        return AdapterPart(found["module"], _HALVES[found["half"]], "embedding" in found["half"])
    for pattern in _OTHERS:
        if found := pattern.match(name):
            return AdapterPart(found["module"], _OTHER_HALVES[found["half"]])
    if _BASE_LAYER in stem:
        return AdapterPart(stem.replace(_BASE_LAYER, "."), "copy")
    return AdapterPart(_SAVED.sub("", stem), "saved")
