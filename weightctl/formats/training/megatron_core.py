"""Checkpoints of Megatron Core in the format `torch_dist`: torch's distributed checkpoints.

Each tensor is whole. The layers are numbered, or are the first axis of one tensor, as experts are
the second. Source: `megatron/core/transformer/transformer_block.py`, `mlp.py` and `moe/experts.py`.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.pytorch.reading import read
from weightctl.formats.training.chunks import ChunkedSource, ChunkedTree
from weightctl.formats.training.megatron_args import read_args
from weightctl.formats.training.megatron_joining import LocalTensor, UnknownTensorError, join_ranks
from weightctl.storage.files import open_reader
from weightctl.weights.info import Header, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOTE = "the tensors keep Megatron's names: {}"
_RENAMED = "the tensors of Megatron-LM have the names of Hugging Face"
_NAME = re.compile(r"(model\.)?(?P<name>(decoder|embedding|output_layer)\..+)")
_STACKED = re.compile(r"decoder\.layers\.(?P<name>(?!\d+\.).+)")
_EXPERTS = re.compile(r"mlp\.experts\.experts\.(?P<name>linear_fc[12]\.weight)")


def rename_core(source: ChunkedSource, common: str) -> ChunkedSource:
    """Return the weights of a checkpoint with the names of Hugging Face.

    `common` is the path of the file with Megatron's arguments. If the model is not of a supported
    family, or the arguments are missing, the source is returned with a note. Raises `FormatError`
    if the shapes do not fit the arguments.
    """
    header = source.header
    whole = ChunkedTree(header.listing or common)
    try:
        args = read_args(common, read(open_reader(common)).metadata)
        reason = args.unsupported
        if not reason:
            join_ranks(whole, args, [[dict(_list_tensors(source))]])
    except UnknownTensorError as error:
        reason = f"`{error}` is not a tensor of a supported family"
    except FormatError as error:
        reason = error.reason
    if reason:
        return source.with_header(header._replace(notes=(*header.notes, _NOTE.format(reason))))
    rest = sum(_NAME.fullmatch(name) is None for name in header.tensors)
    left_out = f"; other tensors ({rest}), such as the optimizer's, are left out" if rest else ""
    kept = Header(
        "megatron", (), {}, {}, listing=header.listing, warnings=header.warnings,
        notes=(*header.notes, _RENAMED + left_out),
    )  # fmt: skip
    return whole.make_source(kept, source.files)


def _list_tensors(source: ChunkedSource) -> Iterator[tuple[str, LocalTensor]]:
    """Yield the weights with the number of their layer and of their expert."""
    for stored, info in source.header.tensors.items():
        found = _NAME.fullmatch(stored)
        if found is None:
            continue
        extent = source.header.extents[stored]
        whole = LocalTensor(source, stored, info.shape, info.encoding, extent.file, extent.offset)
        stacked = _STACKED.fullmatch(found["name"])
        if stacked is None:
            yield found["name"], whole
            continue
        experts = _EXPERTS.fullmatch(stacked["name"])
        for layer, one in enumerate(_list_entries(whole)):
            prefix = f"decoder.layers.{layer}."
            if experts is None:
                yield prefix + stacked["name"], one
                continue
            for number, expert in enumerate(_list_entries(one)):
                yield f"{prefix}mlp.experts.{experts['name']}{number}", expert


def _list_entries(tensor: LocalTensor) -> Iterator[LocalTensor]:
    """Yield the entries of the first axis."""
    shape = tensor.shape[1:]
    if not tensor.shape or not prod(shape):
        return
    nbytes = TensorInfo("", shape, tensor.encoding).nbytes
    for number in range(tensor.shape[0]):
        yield tensor._replace(shape=shape, start=tensor.start + number * nbytes)
