"""Plans the files of ranks for vLLM's sharded-state loader.

The source is `model_loader/sharded_state_loader.py` of vLLM 0.33.0. It requires exactly the tensors
of vLLM's model, with its names and shapes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import ShardingError
from weightctl.families.matching import EMBEDDING_WEIGHT, OF_TOKENS
from weightctl.families.modules import count_heads
from weightctl.families.rank_ranges import SharedRun
from weightctl.families.steps import TRANSPOSED
from weightctl.formats.sharded.records import Shard, SourceShard
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.sharding.footprints import plain
from weightctl.sharding.placing import place_weights
from weightctl.sharding.vllm_names import (
    PADDED_TO,
    POSITION_IDS,
    RELEASE,
    SCALES,
    VLLM_FAMILIES,
    in_vllm,
)
from weightctl.split import Sharding, counts_that_work, part_along, part_shape, ranks_that_work
from weightctl.text.untyped import is_list
from weightctl.text.wording import join_names, pluralize
from weightctl.weights.info import TensorInfo
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.rank_ranges import Extent
    from weightctl.sharding.placing import PlacedWeight
    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.vllm_names import VllmFamily
    from weightctl.split import Heads, Part, Range

# The largest number of ranks to suggest, which is more than one model uses.
_MOST = 1024
_ENCODINGS = ("F32", "F16", "BF16")
_RANKS = 'use --layout ranks (layout="ranks" in Python), which supports this checkpoint'
_REPACKED = (
    "the vLLM layout does not support quantized weights, because vLLM repacks them when it loads a "
    "model, and weightctl only copies bytes"
)
_PLAIN = (
    'convert the checkpoint first: `weightctl convert IN OUT --dtype bf16` (dtype="bf16" in Python)'
)
_PROJECTED = ".qkv_proj.weight"
_STRATEGIES = {2: "gate_up", 3: "stacked_qkv"}
_FEW = 3


class _Parameter(NamedTuple):
    """A tensor of vLLM's model: the checkpoint's weights in it, and its strategy.

    If experts are separate tensors in the checkpoint, `experts` is their number, which is the size
    of a new first axis; otherwise it is 0.
    """

    name: str
    places: tuple[PlacedWeight, ...]
    strategy: str
    experts: int = 0


def vllm_plan(plan: ShardPlan, checkpoint: RecognizedModel) -> ShardPlan:
    """Return `plan` with the tensors of vLLM's model in place of its shardings and ranks.

    Tensors that vLLM's model does not have are left out, with a note. Raises `ShardingError` if
    vLLM cannot split a tensor or would repack it, and `ArchitectureError` if the checkpoint is not
    a complete model of its config.
    """
    family = family_of(plan, checkpoint)
    most = checkpoint.fields["experts"] if family.shares_experts else 0
    shares = Shares(count_heads(checkpoint.config), plan.grid.tp, most)
    parameters = list(_parameters(plan, checkpoint, family))
    places = [place for each in parameters for place in each.places]
    shares.refuse(places)
    _refuse_twice(places)
    for each in parameters:
        _refuse_mixed(each)
    found = {place.weight.name: _sharding(place, shares) for place in places}
    header = plan.source.header
    buffers = list(_buffers(plan, checkpoint, family, parameters))
    for shard in buffers:
        for piece in shard.pieces:
            found[piece.source] = Sharding("replicate", ((),) * shares.ranks)
    left = [name for name in header.tensors if name not in found]
    return replace(
        plan,
        shardings={name: found[name] for name in header.tensors if name in found},
        ranks=tuple(
            (*(_shard(each, found, shares, rank) for each in parameters), *buffers)
            for rank in range(shares.ranks)
        ),
        tied={alias: name for alias, name in plan.tied.items() if name in found},
        notes=tuple(_describe_left_out(left)),
    )


def _parameters(
    plan: ShardPlan, checkpoint: RecognizedModel, family: VllmFamily
) -> Iterator[_Parameter]:
    """Yield the tensors of vLLM's model that consist of the checkpoint's tensors."""
    tensors = plan.source.header.tensors
    places = place_weights(checkpoint, {name: plain(info) for name, info in tensors.items()})
    together: dict[str, list[tuple[int, str, PlacedWeight]]] = {}
    for names in checkpoint.family.tensors(checkpoint.config):
        stored = checkpoint.stored[names.module]
        place = places[plan.tied.get(stored, stored)]
        if names.line.module in family.padded:
            rows = SharedRun("vocabulary", 0, place.weight.shape[0])
            place = place._replace(strategy="rowwise", axis=0, runs=(rows,))
        name = in_vllm(family, names)
        if names.module == EMBEDDING_WEIGHT and checkpoint.fields.get("tied", False):
            name = family.head or name
        together.setdefault(name, []).append((names.expert, names.line.module, place))
    for name, members in together.items():
        members.sort(key=lambda member: member[0])
        lines = len({line for _, line, _ in members})
        own = tuple({place.weight.name: place for _, _, place in members}.values())
        is_apart = own[0].experts is not None and not own[0].is_stacked
        yield _Parameter(
            name,
            own,
            _STRATEGIES.get(lines, own[0].strategy),
            len({expert for expert, _, _ in members}) if is_apart else 0,
        )


def _refuse_twice(places: list[PlacedWeight]) -> None:
    """Raise `ShardingError` if the model uses a tensor twice, but its config does not tie them."""
    seen: set[str] = set()
    for name in (place.weight.name for place in places):
        if name in seen:
            raise ShardingError(
                f"`{name}` is used in two places of the model, but the config does not "
                "state that they are tied",
                hint="set `tie_word_embeddings` in config.json if the output is tied",
            )
        seen.add(name)


def _sharding(place: PlacedWeight, shares: Shares) -> Sharding:
    parts = tuple(shares.part(place, rank) for rank in range(shares.ranks))
    return Sharding(place.strategy if shares.ranks > 1 else "replicate", parts)


def _refuse_mixed(parameter: _Parameter) -> None:
    """Raise `ShardingError` if tensors that vLLM joins have different encodings."""
    first, *others = (place.weight.footprints[0].info for place in parameter.places)
    for other in others:
        if other.encoding != first.encoding:
            raise ShardingError(
                f"`{first.name}` is stored as {first.encoding} and `{other.name}` as "
                f"{other.encoding}, but vLLM joins them into one tensor, "
                f"`{parameter.name}`",
                hint="convert the checkpoint to one type first: `weightctl convert IN OUT "
                '--dtype bf16` (dtype="bf16" in Python)',
            )


def _shard(
    parameter: _Parameter, shardings: Mapping[str, Sharding], shares: Shares, rank: int
) -> Shard:
    """Return a rank's tensor, whose pieces are in order and followed by zeros as padding."""
    rows = 0
    inner: list[int] = []
    pieces: list[SourceShard] = []
    for place in parameter.places:
        part = shardings[place.weight.name].parts[rank]
        first, *inner = shares.shape(place, part)
        rows += first
        if part is not None:
            pieces.append(SourceShard(place.weight.name, part))
    count = parameter.experts
    shape = (count, rows // count, *inner) if count else (rows, *inner)
    info = parameter.places[0].weight.footprints[0].info
    strategy = parameter.strategy if shares.ranks > 1 else "replicate"
    return Shard(TensorInfo(parameter.name, shape, info.encoding), tuple(pieces), strategy)


def _buffers(
    plan: ShardPlan, checkpoint: RecognizedModel, family: VllmFamily, parameters: list[_Parameter]
) -> Iterator[Shard]:
    """Yield buffers that vLLM's loader requires, but whose values its model does not use.

    They are zeros, or copies of the checkpoint's buffers.
    """
    for name in (each.name for each in parameters if each.name.endswith(_PROJECTED)):
        attention = name.removesuffix(_PROJECTED)
        for scale in SCALES:
            info = TensorInfo(f"{attention}.attn.{scale}", (), ENCODINGS["F32"])
            yield Shard(info, (), "replicate")
    if family.has_position_ids:
        shape = (1, checkpoint.fields["context"])
        info = TensorInfo(f"model.{POSITION_IDS}", shape, ENCODINGS["I64"])
        own = tuple(
            SourceShard(name, ())
            for name, stored in plan.source.header.tensors.items()
            if checkpoint.family.plain(name) == POSITION_IDS and stored == info._replace(name=name)
        )
        yield Shard(info, own[:1], "replicate")


def _describe_left_out(names: list[str]) -> Iterator[str]:
    if names:
        count = pluralize(len(names), "tensor")
        are = "is" if len(names) == 1 else "are"
        yield (
            f"{count} {are} not written, because vLLM's model does not have "
            f"{'it' if len(names) == 1 else 'them'}: {join_names(names, _FEW)}"
        )


def family_of(plan: ShardPlan, checkpoint: RecognizedModel) -> VllmFamily:
    """Return vLLM's model class for a checkpoint.

    Raises `ShardingError` if the checkpoint's bytes cannot be split for this class unchanged, and
    `ArchitectureError` if the checkpoint is not a complete model.
    """
    _refuse_grid(plan)
    if checkpoint.convention == "gguf":
        raise ShardingError(
            f"{checkpoint.where} is a GGUF file, whose tensor names and row order differ from "
            "those that vLLM expects",
            hint=_PLAIN,
        )
    if plan.format != "safetensors":
        raise ShardingError(
            f"vLLM reads sharded checkpoints only from safetensors, not from {plan.format}",
            hint='use --to safetensors (to="safetensors" in Python), or leave it out',
        )
    _refuse_quantized(plan, checkpoint)
    family = _family(checkpoint)
    checkpoint.check()
    _refuse_odd(checkpoint, family)
    return family


def _refuse_grid(plan: ShardPlan) -> None:
    for name, size, what in (
        ("ep", plan.grid.ep, "expert parallelism"),
        ("pp", plan.grid.pp, "pipeline stages"),
    ):
        if size > 1:
            raise ShardingError(
                f"the vLLM layout does not support {what}",
                hint=f"leave out --{name} ({name} in Python), or use --layout ranks "
                '(layout="ranks" in Python)',
            )


def _refuse_quantized(plan: ShardPlan, checkpoint: RecognizedModel) -> None:
    header = plan.source.header
    packed = list_scheme_tensors(header)
    if packed:
        subject = f"`{next(iter(packed))}` is a part of a quantized weight"
        raise ShardingError(f"{subject}: {_REPACKED}", hint=_PLAIN)
    if checkpoint.document.get("quantization_config"):
        subject = f"{checkpoint.where} has a `quantization_config`"
        raise ShardingError(f"{subject}: {_REPACKED}", hint=_PLAIN)
    for name in checkpoint.stored.values():
        info = header.tensors.get(name)
        if info is not None and info.encoding.name not in _ENCODINGS:
            raise ShardingError(
                f"`{name}` is stored as {info.encoding}, but vLLM computes in "
                f"{', '.join(_ENCODINGS)}",
                hint=_PLAIN,
            )


def _family(checkpoint: RecognizedModel) -> VllmFamily:
    """Return vLLM's model class; raises `ShardingError` if `architectures` has another class."""
    family = checkpoint.family
    if any(each.change is TRANSPOSED for each in family.tensors(checkpoint.config)):
        raise ShardingError(
            f"the vllm layout does not support {family.name}: vLLM expects its matrices "
            "transposed, but the writer of shards copies bytes unchanged",
            hint=_RANKS,
        )
    vllm = VLLM_FAMILIES.get(family.name)
    if vllm is None:
        raise ShardingError(f"the vLLM layout does not support {family.name}", hint=_RANKS)
    classes = checkpoint.document.get("architectures")
    if not is_list(classes) or classes[:1] not in [[each] for each in vllm.classes]:
        raise ShardingError(
            f"{checkpoint.where} states the `architectures` {classes!r}, but vLLM's "
            f"layout of {family.name} is for {' or '.join(vllm.classes)}",
            hint=_RANKS,
        )
    return vllm


def _refuse_odd(checkpoint: RecognizedModel, family: VllmFamily) -> None:
    """Raise `ShardingError` if vLLM would ignore a bias, or expects another number of rows."""
    header, tokens = header_of(checkpoint.tree), checkpoint.fields["vocabulary"]
    for names in checkpoint.family.tensors(checkpoint.config):
        stored = checkpoint.stored[names.module]
        if family.plain_output and names.line.module.endswith(".o") and names.kind == "bias":
            raise ShardingError(
                f"vLLM {RELEASE} does not have `{stored}` and would compute without it", hint=_RANKS
            )
        rows, *_ = header.tensors[header.aliases.get(stored, stored)].shape
        if names.module in OF_TOKENS and rows != tokens:
            raise ShardingError(
                f"`{stored}` has {rows} rows, but vLLM expects {tokens}, the vocabulary "
                f"size in {checkpoint.where}",
                hint=_RANKS,
            )


class Shares(NamedTuple):
    """How vLLM divides a model among `ranks`; there can be at most `most` ranks, 0 for no limit."""

    heads: Heads
    ranks: int
    most: int = 0

    def part(self, place: PlacedWeight, rank: int) -> Part | None:
        """Return the part of a weight that a rank gets; None if the rank gets only padding."""
        if not place.runs:
            return ()
        ranges = [self._range(run, rank) for run in place.runs]
        if all(start == stop for start, stop in ranges):
            return None
        return part_along(place.axis, place.weight.shape[place.axis], ranges)

    def shape(self, place: PlacedWeight, part: Part | None) -> tuple[int, ...]:
        """Return the shape of a rank's shard, given its part of a weight, including padding."""
        shape = list(part_shape(place.weight.shape, part or ()))
        if any(run.extent == "vocabulary" for run in place.runs):
            shape[place.axis] = _pad_rows(place.weight.shape[place.axis]) // self.ranks
        return tuple(shape)

    def refuse(self, places: Iterable[PlacedWeight]) -> None:
        """Raise `ShardingError`, which names the weight, if vLLM cannot divide a weight evenly."""
        places = list(places)
        sizes: dict[tuple[Extent, int], PlacedWeight] = {}
        for place in places:
            for run in place.runs:
                sizes.setdefault((run.extent, run.stop - run.start), place)

        def problems(ranks: int) -> Iterator[tuple[PlacedWeight, str]]:
            for (extent, size), place in sizes.items():
                if reason := self._uneven(extent, size, ranks):
                    yield place, reason
            if 0 < self.most < ranks:
                place = next(each for each in places if each.experts)
                yield place, f"the model has only {pluralize(self.most, 'expert')}"

        found = next(problems(self.ranks), None)
        if found is None:
            return
        place, reason = found
        works = counts_that_work(
            lambda ranks: None if any(problems(ranks)) else ranks, min(self.heads.queries, _MOST)
        )
        raise ShardingError(
            f"vLLM cannot divide `{place.weight.name}` of shape "
            f"{list(place.weight.shape)} among {pluralize(self.ranks, 'rank')}: {reason}",
            hint=f"{ranks_that_work(works)}; other numbers of ranks need --layout ranks "
            '(layout="ranks" in Python)',
        )

    def _range(self, run: SharedRun, rank: int) -> Range:
        size, ranks = run.stop - run.start, self.ranks
        if run.extent == "keys" and self.heads.keys < ranks:
            # Several ranks get the same KV head.
            rank //= ranks // self.heads.keys
            ranks = self.heads.keys
        each = (_pad_rows(size) if run.extent == "vocabulary" else size) // ranks
        return run.start + min(rank * each, size), run.start + min((rank + 1) * each, size)

    def _uneven(self, extent: Extent, size: int, ranks: int) -> str:
        """Return the reason why an extent cannot be divided evenly; empty if it can."""
        queries, keys = self.heads[:2]
        if extent == "queries":
            return (
                f"{pluralize(queries, 'query head')} cannot be divided evenly"
                if queries % ranks
                else ""
            )
        if extent == "keys":
            reason = (
                f"the number of KV heads, {keys}, is neither a multiple nor a divisor of the "
                "number of ranks"
            )
            return reason if keys % ranks and ranks % keys else ""
        if extent == "vocabulary":
            rows = _pad_rows(size)
            reason = (
                f"{size} rows, padded to {rows} (a multiple of {PADDED_TO}), cannot be "
                "divided evenly"
            )
            return reason if rows % ranks else ""
        return f"{size} elements cannot be divided evenly" if size % ranks else ""


def _pad_rows(rows: int) -> int:
    return -(-rows // PADDED_TO) * PADDED_TO
