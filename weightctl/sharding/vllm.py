"""Plans the files of ranks for vLLM's sharded-state loader.

The source is `model_loader/sharded_state_loader.py` of vLLM 0.33.0. It requires exactly the tensors
of vLLM's model, with its names and shapes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import ShardingError
from weightctl.families.matching import EMBEDDING_WEIGHT
from weightctl.families.parts import count_heads
from weightctl.families.sharing import SharedRun
from weightctl.formats.sharded.record import Shard, SourceShard
from weightctl.sharding.footprints import plain
from weightctl.sharding.placing import place_weights
from weightctl.sharding.vllm_family import family_of
from weightctl.sharding.vllm_names import POSITION_IDS, SCALES, in_vllm
from weightctl.sharding.vllm_shares import Shares
from weightctl.split import Sharding
from weightctl.text.wording import join_names, pluralize
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.sharding.placing import PlacedWeight
    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.vllm_names import VllmFamily

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
