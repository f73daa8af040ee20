"""The plan of a conversion that merges adapters: the types of the weights that change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import CONFIG
from weightctl.plan.cast import is_lossy
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.text.wording import pluralize
from weightctl.translate.own_dtypes import make_unquantized_config, store_in_own_dtypes
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.adapters.reading import AdapterLike
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint
    from weightctl.write.targets import Target


class Merge(NamedTuple):
    """What a conversion merges: the tensors of adapters, and those that schemes have packed."""

    of_adapters: frozenset[TensorInfo] = frozenset()
    packed: frozenset[str] = frozenset()

    def is_merged(self, item: Item) -> bool:
        """Whether an output tensor is computed from a tensor of an adapter."""
        return any(info in self.of_adapters for info in item.sources)

    def refuse_second_rounding(self, plan: Plan, *, requantize: bool) -> None:
        """Raise `ConversionError` if weights that are quantized would be quantized again."""
        twice: list[tuple[Item, TensorInfo]] = []
        for item in plan.items if self.of_adapters and not requantize else ():
            own = [info for info in item.sources if info not in self.of_adapters]
            if len(own) == len(item.sources):
                continue
            lossy = [info for info in own if is_lossy(info.encoding) or info.name in self.packed]
            if lossy and (item.is_rounded or is_lossy(item.info.encoding)):
                twice.append((item, lossy[0]))
        if not twice:
            return
        item, found = twice[0]
        raise ConversionError(
            f"{pluralize(len(twice), 'weight')} of the model {'is' if len(twice) == 1 else 'are'} "
            f"quantized (for example, `{found.name}` is {found.encoding}), and would be quantized "
            f"again as {item.info.encoding} after the merge",
            hint="start from the unquantized model, use --allow-requantize (allow_requantize=True "
            "in Python), or store unquantized values with --dtype bf16 (dtype in Python)",
        )


def plan_merge(
    base: Checkpoint,
    adapters: Sequence[AdapterLike],
    make: Callable[[Checkpoint], Plan],
    where: Target,
) -> tuple[Plan, Merge]:
    """Plan to store a model with adapters merged into it, if any; `make` plans to store a tree.

    The weights that change get the types that they would have without the adapters. Raises as
    `merge_adapters` does.
    """
    if not adapters:
        return make(base), Merge()
    from weightctl.adapters.merging import merge_adapters
    from weightctl.adapters.reading import parse_adapter

    is_gguf = where.format == "gguf"
    decoded = dequantize_weights(base, in_blocks=is_gguf, keeps_shapes=not is_gguf)
    tree, of_adapters = merge_adapters(decoded, list(map(parse_adapter, adapters)))
    merge = Merge(of_adapters, frozenset(list_scheme_tensors(header_of(base))))
    plan = make(tree)
    types = {item.info.name: item.info.encoding for item in make(base).items}

    def settle_type(item: Item) -> Item:
        encoding = types.get(item.info.name)
        if encoding is None or not merge.is_merged(item):
            return item
        return replace(item, info=item.info._replace(encoding=encoding))

    plan = plan.with_items(tuple(map(settle_type, plan.items)))
    if decoded is not base and not is_gguf:
        plan = store_in_own_dtypes(plan, set(merge.packed), base, frozenset())
        if where.file_name is not None and CONFIG not in plan.documents:
            plan = replace(plan, documents={**plan.documents, **make_unquantized_config(base)})
    return plan, merge
