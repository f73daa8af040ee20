"""The curvatures of the matrices that are being quantized, which threads share."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from weightctl.codecs.feedback.parts import has_parts, parts_of

if TYPE_CHECKING:
    from weightctl.codecs.feedback import Curvature
    from weightctl.dtype import Encoding
    from weightctl.formats.imatrix.entry import Products

# Of a layer, some matrices have the same inputs, and one with others can be between them.
_KEPT = 2


class Curvatures:
    """Prepares the curvature of a matrix once, and keeps the last ones that were used.

    A curvature of n columns has 8 n * n bytes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[tuple[Products, int], Curvature] = {}

    def find_for(self, products: Products | None, encoding: Encoding) -> Curvature | None:
        """Return the curvature of a matrix for a block type.

        It is None without products, and for types whose codes cannot be chosen. Raises as `find`.
        """
        if products is None or not has_parts(encoding):
            return None
        return self.find(products, parts_of(encoding).grid.block)

    def find(self, products: Products, block: int) -> Curvature:
        """Return the curvature of a matrix for blocks of this many columns.

        Raises `FormatError` if the file does not have the products of inputs.
        """
        key = products, block
        with self._lock:
            found = self._found.pop(key, None)
            if found is None:
                while len(self._found) >= _KEPT:
                    del self._found[next(iter(self._found))]
                found = products.prepare_curvature(block)
            self._found[key] = found
            return found
