"""llama.cpp's NVFP4: blocks of ggml, with a tensor that scales the whole weight or each expert.

The tensor `NAME.scale` beside `NAME.weight` is that of llama.cpp's converter for models of ModelOpt
and compressed-tensors; llama.cpp multiplies the product of the weight by it. `NAME.input_scale`
scales activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.naming import Candidate

_NAMES = NameEndings(".scale", ".weight", ".weight", ("NVFP4",), (".input_scale",))


def _infer(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    matrices = shape[0] if len(shape) == 3 else 1
    is_fit = len(shape) in {2, 3} and candidate.scales.shape in {(1,), (matrices,)}
    return LogicalWeight(shape) if is_fit and candidate.scales.encoding.name == "F32" else None


def _decode(stored: SchemeTensors) -> Decoding:
    stored.refuse_others()
    shape = stored.shape
    grid = stored.grid(shape, (*stored.scales.shape, *(1,) * (len(shape) - 1)))
    values = decoding.Scaled(
        numbers=decoding.BlockNumbers(0, shape[-1]), scales=stored.per_block(1, grid)
    )
    whole = decoding.WholeScale(
        stored.floats(1, stored.scales.size), decoding.ScaleUse.MULTIPLIES_VALUES
    )
    if shape[-1] % stored.numbers.encoding.block or not whole.is_usable():
        return decoding.Decoding(shape, values)
    return decoding.Decoding(shape, values, whole=whole)


SCHEME = Scheme(label="NVFP4", names=(_NAMES,), infer=_infer, decode=_decode, cut=cut_upright)
