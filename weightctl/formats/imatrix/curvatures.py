"""The curvatures of the matrices that are being quantized, which threads share."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from weightctl.codecs.feedback.parts import parts_of

if TYPE_CHECKING:
    from weightctl.codecs.feedback import Curvature
    from weightctl.dtype import Encoding
    from weightctl.formats.imatrix.entry import Hessian

# Of a layer, some matrices have the same inputs, and one with others can be between them.
_KEPT = 2


class Curvatures:
    """Prepares the curvature of a matrix once, and keeps the last ones that were used.

    A curvature of n columns has 8 n * n bytes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[tuple[Hessian, int], Curvature] = {}

    def find(self, hessian: Hessian, encoding: Encoding) -> Curvature:
        """Return the curvature of a matrix for an encoding.

        Raises `FormatError` if the file does not have the products of inputs.
        """
        key = hessian, parts_of(encoding).block
        with self._lock:
            found = self._found.pop(key, None)
            if found is None:
                while len(self._found) >= _KEPT:
                    del self._found[next(iter(self._found))]
                found = hessian.prepare_curvature(encoding)
            self._found[key] = found
            return found
