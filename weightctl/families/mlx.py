"""The form that MLX gives to checkpoints of Hugging Face: other names, and some other values.

`mlx.toml` has what differs, from mlx-lm. The form is known by the names and shapes themselves, as
mlx-lm knows it: quantized or not, a checkpoint may have it without stating it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightctl.families.config_keys import Config
    from weightctl.families.family import Family
    from weightctl.families.fusions import Fusion
    from weightctl.families.modules import TensorNames
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo

# MLX writes this before all names of a multimodal model, and leaves out all but the text model.
OUTER = "language_model."
_OWN_NAME = re.compile(
    r"\.(switch_mlp|switch_glu|embed_q|unembed_out)\.|\.experts\.(gate|up|down)_proj\.(weight|scales)$"
)
_CONVOLUTION = re.compile(r"conv(_?1d)?\.weight$")
_CHANGED = re.compile(r"\.experts\.\d|\.shared_mlp\.")
HINT = (
    "the checkpoint has the form of MLX, and weightctl cannot undo it for this model: convert the "
    "original checkpoint of Hugging Face instead"
)


def is_mlx(header: Header) -> bool:
    """Whether a checkpoint has tensors in the form of MLX, or states that MLX has written it."""
    stated = header.metadata.get("format")
    return (stated is not None and stated.content == "mlx") or has_mlx_tensors(header)


def has_mlx_tensors(header: Header) -> bool:
    """Whether a checkpoint has tensors whose names or axes only MLX has."""
    return any(_OWN_NAME.search(name) or _is_moved(info) for name, info in header.tensors.items())


def list_fusions(family: Family) -> Iterator[Fusion]:
    """Yield the tensors that MLX has under other names than Hugging Face."""
    from weightctl.families.fusions import Fusion

    modules = {line.module for line in family.names}
    for part, names in _read_table()["names"].items():
        if (module := f"layers.{{}}.{part}") in modules:
            for name in names:
                yield Fusion(
                    convention="hugging_face",
                    name=f"{family.prefix}layers.{{}}.{name}",
                    parts=(module,),
                    of_experts="{expert}" in part,
                    of_mlx=True,
                )


def describe_unread(model_type: object, quantized: Iterable[str]) -> Iterator[str]:
    """Yield a note if mlx-lm does not load weights that are quantized under these names."""
    name = next(filter(_CHANGED.search, quantized), None)
    if name and model_type in _read_table()["model_types"]["changed_before_quantizing"]:
        yield (
            f"mlx-lm does not load `{name}` and similar weights: for `{model_type}`, it changes "
            "their form only before they are quantized; for a directory that it loads, run "
            "`mlx_lm.convert -q` on the unquantized model"
        )


class MlxForm:
    """The form of the tensors of one checkpoint with Hugging Face's naming convention.

    Raises `ArchitectureError` if its weights are multiplied by numbers of its config.
    """

    def __init__(self, tensors: Iterable[TensorInfo], family: Family) -> None:
        moved = next((info.name for info in tensors if _is_moved(info)), None)
        rows = _read_table()["families"]
        if moved and family.name in rows["multiplied"]:
            raise ArchitectureError(
                f"`{moved}` has its axes in MLX's order: mlx-lm multiplies the weights of "
                f"{family.name} by the multipliers in config.json, which are not undone",
                hint=HINT,
            )
        self._has_other_vectors = family.name in rows["vectors_in_other_shapes"]
        self._has_norms_plus_one = moved is not None and family.name in rows["norms_plus_one"]

    def undo(self, names: TensorNames, tensor: ReadableTensor, config: Config) -> ReadableTensor:
        """Return a tensor in Hugging Face's form; unchanged if it has this form."""
        # Most conversions only look whether there is such a form, and need no families.
        from weightctl.families.modules import shape_of
        from weightctl.families.steps import PLUS_ONE, convert_form
        from weightctl.weights.derived import DerivedTensor
        from weightctl.weights.steps.reshaped import InShape, Reshaped

        change, shape = names.change, tensor.info.shape
        if "kernel" in names.module and len(shape) == 3 and shape[2] == 1:
            step = InShape((shape[0], 1, shape[1]))
            return DerivedTensor(names.module, step, [tensor])
        if self._has_other_vectors and len(shape_of(names, config)) == 1 != len(shape):
            return DerivedTensor(names.module, Reshaped((prod(shape),)), [tensor])
        has_heads = change is not None and change.gguf_extents == ("each_head",)
        is_plus_one = self._has_norms_plus_one and change is PLUS_ONE
        if is_plus_one or (has_heads and len(shape) == 3):
            return convert_form(names, tensor, config, "gguf", "hugging_face")
        return tensor


def _is_moved(info: TensorInfo) -> bool:
    """Whether the kernel of a convolution has its axes in MLX's order."""
    shape = info.shape
    return (
        len(shape) == 3 and shape[2] == 1 < shape[1] and _CONVOLUTION.search(info.name) is not None
    )


@cache
def _read_table() -> Mapping[str, Mapping[str, Any]]:
    import tomllib

    return tomllib.loads(files("weightctl.families").joinpath("mlx.toml").read_text("utf-8"))
