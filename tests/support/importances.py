"""Importance matrices in both forms of llama.cpp, written without weightctl."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def imatrix_gguf(
    path: Path,
    entries: Mapping[str, tuple[F32, F32]],
    *,
    datasets: tuple[str, ...] = ("text.txt",),
    chunks: int = 7,
    order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    products: Mapping[str, F32] | None = None,
    shared: Mapping[str, str] | None = None,
) -> Path:
    """Write entries of sums, shape (matrices, n), and counts, shape (matrices,), as GGUF.

    `products` are sums of products of columns, shape (n, n). `shared` has the name of the tensor
    that has the products for each further tensor.
    """
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", list(datasets))
    writer.add_uint32("imatrix.chunk_count", chunks)
    writer.add_uint32("imatrix.chunk_size", 512)
    if products:
        places = {name: name for name in products} | dict(shared or {})
        writer.add_array("weightctl.in_products.tensors", list(places))
        writer.add_array("weightctl.in_products.stored", list(places.values()))
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", np.array(sums, np.float32))
        writer.add_tensor(f"{name}.counts", np.array(counts, np.float32)[:, None])
    for name, square in (products or {}).items():
        triangle = square[np.triu_indices(len(square))].astype(np.float32)
        writer.add_tensor(f"{name}.in_products", triangle)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dat_entry(name: bytes, evaluations: int, values: F32) -> bytes:
    raw = np.ascontiguousarray(values, "<f4").tobytes()
    head = struct.pack("<i", len(name)) + name
    return head + struct.pack("<ii", evaluations, len(raw) // 4) + raw


def imatrix_dat(
    path: Path, entries: Mapping[str, tuple[F32, int]], tail: bytes | None = None
) -> Path:
    """Write entries of sums and evaluations in the older form; 7 chunks of text.txt behind them."""
    raw = struct.pack("<i", len(entries))
    for name, (sums, evaluations) in entries.items():
        raw += dat_entry(name.encode(), evaluations, sums)
    raw += struct.pack("<ii", 7, 8) + b"text.txt" if tail is None else tail
    path.write_bytes(raw)
    return path


def mean_products(columns: int, seed: int = 1) -> F32:
    """Return mean products of correlated inputs of different sizes."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((2 * columns, columns))
    inputs += 2 * random.standard_normal((2 * columns, 8)) @ random.standard_normal((8, columns))
    inputs *= np.exp(random.standard_normal(columns))
    return (inputs.T @ inputs / (2 * columns)).astype(np.float32)


def imatrix_with_products(
    path: Path, columns: Mapping[str, int], *, has_products: bool = True
) -> Path:
    """Write entries with products of columns; tensors with as many columns share theirs.

    Without `has_products`, the same entries have squares alone.
    """
    first: dict[int, str] = {}
    for name, count in sorted(columns.items()):
        first.setdefault(count, name)
    products = {name: 4 * mean_products(count) for count, name in first.items()}
    entries = {
        name: (products[first[count]].diagonal()[None], np.full(1, 4, np.float32))
        for name, count in columns.items()
    }
    shared = {name: first[count] for name, count in columns.items()}
    return imatrix_gguf(path, entries, products=products if has_products else None, shared=shared)
