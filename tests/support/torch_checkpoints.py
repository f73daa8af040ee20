"""PyTorch checkpoints that tests write, and their tensors in torch itself."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from copying import raw
from lazy import torch
from weightctl import Weights, open_weights
from weightctl.dtype import encoding_by_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMS: dict[str, dict[str, Any]] = {
    "zip": {},
    "stream": {"_use_new_zipfile_serialization": False},
}
PROTOCOLS = range(6)


def state() -> dict[str, Any]:
    """Return a state dict with everything that a format could get wrong."""
    matrix = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    return OrderedDict(
        {
            "weight": matrix,
            "tied": matrix,
            "turned": matrix.t(),
            "part": matrix[1:3, 1],
            "half": torch.arange(7, dtype=torch.float16),
            "flags": torch.tensor([True, False, True]),
            "count": torch.tensor(12345678901234),
            "none": torch.zeros(0, 3),
            "ünïcode": torch.arange(3, dtype=torch.uint8),
        }
    )


def saved(path: Path, content: Any, form: str = "zip", **options: Any) -> Weights:
    """Write a file with torch, and open it."""
    torch.save(content, path, **FORMS[form], **options)
    return open_weights(path)


def content_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Return encoding, shape and contiguous bytes of a tensor."""
    encoding = encoding_by_id("pytorch", str(tensor.dtype).removeprefix("torch."))
    assert encoding is not None
    shape = tuple(tensor.shape)
    if tensor.dtype is torch.float4_e2m1fn_x2:
        shape = (*shape[:-1], 2 * (shape[-1] if shape else 1))
    whole = tensor.detach().contiguous()
    return encoding.name, shape, ctypes.string_at(whole.data_ptr(), encoding.nbytes(shape))


def contents_of(weights: Weights) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return encoding, shape and bytes of every tensor, by each of its names."""
    header = weights.header
    found = {}
    for name in (*header.tensors, *header.aliases):
        stored = header.aliases.get(name, name)
        info = header.tensors[stored]
        found[name] = (info.encoding.name, info.shape, raw(weights, stored))
        if info.encoding.dtype is not None:
            data = weights.source.data(stored)
            assert (data.info.shape, bytes(data.view())) == (info.shape, found[name][2])
    return found


def assert_same(weights: Weights, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compare a tree with tensors by their names."""
    found = contents_of(weights)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name] == content_of(tensor), name


def look(weights: Weights, name: str) -> tuple[str, str]:
    return tuple(weights.header.leaves[name])


def here(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
