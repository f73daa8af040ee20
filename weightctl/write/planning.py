"""Plans conversions: of a tree, a part of a multimodal model, or a model with merged adapters."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.families.config_file import is_draft
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import ADAPTER_CONFIG, CONFIG, config
from weightctl.formats.open.opening import open_weights
from weightctl.plan.arrangement import select
from weightctl.plan.cast import is_lossy
from weightctl.plan.choices import Names
from weightctl.plan.plan import Plan
from weightctl.plan.rename import RenamingsLike, collect_renamings
from weightctl.plan.rename import rename as renamed
from weightctl.schemes.adapters import is_adapter_checkpoint
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.system.files import fold_path
from weightctl.text.wording import pluralize
from weightctl.translate.layouts import plan_layout
from weightctl.translate.model_dtypes import make_unquantized_config, store_in_own_dtypes
from weightctl.translate.plans import ModelPart, plan_of
from weightctl.weights.tree import Checkpoint, find_stored_name, header_of, source_of
from weightctl.write.targets import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.adapters.reading import AdapterLike
    from weightctl.plan.choices import OptionalPart
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.info import TensorInfo
    from weightctl.write.conversion import Conversion
    from weightctl.write.targets import Target


class ModelParts(NamedTuple):
    """Which part of a multimodal model is written, and what is known of its tower.

    - `mmproj`: the content of the file with the tower, if the output is to contain it.
    - `beside`: the conversion that writes that file, if there is one.
    """

    part: ModelPart = ModelPart.WHOLE
    mmproj: Checkpoint | None = None
    beside: Conversion | None = None


def find_parts(
    weights: Checkpoint,
    mmproj: str | os.PathLike[str] | None,
    where: Target,
    plan_tower: Callable[[], Conversion] | None,
) -> ModelParts:
    """Return what a conversion does with the file of a tower: read it, or write it.

    `mmproj` is the path of the file, None if there is none. `plan_tower` plans to write it beside
    the output `where`; it is None if the file is the output. Raises `ConversionError` if both have
    the same path, and as `open_weights` does for a file that is read.
    """
    if mmproj is None:
        return ModelParts()
    if plan_tower is None:
        return ModelParts(ModelPart.TOWER)
    if ARCHITECTURE in header_of(weights).metadata:
        return ModelParts(mmproj=open_weights(mmproj))
    if fold_path(os.fspath(mmproj)) == fold_path(where.path):
        raise ConversionError(
            f"{where.path} is both the output and the file of the tower",
            hint="choose another path for --mmproj (mmproj in Python)",
        )
    return ModelParts(ModelPart.TEXT, beside=plan_tower())


def make_plan(
    weights: Checkpoint,
    where: Target,
    *,
    parts: ModelParts,
    names: Names,
    weights_only: bool,
    rename: RenamingsLike | None,
    is_cast: bool,
    in_blocks: bool,
    include: Sequence[str],
    exclude: Sequence[str],
    without: Sequence[OptionalPart],
    base: str | os.PathLike[str] | None = None,
) -> Plan:
    """Plan to store a tree; the tensors below a node that is not the root keep their names.

    The other arguments are those of `convert` and `plan_of`. Raises `ConversionError` for arguments
    that need the root of the tree, `MissingTensorError` if nothing exists at a node, and as
    `plan_of` does.
    """
    prefix = weights.name
    tree = Checkpoint(source_of(weights)) if prefix else weights
    if prefix and (rename is not None or weights_only):
        name = "weights_only" if rename is None else "rename"
        raise ConversionError(
            f"{name} works only on a whole checkpoint, but `{prefix}` is a part of one",
            hint="convert the root of the tree, with include",
        )
    has_config = bool(header_of(tree).documents.config)
    if weights_only or has_config:
        from weightctl.plan.weights_only import keep_weights

        tree = keep_weights(tree)
    if rename is not None:
        tree = renamed(tree, collect_renamings(rename))
    if has_config:
        from weightctl.translate.named_documents import remove_wrappers

        tree = remove_wrappers(tree)
    if base is not None and is_draft(config(header_of(tree))):
        tree, base = _name_target(tree, os.fspath(base)), None
    # Only a whole model can be translated to another naming convention.
    is_kept = prefix or (names is Names.AUTO and header_of(weights).missing)
    if not is_kept:
        own = _plan_adapter(tree, where, names, None if base is None else os.fspath(base))
        own = own or plan_layout(tree, where.format, names, is_model=where.file_name is not None)
        if own is not None:
            return select(own, include, exclude)
    plan = plan_of(
        tree,
        where.format,
        names=Names.KEEP if is_kept else names,
        is_model=where.file_name is not None,
        is_cast=is_cast,
        in_blocks=in_blocks,
        include=include,
        exclude=exclude,
        without=without,
        part=parts.part,
        mmproj=parts.mmproj,
    )
    if not prefix:
        return plan
    if not weights:
        find_stored_name(weights)  # raises MissingTensorError, with similar names
    stored = [*(item.info.name for item in plan.items), *plan.tied, *plan.unkept]
    return plan.only([name for name in stored if name == prefix or name.startswith(f"{prefix}.")])


def _name_target(tree: Checkpoint, target: str) -> Checkpoint:
    """Return the tree of a draft model with the tokenizer and what its config leaves to a target.

    Raises `ConversionError` if the target is not a directory with a config.json.
    """
    from weightctl.translate.named_documents import describe_by, find_directory

    place, own = find_directory(target, [CONFIG], "base"), header_of(tree).documents
    return describe_by(own._replace(tokenizer=own.tokenizer or place, target=place), tree)


def _plan_adapter(tree: Checkpoint, where: Target, names: Names, base: str | None) -> Plan | None:
    """Return the plan for a LoRA adapter that is to become GGUF; None for any other plan.

    If `base` is None, it is the model that the adapter names, if that is a local directory.
    """
    header = header_of(tree)
    document = config(header, ADAPTER_CONFIG)
    is_to_gguf = where.format == "gguf" and header.format != "gguf" and names is not Names.KEEP
    if not is_to_gguf or not is_adapter_checkpoint(header, document):
        if base is not None:
            raise ConversionError(
                "--base (base in Python) applies only to LoRA adapters and draft models that are "
                "converted to GGUF",
                hint="to merge an adapter into a model, use `weightctl merge MODEL ADAPTER OUT`",
            )
        return None
    named = document.get("base_model_name_or_path")
    if base is None and isinstance(named, str) and os.path.isfile(os.path.join(named, CONFIG)):
        base = named
    if base is None:
        return None
    from weightctl.adapters.gguf_file import plan_adapter

    return plan_adapter(tree, base)


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
