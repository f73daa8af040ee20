"""Storing the weights of a plan in a scheme of serving engines, with the config that states it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.dtype import ENCODINGS, Encoding
from weightctl.errors import ConversionError
from weightctl.families.mlx import describe_unread
from weightctl.formats.huggingface import CONFIG, config, json_document
from weightctl.formats.open.index import few
from weightctl.plan.cast import is_layer_matrix
from weightctl.plan.importance import describe_feedback
from weightctl.plan.plan import Item
from weightctl.plan.scheme_decisions import (
    HALF,
    Decision,
    describe_decisions,
    find_exact,
)
from weightctl.plan.scheme_scaling import scale_activations
from weightctl.schemes.compressed_tensors import describe_mixture
from weightctl.schemes.settings import without_settings
from weightctl.system.registry import load
from weightctl.text.wording import list_first, pluralize
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.steps.rows import StackedEntry
from weightctl.weights.steps.stacked import Stacked
from weightctl.weights.steps.transposed import Transposed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.formats.imatrix import Importance
    from weightctl.plan.plan import Plan
    from weightctl.plan.scheme_names import SchemeRecipe
    from weightctl.plan.scheme_scaling import ScaledTensors
    from weightctl.plan.type_rules import TypeRule
    from weightctl.schemes.arrays.search import ScaleSearch
    from weightctl.schemes.arrays.weight import EncodedWeight
    from weightctl.schemes.layout import WeightEncoding
    from weightctl.schemes.scheme import SchemeChoice, WrittenScheme
    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo


_EXPERT = re.compile(r"\.experts\.(\d+)\.")


class SchemeSearch(NamedTuple):
    """A search for the scales of all weights; `importance` weights the errors of columns.

    If it has products of columns, and `feedback` is set, codes are chosen with error feedback.
    """

    importance: Importance | None = None
    feedback: bool = True

    @classmethod
    def choose(
        cls, importance: Importance | None, *, search: bool, feedback: bool
    ) -> SchemeSearch | None:
        """Return the search that a user asks for: an importance matrix implies one."""
        return cls(importance, feedback) if search or importance is not None else None


def find_searches(
    plan: Plan, decisions: Sequence[Decision], search: SchemeSearch | None
) -> tuple[dict[str, ScaleSearch], list[str]]:
    """Return the searches for the weights that are rounded, by name, and notes on them.

    Raises `ConversionError` if no weight has an entry in the importance matrix, or if an entry does
    not have the size of its weight.
    """
    if search is None:
        return {}, []
    from weightctl.schemes.arrays.search import ScaleSearch

    rounded = [each.item for each in decisions if each.is_quantized and not each.is_exact]
    made = {item.info.name: ScaleSearch(item.info.row) for item in rounded}
    if search.importance is not None:
        made |= _find_importance(plan, rounded, search.importance)
    if search.importance is not None and not search.feedback:
        made = {name: replace(each, products=None) for name, each in made.items()}
    return made, list(_describe(search, made))


def _find_importance(
    plan: Plan, items: Sequence[Item], importance: Importance
) -> dict[str, ScaleSearch]:
    """Return searches for the weights that have an entry, by the names of the weights."""
    described = plan.describe() if plan.describe is not None else None
    names = dict[str, str]() if described is None else described.names
    from weightctl.formats.imatrix.curvatures import Curvatures

    found: dict[str, ScaleSearch] = {}
    curvatures = Curvatures()
    for item in items:
        entry = _find_entry(item, importance, names)
        if entry is not None:
            found[item.info.name] = replace(entry, curvatures=curvatures)
    if items and not found:
        raise ConversionError(
            f"{importance.path} has no entry for any weight: its first entry is "
            f"`{next(iter(importance.values), '')}`, but the first weight is "
            f"`{items[0].info.name}`",
            hint="use the importance matrix of this model; to search without one, use --search "
            "(search=True in Python) instead of --imatrix",
        )
    return found


def _find_entry(item: Item, importance: Importance, names: Mapping[str, str]) -> ScaleSearch | None:
    stored = item.stored.name
    from weightctl.schemes.arrays.search import ScaleSearch

    for name in (item.info.name, names.get(item.info.name), names.get(stored), stored):
        values = importance.values.get(name or "")
        if values is None:
            continue
        columns = item.info.row
        expert = _EXPERT.search(item.info.name)
        matrix = int(expert[1]) if expert and values.size != columns else 0
        count, rest = divmod(values.size, columns)
        if rest or matrix >= count or (count > 1 and not expert):
            raise ConversionError(
                f"`{item.info.name}` has {columns} columns, but {importance.path} has "
                f"{values.size} values for it",
                hint="the importance matrix belongs to another model; use one that was made with "
                "this model",
            )
        products = importance.hessians.get(name or "")
        if products is not None and (count > 1 or products.columns != columns):
            products = None
        return ScaleSearch(columns, values.reshape(count, columns), matrix, products)
    return None


def _describe(search: SchemeSearch, made: Mapping[str, ScaleSearch]) -> Iterator[str]:
    """Yield notes if the search has no effect, or does not use the importance of all weights."""
    if not made:
        given = "--search" if search.importance is None else "--imatrix"
        yield f"{given} changes nothing: no weight is rounded"
    without = [name for name, each in made.items() if each.importance is None]
    if search.importance is not None and without:
        yield (
            f"{len(without)} of {len(made)} weights have no entry in {search.importance.path}, "
            f"and their columns are equally important: {few(without)}"
        )


_ENDING = ".weight"
_WIDE = ("BF16", "F16", "F32", "F64")
# Blocks of GGUF whose scales are F16.
_IN_HALF = ("Q4_0", "Q4_1", "Q8_0")
# Matrices that are not linear modules.
_LOOKED_UP = re.compile(r"embed(?!ding\.linear\.)|\bwte\b|\bwpe\b|norm", re.IGNORECASE)
_OUTPUT = "lm_head"
_FEW = 3
# The share of values that do not fit a group size above which another one is sought, and the share
# above which a conversion is refused.
_FEW_REFUSED, _MOST_REFUSED = 0.1, 0.5


def store_in_scheme(
    plan: Plan,
    recipe: SchemeRecipe,
    rules: Sequence[TypeRule] = (),
    *,
    fallback: bool = True,
    requantize: bool = False,
    zero_nonfinite: bool = False,
    exact: bool = False,
    importance: Importance | None = None,
    search: bool = False,
    feedback: bool = True,
) -> Plan:
    """Store the matrices of layers in a scheme, and state it in config.json.

    Norms, biases, routers, embeddings, the output projection and the towers of multimodal models
    keep their type; the lines of a recipe decide otherwise. `rules` give tensors a type without
    blocks. Weights that the scheme cannot store keep their type too, unless `fallback` is False, or
    they have most values. If the usual group size does not fit and none is stated, the one that
    fits most rows is used.
    Other types than 16 and 32 bits become the type of most of the other matrices, by default BF16.
    Blocks of GGUF whose values the scheme can hold are repacked, and not rounded. With `exact`,
    tensors that keep their type become F32 where another type would round them, and rounded weights
    are left to the caller. With `search` or `importance`, the scales of rounded weights have the
    smallest error. If `importance` has products of columns, integers and floats of 4 bits are
    chosen with error feedback, unless `feedback` is False.

    Raises `ConversionError` if no weight can be stored in the scheme, if there is no config.json
    that could state it, if a rule is for a type with blocks, and, without `requantize`, for values
    that were already rounded.
    """
    settings = _read_config(plan)
    recipe = choose_variant(recipe, settings)
    base = ENCODINGS["F32"] if exact else _choose_base(plan)

    def decide(recipe: SchemeRecipe) -> list[Decision]:
        return [_decide(plan, item, recipe, rules, base) for item in plan.items]

    usual, decisions = recipe, decide(recipe)
    if recipe.is_group_open and _find_refused_share(decisions) > _FEW_REFUSED:
        recipe = min(_list_groups(recipe), key=lambda each: _find_refused_share(decide(each)))
        decisions = decide(recipe)
    if recipe.choice != usual.choice:
        note = f"groups have {recipe.choice.options.group} values, because groups of "
        note += f"{usual.choice.options.group} do not fit the rows of most weights"
        plan = replace(plan, notes=(*plan.notes, note))
    if recipe.choice.scheme.of_experts:
        plan, decisions = exchange_experts(plan, decisions)
    decisions = find_exact(plan, decisions)
    _refuse(plan, recipe, rules, decisions, fallback=fallback, requantize=requantize or exact)
    searches, search_notes = find_searches(
        plan, decisions, SchemeSearch.choose(importance, search=search, feedback=feedback)
    )
    encodings = {
        each.item.info.name: _encode(each, base) for each in decisions if each.is_quantized
    }
    searches, feedback_notes = _choose_feedback(searches, encodings)
    scaled = scale_activations(plan, recipe, decisions, encodings, searches)
    weights = _encode_weights(
        plan, decisions, encodings, searches, scaled=scaled, zero_nonfinite=zero_nonfinite
    )
    source, items = _make_items(plan, decisions, weights, searches, scaled=scaled)
    consulted = {recipe.path: "the recipe"} if recipe.path else {}
    if importance is not None:
        consulted[importance.path] = "the importance matrix"
    of_mlx = [e.item.info.name for e in decisions if e.is_quantized and "MLX" in str(e.choice)]
    notes = describe_unread(settings.get("model_type"), of_mlx)
    document = {**settings, **_describe_settings(plan, decisions)}
    choices = dict.fromkeys(str(each.choice) for each in decisions if each.is_quantized)
    return replace(
        plan,
        source=source,
        items=items,
        documents={**plan.documents, CONFIG: json_document(document)},
        scheme=" and ".join(choices),
        consulted={**plan.consulted, **consulted},
        notes=(
            *plan.notes,
            *describe_decisions(recipe, decisions),
            *search_notes,
            *feedback_notes,
            *scaled.notes,
            *notes,
        ),
    )


def _choose_feedback(
    searches: Mapping[str, ScaleSearch], encodings: Mapping[str, WeightEncoding]
) -> tuple[dict[str, ScaleSearch], list[str]]:
    """Return the searches, with products where codes are chosen with them, and notes on them."""
    from weightctl.schemes.arrays.feedback import find_grid

    made: dict[str, ScaleSearch] = {}
    for name, each in searches.items():
        grid = find_grid(encodings[name].rounding, each.columns)
        made[name] = each if grid is not None else replace(each, products=None)
    if not any(each.products is not None for each in searches.values()):
        return made, []
    alone = [name for name, each in made.items() if each.products is None]
    return made, [describe_feedback(len(made), alone)]


def _list_groups(recipe: SchemeRecipe) -> list[SchemeRecipe]:
    """Return a recipe with each group size of its scheme, its own first, and then the largest."""
    scheme, options = recipe.choice
    sizes = (options.group, *sorted(scheme.groups, reverse=True))
    made = [recipe.choice._replace(options=options._replace(group=size)) for size in sizes]
    return [recipe._replace(choice=each) for each in made]


def _find_refused_share(decisions: Sequence[Decision]) -> float:
    """Return the share of values that cannot be stored in the scheme that is chosen for them."""
    refused = sum(each.item.info.size for each in decisions if each.refusal)
    return refused / max(1, refused + sum(e.item.info.size for e in decisions if e.is_quantized))


def _read_config(plan: Plan) -> dict[str, Any]:
    """Return the config of the output without quantization."""
    made = plan.documents.get(CONFIG)
    found: dict[str, Any] = dict(config(plan.source.header) if made is None else json.loads(made))
    if not found:
        raise ConversionError(
            "there is no config.json that could state how weights are quantized",
            hint="put the config.json of the model beside the input",
        )
    return without_settings(found)


def _choose_base(plan: Plan) -> Encoding:
    """Return the encoding of most matrices that are stored without quantization; else BF16.

    If all matrices are in blocks whose scales are F16, it is F16.
    """
    sizes: Counter[str] = Counter()
    for item in plan.items:
        name = item.stored.encoding.name
        if len(item.info.shape) > 1 and len(item.sources) == 1 and name in _WIDE:
            sizes[name] += item.info.size
    has_half = any(item.source.encoding.name in _IN_HALF for item in plan.items)
    name = sizes.most_common(1)[0][0] if sizes else "F16" if has_half else "BF16"
    return ENCODINGS["F32" if name == "F64" else name]


def _decide(
    plan: Plan, item: Item, recipe: SchemeRecipe, rules: Sequence[TypeRule], base: Encoding
) -> Decision:
    name = item.info.name
    kept = _keep(plan, item, base)
    rule = next((rule for rule in rules if rule.pattern.search(name)), None)
    if rule is not None:
        is_float = item.source.encoding.is_real
        encoding = rule.encoding if rule.encoding is not None and is_float else kept
        return Decision(item, False, encoding, str(rule))
    line = next(((pattern, to) for pattern, to in recipe.lines if pattern.search(name)), None)
    of_layers = recipe.choice if _is_chosen(plan, item, recipe) else None
    choice, text = (of_layers, "") if line is None else (line[1], line[0].pattern)
    if choice is None or not item.source.encoding.is_real:
        return Decision(item, False, kept, text)
    refusal = _refuse_weight(plan, item.info, choice)
    return Decision(item, not refusal, kept, text, refusal, choice=choice)


def _is_chosen(plan: Plan, item: Item, recipe: SchemeRecipe) -> bool:
    """Whether the scheme stores a tensor that no line of a recipe is for."""
    if not recipe.choice.scheme.of_experts:
        return is_layer_matrix(plan, item.info)
    return holds_experts(plan, item)


def _keep(plan: Plan, item: Item, base: Encoding) -> Encoding:
    """Return the encoding of a tensor that is not quantized."""
    source = item.source.encoding
    if source.quantization is not None:
        return base
    # Vectors of GGUF are float32 for llama.cpp, and so are decoded weights.
    is_computed = plan.translation or any(info.encoding.name not in _WIDE for info in item.sources)
    return base if source.name == "F32" and is_computed else source


def _refuse_weight(plan: Plan, info: TensorInfo, choice: SchemeChoice) -> str:
    """Return why a weight cannot be stored in a scheme; an empty text if it can."""
    scheme, options = choice
    if scheme.of_experts:
        if not holds_experts(plan, Item(info, info)):
            return "it does not have the matrices of several experts"
        count, inputs, outputs = info.shape
        return scheme.refuse((count, outputs, inputs), options)
    if not info.name.endswith(_ENDING):
        return f"its name does not end in `{_ENDING}`"
    if len(info.shape) != 2:
        return f"it has {len(info.shape)} dimensions"
    if info.name in plan.tied.values():
        return "it is tied to another tensor"
    return scheme.refuse(info.shape, options)


def _refuse(
    plan: Plan,
    recipe: SchemeRecipe,
    rules: Sequence[TypeRule],
    decisions: Sequence[Decision],
    *,
    fallback: bool,
    requantize: bool,
) -> None:
    stacked = [each for each in decisions if each.refusal and holds_experts(plan, each.item)]
    if stacked and not recipe.choice.scheme.of_experts:
        info = stacked[0].item.info
        raise ConversionError(
            f"weightctl cannot write experts as {recipe.choice} if they share one tensor, like the "
            f"{info.shape[0]} experts in `{info.name}`",
            hint="to keep their type, use --tensor-type experts=keep (tensor_types in Python)"
            if "experts" in info.name
            else f"to keep its type, use --tensor-type '{info.name}=keep' (tensor_types in Python)",
        )
    for rule in rules:
        if rule.encoding is not None and rule.encoding.quantization is not None:
            raise ConversionError(
                f"{plan.format} cannot store {rule.encoding}",
                hint="in a model directory, --tensor-type (tensor_types in Python) takes types "
                "without blocks, such as bf16, and keep",
            )
    refused = [each for each in decisions if each.refusal]
    if refused and (not fallback or _find_refused_share(decisions) > _MOST_REFUSED):
        lines = [f"`{each.item.info.name}`: {each.refusal}" for each in refused]
        raise ConversionError(
            "\n  ".join([
                f"{'most' if fallback else 'some'} weights cannot be stored as {recipe.choice}:",
                *list_first(lines, _FEW),
            ]),
            hint="to keep their type, leave out --no-fallback (fallback=False in Python)"
            if not fallback
            else "choose another type, or another group size (such as W4A16:group=32)",
        )  # fmt: skip
    quantized = [each.item for each in decisions if each.is_quantized]
    if not quantized:
        raise ConversionError(
            f"no weight can be stored as {recipe.choice}: the model has no matrices in layers",
            hint="to choose weights by name, use a recipe file: --quant FILE.toml (quant in "
            "Python)",
        )
    rounded = [each.item for each in decisions if each.is_quantized and not each.is_repacked]
    twice = [item for item in rounded if not _is_unrounded(item)]
    if twice and not requantize:
        raise ConversionError(
            f"{pluralize(len(twice), 'weight')} {'is' if len(twice) == 1 else 'are'} already "
            f"quantized (for example, `{twice[0].stored.name}` is {twice[0].stored.encoding}), "
            f"and would lose more precision as {recipe.choice}",
            hint="start from the unquantized model, or use --allow-requantize "
            "(allow_requantize=True in Python)",
        )


def _is_unrounded(item: Item) -> bool:
    return all(info.encoding.name in _WIDE for info in (item.source, *item.sources))


def _make_items(
    plan: Plan,
    decisions: Sequence[Decision],
    encoded: Iterator[EncodedWeight],
    searches: Mapping[str, ScaleSearch],
    *,
    scaled: ScaledTensors,
) -> tuple[Derived, tuple[Item, ...]]:
    """Return a source with the tensors of the quantized weights, and the items of the output."""
    tensors: dict[str, ReadableTensor] = {}
    items: list[Item] = []
    weights = {weight.name: weight for weight in encoded}
    for each in decisions:
        item, is_quantized, encoding, line, refusal, is_exact, _, choice = each
        name = item.info.name
        if not is_quantized:
            source = scaled.tensors.get(name, StoredTensor(plan.source, item.source.name))
            tensors[item.source.name] = source
            asked = choice.scheme.name if refusal and choice else None
            info = item.info._replace(encoding=encoding)
            kept = replace(item, info=info, line=refusal or line, asked=asked)
            if name in scaled.tensors:
                kept = replace(kept, source=source.info, origin=source.origin, is_rounded=True)
            items.append(kept)
            continue
        for stored, tensor in weights[name].list_tensors(name.removesuffix(_ENDING)):
            tensors[stored] = tensor
            info = tensor.info
            origin = tensor.origin
            made = replace(
                item, info=info, source=info, origin=origin, line=line, weight=name,
                scheme=str(choice),
            )  # fmt: skip
            search = None if each.is_repacked else searches.get(name)
            importance = None if search is None else search.importance
            products = None if search is None else search.products
            items.append(
                replace(made, is_rounded=not is_exact, searched_with=importance, hessian=products)
            )
    header = plan.source.header
    return Derived(plan.source, tensors, header.metadata, header.aliases), tuple(items)


def _encode(decision: Decision, base: Encoding) -> WeightEncoding:
    """Return how a weight is stored, with the scale that it has if it is repacked with one."""
    scheme, options = decision.quantized_as
    shape, scaled = decision.item.info.shape, decision.scaled
    if scaled is not None and scheme.encode_with is not None:
        return scheme.encode_with(shape, float(scaled.whole.values[0]))
    return scheme.encode(shape, options, HALF if decision.is_exact else base)


def _encode_weights(
    plan: Plan,
    decisions: Sequence[Decision],
    encodings: Mapping[str, WeightEncoding],
    searches: Mapping[str, ScaleSearch],
    *,
    scaled: ScaledTensors,
    zero_nonfinite: bool,
) -> Iterator[EncodedWeight]:
    """Yield the quantized weights, with a common scale for weights that engines join."""
    from weightctl.schemes.arrays.peaks import SharedPeak
    from weightctl.schemes.arrays.weight import BandCache, EncodedWeight

    sources: dict[str, ReadableTensor] = {}
    joined: dict[str, list[ReadableTensor]] = {}
    sought: dict[str, list[ScaleSearch]] = {}
    chosen = [each for each in decisions if each.is_quantized]
    for each in chosen:
        item, shared = each.item, each.shared_name
        name = item.info.name
        stored = StoredTensor(plan.source, item.source.name)
        sources[name] = scaled.tensors.get(name, stored)
        joined.setdefault(shared, []).append(sources[name])
        if name in searches:
            sought.setdefault(shared, []).append(scaled.searches.get(name, searches[name]))
    # Blocks are repacked with a scale of 1 for the whole weight, so nothing is measured.
    exact = {each.shared_name for each in chosen if each.is_repacked}
    peaks = {
        name: SharedPeak([], zero_nonfinite=zero_nonfinite)
        if name in exact
        else SharedPeak(each, sought.get(name, ()), zero_nonfinite=zero_nonfinite)
        for name, each in joined.items()
    }
    cache = BandCache()
    for each in chosen:
        name = each.item.info.name
        search = None if each.is_repacked else scaled.searches.get(name, searches.get(name))
        yield EncodedWeight(
            sources[name],
            name,
            encodings[name],
            str(each.choice),
            cache,
            peaks[each.shared_name],
            zero_nonfinite,
            each.is_exact,
            search,
            None if each.scaled is None else each.scaled.blocks,
        )


def _describe_settings(plan: Plan, decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the keys of a config that state how the weights are quantized."""
    ignored = _list_ignored(plan, decisions)
    modules: dict[SchemeChoice, list[str]] = {}
    for each in decisions:
        if each.is_quantized:
            name = each.item.info.name.removesuffix(_ENDING)
            modules.setdefault(each.quantized_as, []).append(name)
    (scheme, options), *others = modules
    made = describe_mixture(modules, ignored) if others else scheme.settings(options, ignored)
    return dict.fromkeys(scheme.keys, made)


