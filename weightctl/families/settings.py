"""Values that one naming convention stores as tensors, and the other as config keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.family import TensorNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.families.family import Family
    from weightctl.families.keys import Config, NamingConvention

# How such tensors are described to users.
OF_CONFIG = "of the config"
_CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")


def list_made(
    family: Family, config: Config, convention: NamingConvention
) -> Iterator[tuple[TensorNames, NDArray[np.float32]]]:
    """Yield the tensors of a naming convention whose values the config of the other one states.

    Each tensor comes with its values, float32.
    """
    for line in family.names:
        numbers = None if line.made is None else line.made(config)
        if numbers is None or line.template(convention) is None:
            continue
        for layer in range(config.layers if line.is_of_layers else 1):
            gguf, hugging_face = (line.tensor(each, "weight", layer) for each in _CONVENTIONS)
            module = f"{line.module}.weight".format(layer)
            names = TensorNames(module, gguf, hugging_face, line, layer=layer)
            yield names, numbers[layer] if line.is_of_layers else numbers
