"""Distributed checkpoints that tests write with torch's own records, and what torch reads."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from lazy import distributed_checkpoint as checkpoint
from lazy import torch
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from weightctl.weights.tree import Checkpoint

# The offsets of a chunk, and its elements.
Piece = tuple[tuple[int, ...], torch.Tensor]


def write_pieces(folder: Path, shape: Sequence[int], pieces: Sequence[Piece], **more: Any) -> Path:
    """Write a checkpoint with the tensor `a`, each piece in a file of its own."""
    folder.mkdir(parents=True)
    places: dict[Any, Any] = {}
    for number, (offsets, piece) in enumerate(pieces):
        saved = io.BytesIO()
        torch.save(piece, saved)
        name = f"__{number}_0.distcp"
        (folder / name).write_bytes(b"before" + saved.getvalue() + b"after")
        place = checkpoint.filesystem._StorageInfo(name, 6, len(saved.getvalue()))
        places[checkpoint.metadata.MetadataIndex("a", offsets)] = place
    chunks = [
        checkpoint.metadata.ChunkStorageMetadata(torch.Size(offsets), piece.shape)
        for offsets, piece in pieces
    ]
    properties = checkpoint.metadata.TensorProperties(dtype=pieces[0][1].dtype)
    state = {"a": checkpoint.metadata.TensorStorageMetadata(properties, torch.Size(shape), chunks)}
    metadata = checkpoint.metadata.Metadata(state, planner_data=more, storage_data=places)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def load_with_torch(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint as torch loads them in one process, by name."""
    huggingface = not (folder / ".metadata").exists()
    reader: Any = (
        checkpoint.HuggingFaceStorageReader(str(folder))
        if huggingface
        else checkpoint.FileSystemReader(folder)
    )
    stated = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in stated.items()
        if isinstance(each, checkpoint.metadata.TensorStorageMetadata)
    }
    checkpoint.load(state, storage_reader=reader, no_dist=True)
    return state


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read_all(tree: Checkpoint) -> Mapping[str, tuple[tuple[int, ...], bytes]]:
    """Return the shapes and bytes of all tensors, by name."""
    source = tree.source
    return {
        name: (info.shape, bytes(source.data(name).view()))
        for name, info in source.header.tensors.items()
    }


def assert_equals_torch(folder: Path) -> None:
    """Check that every tensor of a checkpoint is what torch loads."""
    expected = {
        name: (tuple(each.shape), raw(each)) for name, each in load_with_torch(folder).items()
    }
    assert expected
    assert read_all(open_weights(folder)) == expected