def _list_ignored(plan: Plan, decisions: Sequence[Decision]) -> list[str]:
    """Return the modules that are not quantized: linear ones, experts, the output projection."""
    modules = dict.fromkeys(
        name.removesuffix(_ENDING)
        for each in decisions
        if not each.is_quantized
        and len(each.item.info.shape) == 2
        and (name := each.item.info.name).endswith(_ENDING)
        and not _LOOKED_UP.search(name)
    )
    for item in (each.item for each in decisions if not each.is_quantized):
        if holds_experts(plan, item):
            modules[item.info.name.removesuffix(_ENDING).rpartition(".")[0]] = None
    quantized = {each.item.info.name for each in decisions if each.is_quantized}
    if f"{_OUTPUT}{_ENDING}" not in quantized:
        modules[_OUTPUT] = None
    return list(modules)


# Experts that share one tensor, for schemes that store them together.


def holds_experts(plan: Plan, item: Item) -> bool:
    """Whether a tensor has the matrices of several experts."""
    if len(item.info.shape) != 3:
        return False
    found = plan.describe() if plan.describe is not None else None
    name = item.info.name
    return "experts" in name or bool(found and "_exps" in found.names.get(name, ""))


def choose_variant(recipe: SchemeRecipe, settings: Mapping[str, Any]) -> SchemeRecipe:
    """Return a recipe with the variant of its scheme for a model with this config."""
    scheme, options = recipe.choice
    record = scheme.variants.get(str(settings.get("model_type")))
    if record is None:
        return recipe
    made = recipe.choice._replace(scheme=cast("WrittenScheme", load(record)), options=options)
    lines = tuple((each, made if to == recipe.choice else to) for each, to in recipe.lines)
    return recipe._replace(choice=made, lines=lines)


