"""Shapes of blocks, in elements and in bytes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.errors import EncodingError
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.shape import ShapeLike


def in_elements(name: str, shape: ShapeLike, encoding: Encoding) -> Shape:
    """Return the shape in elements of an array of blocks, from its shape in bytes.

    Raises `EncodingError`, which names the tensor, if a row does not consist of whole blocks.
    """
    shape = Shape(shape)
    if not shape or shape[-1] % encoding.size != 0:
        raise EncodingError(
            f"`{name}` has shape {shape.text} in bytes: a row is not a whole number of {encoding} "
            "blocks",
            hint=f"give the shape as (rows, bytes per row), where a {encoding} block has "
            f"{encoding.size} bytes; if the dtype is a float dtype, give the shape in elements",
        )
    return Shape([*shape[:-1], encoding.elements_of(shape[-1])])


def in_bytes(name: str, shape: ShapeLike, encoding: Encoding) -> Shape:
    """Return the shape (rows, bytes per row) of an array of blocks, from its shape in elements.

    Raises `EncodingError`, which names the tensor, if a row does not consist of whole blocks.
    """
    shape = Shape(shape)
    if not shape or shape[-1] % encoding.block != 0:
        raise EncodingError(
            f"`{name}` has shape {shape.text}: a row is not a whole number of {encoding} blocks",
            hint=f"the row length of {encoding} must be a multiple of {encoding.block} elements",
        )
    return Shape([prod(shape[:-1], start=Dim(1)), encoding.row_bytes(shape[-1])])
