"""Classic checkpoints of Megatron-LM: a directory for each rank, with a file of torch.

The tensors are listed under the names of their ranks, and are not joined. Source:
`megatron/training/checkpointing.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.pytorch.reading import read
from weightctl.formats.training.chunks import ChunkedSource, ChunkedTree, StoredChunk
from weightctl.formats.training.detection import DIRECTORY_OF_RANK
from weightctl.storage.files import is_file, open_reader, prepare
from weightctl.system.collection import without_collection
from weightctl.weights.info import Header, Leaf
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["open_megatron"]

_FILES = ("model_optim_rng.pt", "model_rng.pt")
_NOTE = (
    "the tensors of each rank are listed under the name of its directory; they are not joined, "
    "and keep Megatron's names"
)


@without_collection()
def open_megatron(directory: str, names: Sequence[str]) -> ChunkedSource:
    """Open the files of the ranks in a directory; raises `FormatError` if one is missing."""
    ranks = sorted(filter(DIRECTORY_OF_RANK.fullmatch, names))
    paths = [_file_of(os.path.join(directory, rank)) for rank in ranks]
    prepare(paths)
    files = [open_reader(path) for path in paths]
    tree = ChunkedTree(directory)
    aliases: dict[str, str] = {}
    leaves: dict[str, Leaf] = {}
    warnings: list[str] = []
    for number, (rank, file) in enumerate(zip(ranks, files, strict=True)):
        header = read(file)
        source = FileSource(header, (file,))
        for name, info in header.tensors.items():
            run = (info.nbytes, StoredChunk(source, name))
            named = info._replace(name=f"{rank}.{name}")
            tree.add_runs(named, [run], number, header.extents[name].offset)
        aliases |= {f"{rank}.{one}": f"{rank}.{other}" for one, other in header.aliases.items()}
        leaves |= {f"{rank}.{name}": leaf for name, leaf in header.leaves.items()}
        warnings += header.warnings
    header = Header(
        "megatron", (), {}, {}, aliases=aliases, leaves=leaves, notes=(_NOTE,),
        warnings=tuple(warnings),
    )  # fmt: skip
    return tree.make_source(header, files)


def _file_of(directory: str) -> str:
    paths = [os.path.join(directory, name) for name in _FILES]
    found = next(filter(is_file, paths), None)
    if found is None:
        raise FormatError(
            directory,
            None,
            "the file of this rank, model_optim_rng.pt, is missing",
            hint="check that the copy of the checkpoint is complete",
        )
    return found