def exchange_experts(plan: Plan, decisions: Sequence[Decision]) -> tuple[Plan, list[Decision]]:
    """Return a plan, and decisions, in which quantized experts have outputs as rows.

    Its source has further tensors for these.
    """
    tensors: dict[str, ReadableTensor] = {}
    made: list[Decision] = []
    for each in decisions:
        item = each.item
        if each.is_quantized:
            name = f"{item.source.name} (outputs as rows)"
            upright = tensors[name] = _exchange_axes(plan.source, item.source.name, name)
            info = item.info._replace(shape=upright.info.shape)
            stored = upright.info._replace(name=name)
            item = replace(item, info=info, source=stored, origin=upright.origin)
        made.append(each._replace(item=item))
    header = plan.source.header
    for name in header.tensors:
        tensors[name] = StoredTensor(plan.source, name)
    source = Derived(plan.source, tensors, header.metadata, header.aliases)
    return replace(plan, source=source), made


def _exchange_axes(source: Source, name: str, new_name: str) -> ReadableTensor:
    """Return a tensor of shape (n, r, c) of a source as one of shape (n, c, r).

    If a step transposed each matrix, its input is taken: blocks are not decoded, and those of a
    scheme are taken in place of their values. Raises `ConversionError` for stored blocks, which
    cannot be transposed.
    """
    from weightctl.schemes.arrays.trees import find_swapped_blocks

    whole: ReadableTensor = StoredTensor(source, name)
    blocks = find_swapped_blocks(whole)
    if blocks is not None:
        return blocks
    entries: Sequence[ReadableTensor]
    made = source.find_derived(name) if isinstance(source, Derived) else None
    if made is None or not isinstance(made.step, Stacked) or made.step.axis:
        entries = [
            DerivedTensor(new_name, StackedEntry(place), [whole])
            for place in range(whole.info.shape[0])
        ]
    else:
        entries = made.inputs
    upright = [_exchange(entry, new_name) for entry in entries]
    return DerivedTensor(new_name, Stacked("experts", len(upright)), upright)


def _exchange(matrix: ReadableTensor, name: str) -> ReadableTensor:
    if not isinstance(matrix, DerivedTensor) or not isinstance(matrix.step, Transposed):
        return DerivedTensor(name, Transposed(), [matrix])
    (rows,) = matrix.inputs
    if isinstance(rows, DerivedTensor) and isinstance(rows.step, AsFloat32):
        (rows,) = rows.inputs
    return rows
