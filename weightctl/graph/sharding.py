"""Strategies for sharding a weight across devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from weightctl import split
from weightctl.errors import GraphError, ShardingError
from weightctl.split import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.device import DeviceRef
    from weightctl.graph.graph import Strategy, Weight
    from weightctl.split import Sharding

# Default settings of strategies, which `repr` leaves out.
_OMITTED: dict[str, dict[str, Any]] = {
    "stacked_qkv": {"axis": 0},
    "head_aware_columnwise": {"kv_heads": None, "axis": 1},
    "gate_up": {"axis": 0},
    "segmented": {"axis": 0},
}


class TensorParallel(Protocol):
    """A module that defines how to shard its weights for tensor parallel computation."""

    def tensor_parallel(self, devices: int, /) -> Mapping[Weight, Strategy]:
        """Return the strategy of each weight for this number of devices."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class ShardingStrategy:
    """A way to cut weights for a number of `devices`, in whole rows, heads and blocks.

    Sizes need not be divisible: the first devices get one more row, head or block. No device gets
    an empty shard: `ShardingError`, a `ValueError`, lists the numbers of devices that work.
    """

    name: str
    devices: int
    settings: Mapping[str, Any] = field(hash=False)
    _cut: Callable[[Weight], Sharding] = field(compare=False)

    @classmethod
    def rowwise(cls, devices: int) -> Self:
        """Cut along the first axis: the output features of a matrix."""
        return cls._of("rowwise", devices, split.rowwise)

    @classmethod
    def columnwise(cls, devices: int) -> Self:
        """Cut along the second axis: the input features of a matrix."""
        return cls._of("columnwise", devices, split.columnwise)

    @classmethod
    def replicate(cls, devices: int) -> Self:
        """Give every device the whole weight."""
        return cls._of("replicate", devices, split.replicate)

    @classmethod
    def axiswise(cls, axis: int, devices: int) -> Self:
        """Cut along any axis; -1 is the last."""
        return cls._of("axiswise", devices, split.axiswise, axis=axis)

    @classmethod
    def stacked_qkv(
        cls, devices: int, *, heads: int, kv_heads: int, head_dim: int, axis: int = 0
    ) -> Self:
        """Cut queries, keys and values that are stacked along an axis, each by heads.

        KV heads are replicated if there are fewer KV heads than devices.
        """
        settings = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "axis": axis}
        return cls._of("stacked_qkv", devices, split.stacked_qkv, **settings)

    @classmethod
    def head_aware_columnwise(
        cls,
        devices: int,
        *,
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        axis: int = 1,
    ) -> Self:
        """Cut the input columns of an output projection as `stacked_qkv` cuts the queries."""
        settings = {"heads": heads, "head_dim": head_dim, "kv_heads": kv_heads, "axis": axis}
        return cls._of("head_aware_columnwise", devices, split.head_aware_columnwise, **settings)

    @classmethod
    def gate_up(cls, devices: int, *, axis: int = 0) -> Self:
        """Cut each half of an axis separately: the gate projection and the up projection."""
        return cls._of("gate_up", devices, split.gate_up, axis=axis)

    @classmethod
    def segmented(cls, devices: int, sizes: Sequence[int], *, axis: int = 0) -> Self:
        """Cut each segment of an axis separately."""
        return cls._of("segmented", devices, split.segmented, sizes=tuple(sizes), axis=axis)

    @classmethod
    def expert_parallel(cls, devices: int) -> Self:
        """Divide experts that are stacked along the first axis; no expert is cut."""
        return cls._of("expert_parallel", devices, split.expert_parallel)

    @classmethod
    def given(cls, sharding: Sharding) -> Self:
        """Cut into exactly these parts, one per device."""
        settings = {"sharding": sharding}
        return cls("given", len(sharding.parts), settings, partial(_check_given, sharding))

    @classmethod
    def tensor_parallel(cls, module: TensorParallel, devices: int) -> Self:
        """Cut each weight of a module as the module's method `tensor_parallel` defines.

        Raises the errors of that method, and `GraphError` for a module without it.
        """
        if not hasattr(module, "tensor_parallel"):
            raise GraphError(
                f"{type(module).__name__} has no rule for several devices",
                hint="define the method `tensor_parallel(devices)`, or set strategies on its "
                "weights",
            )
        _require_count(devices)
        strategies = dict(module.tensor_parallel(devices))
        cut = partial(_cut_by_module, module, strategies)
        return cls("tensor_parallel", devices, {"module": module}, cut)

    def sharding(self, weight: Weight) -> Sharding:
        """Return the part of a weight for each device.

        Raises `ShardingError` if the weight cannot be split in this way, and `GraphError` if its
        sizes are not defined.
        """
        return self._cut(weight)

    def shard(self, weight: Weight, number: int, device: DeviceRef) -> Weight:
        """Return the shard of a weight with this number, on a device.

        Raises the errors of `sharding`, and `GraphError` for an empty shard.
        """
        part = self.sharding(weight).parts[number]
        if part is None:
            raise GraphError(
                f"`{weight.name}` has no shard on device {number} of {self.devices} (counted from "
                "0)",
                hint="use fewer devices, or another strategy for this weight",
            )
        return weight.part_for(part, number, device)

    def __repr__(self) -> str:
        omitted = _OMITTED.get(self.name, {})
        named = [
            f"{key}={value!r}"
            for key, value in self.settings.items()
            if key not in omitted or value != omitted[key]
        ]
        arguments = [str(self.devices), *named]
        if self.name == "axiswise":
            arguments = [repr(self.settings["axis"]), str(self.devices)]
        elif self.name == "segmented":
            arguments[1] = repr(self.settings["sizes"])
        elif self.name == "given":
            arguments = [repr(self.settings["sharding"])]
        elif self.name == "tensor_parallel":
            arguments = [f"<{type(self.settings['module']).__name__}>", str(self.devices)]
        return f"ShardingStrategy.{self.name}({', '.join(arguments)})"

    @classmethod
    def _of(
        cls, name: str, devices: int, function: Callable[..., Sharding], **settings: Any
    ) -> Self:
        _require_count(devices)
        return cls(name, devices, settings, partial(_cut, function, devices, settings))


