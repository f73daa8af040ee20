"""Joins the tensors of Megatron's ranks into the tensors of Hugging Face.

Tensor-parallel ranks have rows of the embedding, of the fused query, key and value, and of the
fused gate and up projection, and columns of the output and down projections. The fused rows of a
group are those of its query heads, of its key and of its value. Source:
`megatron/core/transformer/attention.py` and `mlp.py`, and `tools/checkpoint/`.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.training.chunks import ChunkBlock, ChunkedTree, StoredChunk
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.dtype import Encoding
    from weightctl.formats.training.megatron_args import MegatronArgs
    from weightctl.weights.data import Source

# The number of missing tensors that are named.
_FEW = 5
_LAYER = re.compile(r"decoder\.layers\.(?P<layer>\d{1,6})\.(?P<name>.+)")
_EXPERT = re.compile(
    r"mlp\.experts\.(local_experts\.(?P<number>\d{1,6})\.linear_fc(?P<matrix>[12])\.weight"
    r"|linear_fc(?P<fused>[12])\.weight(?P<index>\d{1,6}))"
)
_EMBEDDING, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_NORM = "decoder.final_layernorm.weight"
# Tensors of a layer that all ranks have, and those that ranks have columns of.
_EQUAL = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
_COLUMNS = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_QKV, _FC1, _ROUTER = "self_attention.linear_qkv.", "mlp.linear_fc1.weight", "mlp.router.weight"
_QUERY_NORM = "self_attention.q_layernorm.weight"
# The names of a router, and of the gate, up and down projections of an expert, by family.
_QWEN = ("mlp.gate.weight", "mlp.experts.{}.{}_proj.weight", ("gate", "up", "down"))
_MIXTRAL = ("block_sparse_moe.gate.weight", "block_sparse_moe.experts.{}.{}.weight",
            ("w1", "w3", "w2"))  # fmt: skip


class UnknownTensorError(ValueError):
    """A tensor of Megatron that has no counterpart in the supported families."""


class LocalTensor(NamedTuple):
    """A tensor of a rank: its source, and the offset of its first byte in a stored tensor.

    `file` is the number of its file, and `place` the offset in the file.
    """

    source: Source
    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    file: int
    place: int
    start: int = 0

    def rows(self, first: int) -> StoredChunk:
        """Return the bytes from a row on."""
        info = TensorInfo("", (first, *self.shape[1:]), self.encoding)
        return StoredChunk(self.source, self.name, self.start + info.nbytes)


def is_state(name: str) -> bool:
    """Whether a tensor is not a weight: it is computed, or belongs to the Transformer Engine."""
    return name.endswith(("_extra_state", "rotary_pos_emb.inv_freq"))


def join_ranks(
    tree: ChunkedTree, args: MegatronArgs, stages: Sequence[Sequence[dict[str, LocalTensor]]]
) -> None:
    """Add the tensors of all ranks to a tree.

    `stages` has the tensors of each tensor-parallel rank by name, for each pipeline rank; layers
    have the numbers that they have in the whole model. Raises `UnknownTensorError` for a tensor
    that no supported family has. Problems of shapes are problems of the tree.
    """
    joining = _Joining(tree, args)
    for ranks in stages:
        for name in ranks[0]:
            if is_state(name):
                continue
            lost = next((number for number, rank in enumerate(ranks) if name not in rank), None)
            if lost is not None:
                tree.problems.append(f"`{name}`: tensor-parallel rank {lost} does not have it")
                continue
            joining.add(name, [rank[name] for rank in ranks], ranks[0])
    joining.require_all()


class _Joining:
    """Adds tensors of Hugging Face to a tree."""

    def __init__(self, tree: ChunkedTree, args: MegatronArgs) -> None:
        self._tree, self._args = tree, args

    def require_all(self) -> None:
        """Add problems for tensors that every model has, and that no rank has."""
        if not self._tree.problems:
            lost = (f"`{name}`: no rank has it" for name in self._list_needed()
                    if not self._tree.has(name))  # fmt: skip
            self._tree.problems += islice(lost, _FEW)

    def _list_needed(self) -> Iterator[str]:
        yield from ("model.embed_tokens.weight", "model.norm.weight")
        if not self._args.is_tied:
            yield "lm_head.weight"
        for layer in range(self._args.layers):
            prefix = f"model.layers.{layer}."
            yield from (prefix + name for name in (
                "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.o_proj.weight",
                "post_attention_layernorm.weight",
            ))  # fmt: skip
            yield from self._list_experts(prefix)

    def _list_experts(self, prefix: str) -> Iterator[str]:
        """Yield the last tensor of the MLP, or of each expert, of a layer."""
        for router, expert, (*_, down) in (_QWEN, _MIXTRAL):
            if self._tree.has(prefix + router):
                yield from (prefix + expert.format(n, down) for n in range(self._args.experts))
                return
        yield prefix + _COLUMNS["mlp.linear_fc2.weight"]

    def add(self, name: str, parts: list[LocalTensor], rank: dict[str, LocalTensor]) -> None:
        """Add the tensors that a tensor of Megatron, of which each rank has a part, has."""
        if name == _EMBEDDING:
            self._add_rows("model.embed_tokens.weight", parts, self._args.vocabulary)
        elif name == _OUTPUT:
            if not self._args.is_tied:
                self._add_rows("lm_head.weight", parts, self._args.vocabulary)
        elif name == _NORM:
            self._add_equal("model.norm.weight", parts[0])
        elif found := _LAYER.fullmatch(name):
            layer, own = found["layer"], found["name"]
            if int(layer) >= self._args.layers:
                self._tree.problems.append(
                    f"`{name}`: the model has {self._args.layers} layers (`num_layers`)"
                )
                return
            is_qwen = f"decoder.layers.{layer}.{_QUERY_NORM}" in rank
            self._add_of_layer(f"model.layers.{layer}.", own, parts, is_qwen=is_qwen)
        else:
            raise UnknownTensorError(name)

    def _add_of_layer(
        self, prefix: str, name: str, parts: list[LocalTensor], *, is_qwen: bool
    ) -> None:
        router, expert, (gate, up, down) = _QWEN if is_qwen else _MIXTRAL
        if name in _EQUAL:
            self._add_equal(prefix + _EQUAL[name], parts[0])
        elif name in _COLUMNS:
            self._add_columns(prefix + _COLUMNS[name], parts)
        elif name in {f"{_QKV}weight", f"{_QKV}bias"}:
            self._add_attention(prefix + "self_attn.{}_proj." + name.rpartition(".")[2], parts)
        elif name == _FC1:
            self._add_gated([f"{prefix}mlp.{each}_proj.weight" for each in ("gate", "up")], parts)
        elif name == _ROUTER:
            self._add_equal(prefix + router, parts[0])
        elif found := _EXPERT.fullmatch(name):
            number = found["number"] or found["index"]
            if (found["matrix"] or found["fused"]) == "1":
                pair = [prefix + expert.format(number, each) for each in (gate, up)]
                self._add_gated(pair, parts)
            else:
                self._add_columns(prefix + expert.format(number, down), parts)
        else:
            raise UnknownTensorError(name)

    def _put(
        self,
        name: str,
        shape: tuple[int, ...],
        first: LocalTensor,
        blocks: Iterable[tuple[ChunkBlock, StoredChunk]],
    ) -> None:
        if self._tree.has(name):
            self._tree.problems.append(f"`{name}`: two ranks of the pipeline have it")
            return
        info = TensorInfo(name, shape, first.encoding)
        self._tree.add_blocks(info, [*blocks], first.file, first.place)

    def _is_alike(self, name: str, parts: list[LocalTensor], dimensions: int) -> bool:
        first = parts[0]
        is_alike = len(first.shape) == dimensions and all(
            (each.shape, each.encoding) == (first.shape, first.encoding) for each in parts
        )
        if not is_alike:
            shapes = ", ".join(f"{each.encoding} {list(each.shape)}" for each in parts[:3])
            self._tree.problems.append(f"`{name}`: the parts of the ranks do not fit: {shapes}")
        return is_alike

    def _add_equal(self, name: str, part: LocalTensor) -> None:
        block = ChunkBlock((0,) * len(part.shape), part.shape)
        self._put(name, part.shape, part, [(block, part.rows(0))])

    def _add_rows(self, name: str, parts: list[LocalTensor], most: int | None) -> None:
        """Add a tensor of which each rank has rows; rows after `most` are padding."""
        if not self._is_alike(name, parts, 2):
            return
        count, width = parts[0].shape
        total = count * len(parts) if most is None else most
        if total > count * len(parts):
            self._tree.problems.append(
                f"`{name}`: it has {count * len(parts)} rows, fewer than `vocab_size` ({most})"
            )
            return
        blocks = (
            (ChunkBlock((at, 0), (min(count, total - at), width)), part.rows(0))
            for at, part in zip(range(0, total, count), parts, strict=False)
        )
        self._put(name, (total, width), parts[0], blocks)

    def _add_columns(self, name: str, parts: list[LocalTensor]) -> None:
        if not self._is_alike(name, parts, 2):
            return
        rows, width = parts[0].shape
        blocks = (
            (ChunkBlock((0, number * width), (rows, width)), part.rows(0))
            for number, part in enumerate(parts)
        )
        self._put(name, (rows, width * len(parts)), parts[0], blocks)

    def _add_gated(self, names: list[str], parts: list[LocalTensor]) -> None:
        """Add the gate and up projections; a rank has its rows of one, then of the other."""
        if not self._is_alike(names[0], parts, 2):
            return
        both, width = parts[0].shape
        rows = both // 2
        for half, name in enumerate(names):
            blocks = (
                (ChunkBlock((number * rows, 0), (rows, width)), part.rows(half * rows))
                for number, part in enumerate(parts)
            )
            self._put(name, (rows * len(parts), width), parts[0], blocks)

    def _add_attention(self, pattern: str, parts: list[LocalTensor]) -> None:
        """Add query, key and value; the rows of a rank are those of its groups, in order."""
        args, rest = self._args, parts[0].shape[1:]
        per_group = args.heads // args.groups
        groups = args.groups // len(parts)
        fused = (per_group + 2) * args.head_size
        is_whole = args.groups % len(parts) == 0 and args.heads % args.groups == 0
        if not is_whole or parts[0].shape[:1] != (groups * fused,):
            self._tree.problems.append(
                f"`{pattern.format('q')}`: {list(parts[0].shape)} does not fit {args.heads} heads, "
                f"{args.groups} groups of {args.head_size} channels, on {len(parts)} ranks"
            )
            return
        if not self._is_alike(pattern.format("q"), parts, 1 + len(rest)):
            return
        start = 0
        for letter, heads in (("q", per_group), ("k", 1), ("v", 1)):
            rows = heads * args.head_size
            pieces = (part.rows(group * fused + start) for part in parts for group in range(groups))
            blocks = [
                (ChunkBlock((at * rows, *(0,) * len(rest)), (rows, *rest)), data)
                for at, data in enumerate(pieces)
            ]
            self._put(pattern.format(letter), (args.groups * rows, *rest), parts[0], blocks)
            start += rows
