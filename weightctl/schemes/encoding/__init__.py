"""Rounding and packing of weights for the schemes that weightctl writes.

It uses NumPy or kernels, and is loaded when a weight is encoded; schemes refer to it earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.schemes.encoding.activation import (
        ActivationScale,
        Consumer,
        DividedNorm,
        ScaledImportance,
        ScaledTensor,
        SharedInputs,
    )
    from weightctl.schemes.encoding.floats import (
        Coded,
        Float8,
        Microscaled4,
        Microscaled8,
        global_scale,
    )
    from weightctl.schemes.encoding.integers import Affine, Biased, RowScaled, Symmetric
    from weightctl.schemes.encoding.packing import (
        as_bytes,
        pack_columns,
        pack_high_first,
        pack_row_groups,
        pack_rows,
        pack_transposed,
        transpose_words,
        zeros_of,
    )
    from weightctl.schemes.encoding.peaks import SharedPeak
    from weightctl.schemes.encoding.repacking import can_repack
    from weightctl.schemes.encoding.rounding import Codes
    from weightctl.schemes.encoding.search import ScaleSearch
    from weightctl.schemes.encoding.weight import (
        BandCache,
        EncodedWeight,
        StoredPart,
        WeightEncoding,
    )

__all__ = [
    "ActivationScale",
    "Affine",
    "BandCache",
    "Biased",
    "Coded",
    "Codes",
    "Consumer",
    "DividedNorm",
    "EncodedWeight",
    "Float8",
    "Microscaled4",
    "Microscaled8",
    "RowScaled",
    "ScaleSearch",
    "ScaledImportance",
    "ScaledTensor",
    "SharedInputs",
    "SharedPeak",
    "StoredPart",
    "Symmetric",
    "WeightEncoding",
    "as_bytes",
    "can_repack",
    "global_scale",
    "pack_columns",
    "pack_high_first",
    "pack_row_groups",
    "pack_rows",
    "pack_transposed",
    "transpose_words",
    "zeros_of",
]

_MODULES = {
    "activation": (
        "ActivationScale", "Consumer", "DividedNorm", "ScaledImportance", "ScaledTensor",
        "SharedInputs",
    ),
    "floats": ("Coded", "Float8", "Microscaled4", "Microscaled8", "global_scale"),
    "integers": ("Affine", "Biased", "RowScaled", "Symmetric"),
    "packing": (
        "as_bytes", "pack_columns", "pack_high_first", "pack_row_groups", "pack_rows",
        "pack_transposed", "transpose_words", "zeros_of",
    ),
    "repacking": ("can_repack",),
    "rounding": ("Codes",),
    "search": ("ScaleSearch",),
    "weight": ("BandCache", "EncodedWeight", "StoredPart", "WeightEncoding"),
    "peaks": ("SharedPeak",),
}  # fmt: skip

__getattr__ = load_on_use(
    __name__,
    {name: f"{__name__}.{module}:{name}" for module, names in _MODULES.items() for name in names},
)


def __dir__() -> list[str]:
    return sorted(__all__)