def _require_count(devices: Any) -> None:
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ShardingError(
            f"{devices!r} is not a valid number of devices",
            hint="the number of devices must be at least 1",
        )


# These are module-level functions, not closures, so that strategies can be pickled.


def _cut(
    function: Callable[..., Sharding], devices: int, settings: Mapping[str, Any], weight: Weight
) -> Sharding:
    whole = _whole(weight)
    axis, rank = settings.get("axis", 0), len(whole.shape)
    if -rank <= axis < 0:
        settings = {**settings, "axis": axis + rank}
    return function(whole, devices, **settings)


def _check_given(sharding: Sharding, weight: Weight) -> Sharding:
    _require_fitting(_whole(weight), sharding)
    return sharding


def _cut_by_module(
    module: TensorParallel, strategies: Mapping[Weight, Strategy], weight: Weight
) -> Sharding:
    how = strategies.get(weight)
    if not isinstance(how, ShardingStrategy):
        raise GraphError(
            f"{type(module).__name__} has no rule for sharding its weight `{weight.name}`",
            hint="set a sharding_strategy on that weight",
        )
    return how.sharding(weight)


def _whole(weight: Weight) -> Whole:
    _, shape = weight.original_dtype_and_shape
    if not shape.is_static:
        raise GraphError(
            f"`{weight.name}` of shape {shape.text} cannot be split: its sizes are not defined",
            hint="declare the weight with the stored sizes",
        )
    quantization = weight.quantization_encoding
    blocks = [1] * len(shape)
    if quantization is not None:
        blocks[-1] = quantization.encoding.block
    return Whole(weight.name, shape.sizes, tuple(blocks))


def _require_fitting(whole: Whole, sharding: Sharding) -> None:
    """Raise `ShardingError` for parts that exceed a weight or split its blocks."""
    for rank, part in enumerate(sharding.parts):
        for axis, ranges in part or ():
            fits = 0 <= axis < len(whole.shape) and all(
                0 <= start < stop <= whole.shape[axis] for start, stop in ranges
            )
            if not fits:
                raise ShardingError(
                    f"device {rank} cannot have the ranges {list(ranges)} along axis {axis} of "
                    f"`{whole.name}` of shape {list(whole.shape)}"
                )
            block = whole.blocks[axis]
            if any(end % block and end != whole.shape[axis] for each in ranges for end in each):
                raise ShardingError(
                    f"the ranges {list(ranges)} of device {rank} would split blocks of {block} "
                    f"elements along axis {axis} of `{whole.name}` of shape {list(whole.shape)}"
                )
