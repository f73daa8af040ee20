"""Classic checkpoints of Megatron-LM: a directory for each rank, with a file of torch.

The tensors of models of the family of Llama are joined, and get the names of Hugging Face. Those of
other models are listed under the names of their ranks. Source:
`megatron/training/checkpointing.py`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from weightctl.errors import FormatError, MissingFileError
from weightctl.formats.pytorch.reading import read
from weightctl.formats.training.chunks import INCOMPLETE, ChunkedSource, ChunkedTree, StoredChunk
from weightctl.formats.training.detection import DIRECTORY_OF_RANK
from weightctl.formats.training.megatron_args import read_args
from weightctl.formats.training.megatron_joining import LocalTensor, UnknownTensorError, join_ranks
from weightctl.storage.files import is_file, open_reader, prepare
from weightctl.system.processes import without_collection
from weightctl.weights.info import Header, Leaf
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.formats.training.megatron_args import MegatronArgs
    from weightctl.storage.base import Reader

_FILES = ("model_optim_rng.pt", "model_rng.pt")
_NOTE = (
    "the tensors of each rank are listed under the name of its directory; they are not joined, "
    "and keep Megatron's names"
)
_JOINED = "the tensors of {} ranks of Megatron-LM are joined, with the names of Hugging Face"
# Names of tensors of Megatron Core. With virtual pipeline stages, a file has several models.
_CORE = re.compile(r"model(?P<stage>\d{0,3})\.(?P<name>(decoder|embedding|output_layer)\..+)")
_EXPERT = re.compile(
    r"(?P<start>decoder\.layers\.\d+\.mlp\.experts\.(local_experts\.|linear_fc[12]\.weight))"
    r"(?P<expert>\d{1,6})(?P<rest>.*)"
)
_LAYER = re.compile(r"decoder\.layers\.(\d{1,6})\.(.+)")

_MOST_RANKS = 1 << 17

_Models = dict[int, dict[str, LocalTensor]]


@without_collection()
def open_megatron(directory: str, names: Sequence[str]) -> ChunkedSource:
    """Open the files of the ranks in a directory.

    Raises `FormatError` if a file is missing, or if the tensors of the ranks do not fit.
    """
    ranks = sorted(filter(DIRECTORY_OF_RANK.fullmatch, names))
    paths = [_file_of(os.path.join(directory, rank)) for rank in ranks]
    prepare(paths)
    files = [open_reader(path) for path in paths]
    headers = [read(file) for file in files]
    if any(map(_CORE.fullmatch, headers[0].tensors)):
        args = read_args(paths[0], headers[0].metadata)
        reason = args.unsupported
        if not reason:
            try:
                return _join(directory, ranks, files, headers, args)
            except UnknownTensorError as error:
                reason = f"`{error}` is not a tensor of a supported family"
        return _list_ranks(directory, ranks, files, headers, f": {reason}")
    return _list_ranks(directory, ranks, files, headers)


def _list_ranks(
    directory: str,
    ranks: Sequence[str],
    files: Sequence[Reader],
    headers: Sequence[Header],
    reason: str = "",
) -> ChunkedSource:
    """Return the tensors of each rank under the name of its directory."""
    tree = ChunkedTree(directory)
    aliases: dict[str, str] = {}
    leaves: dict[str, Leaf] = {}
    for number, (rank, file, header) in enumerate(zip(ranks, files, headers, strict=True)):
        source = FileSource(header, (file,))
        for name, info in header.tensors.items():
            run = (info.nbytes, StoredChunk(source, name))
            named = info._replace(name=f"{rank}.{name}")
            tree.add_runs(named, [run], number, header.extents[name].offset)
        aliases |= {f"{rank}.{one}": f"{rank}.{other}" for one, other in header.aliases.items()}
        leaves |= {f"{rank}.{name}": leaf for name, leaf in header.leaves.items()}
    header = Header(
        "megatron", (), {}, {}, aliases=aliases, leaves=leaves, notes=(_NOTE + reason,),
        warnings=_warnings(headers),
    )  # fmt: skip
    return tree.make_source(header, files)


def _warnings(headers: Sequence[Header]) -> tuple[str, ...]:
    return tuple(text for header in headers for text in header.warnings)


def _join(
    directory: str,
    ranks: Sequence[str],
    files: Sequence[Reader],
    headers: Sequence[Header],
    args: MegatronArgs,
) -> ChunkedSource:
    """Return the tensors of the whole model."""
    places = {tuple(map(int, rank.split("_")[2:])): number for number, rank in enumerate(ranks)}
    experts = args.expert_ranks
    if args.tensor_ranks * args.pipeline_ranks * experts > _MOST_RANKS:
        text = "the arguments of the checkpoint state too many ranks"
        raise FormatError(files[0].path, None, text, hint=INCOMPLETE)
    if experts > 1 and (args.experts % experts or args.expert_tensor_ranks != args.tensor_ranks):
        reason = ": the experts are divided among other ranks than the rest of the model"
        return _list_ranks(directory, ranks, files, headers, reason)
    # Names of directories have the numbers of the kinds of parallelism that are used.
    wanted = [
        [
            [
                (tensor, *((stage,) if args.pipeline_ranks > 1 else ()),
                 *((expert,) if experts > 1 else ()))
                for expert in range(experts)
            ]
            for tensor in range(args.tensor_ranks)
        ]
        for stage in range(args.pipeline_ranks)
    ]  # fmt: skip
    needed = {key for stage in wanted for keys in stage for key in keys}
    if {*places} != needed:
        lost = sorted(needed - {*places})
        if not lost:
            reason = ": there are more ranks than the arguments of the checkpoint state"
            return _list_ranks(directory, ranks, files, headers, reason)
        named = "_".join((f"mp_rank_{lost[0][0]:02d}", *(f"{each:03d}" for each in lost[0][1:])))
        text = f"{len(lost)} of {len(needed)} ranks of the checkpoint are missing: {named}"
        raise MissingFileError(directory, None, text, hint=INCOMPLETE)
    models = [
        _models_of(number, file, header)
        for number, (file, header) in enumerate(zip(files, headers, strict=True))
    ]
    count = args.experts // experts
    stages = _number_layers(
        [
            [_merge_experts([models[places[key]] for key in keys], count) for keys in stage]
            for stage in wanted
        ]
    )
    tree = ChunkedTree(directory)
    join_ranks(tree, args, stages)
    header = Header("megatron", (), {}, {}, notes=(_JOINED.format(len(ranks)),),
                    warnings=_warnings(headers))  # fmt: skip
    return tree.make_source(header, files)


def _models_of(number: int, file: Reader, header: Header) -> _Models:
    """Return the tensors of a file by name, for each virtual stage of the pipeline."""
    source = FileSource(header, (file,))
    models: _Models = {}
    for name in (*header.tensors, *header.aliases):
        stored = header.aliases.get(name, name)
        if stored in header.tensors and name.startswith("model"):
            found = _CORE.fullmatch(name)
            stage, own = (found["stage"], found["name"]) if found else ("", name)
            info = header.tensors[stored]
            models.setdefault(int(stage or 0), {})[own] = LocalTensor(
                source, stored, info.shape, info.encoding, number, header.extents[stored].offset
            )
    return models


def _merge_experts(ranks: Sequence[_Models], count: int) -> _Models:
    """Return the tensors of expert-parallel ranks, each of which has `count` experts from 0 on."""
    merged: _Models = {}
    for rank, models in enumerate(ranks):
        for stage, tensors in models.items():
            own = merged.setdefault(stage, {})
            for name, tensor in tensors.items():
                found = _EXPERT.fullmatch(name)
                if found is not None:
                    number = rank * count + int(found["expert"])
                    own[f"{found['start']}{number}{found['rest']}"] = tensor
                elif rank == 0:
                    own[name] = tensor
    return merged


def _number_layers(stages: list[list[_Models]]) -> list[list[dict[str, LocalTensor]]]:
    """Give layers their numbers in the whole model; each stage of the pipeline begins with 0.

    Virtual stages follow each other as all first ones of the ranks, then all second ones.
    """
    virtual = sorted({number for ranks in stages for rank in ranks for number in rank})
    whole: list[list[dict[str, LocalTensor]]] = []
    start = 0
    for number in virtual:
        for ranks in stages:
            models = [rank.get(number, {}) for rank in ranks]
            found = [int(layer[1]) for name in models[0] if (layer := _LAYER.fullmatch(name))]
            whole.append(
                [{_shift(name, start): one for name, one in model.items()} for model in models]
            )
            start += max(found, default=-1) + 1
    return whole


def _shift(name: str, start: int) -> str:
    layer = _LAYER.fullmatch(name)
    return name if layer is None else f"decoder.layers.{int(layer[1]) + start}.{layer[2]}"


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
