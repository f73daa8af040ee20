"""A conversion as data: what each output tensor is computed from. No tensor is read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.formats import format_module, has_type
from weightctl.formats.base import LEVELS_KEY, Part
from weightctl.formats.huggingface import ADAPTER_CONFIG, config
from weightctl.schemes.adapters import adapter, is_adapter_checkpoint
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.text.sizes import format_size
from weightctl.text.wording import list_first, pluralize
from weightctl.weights.from_arrays import loaded_checkpoint
from weightctl.weights.metadata import text
from weightctl.weights.tree import find_stored_name, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from weightctl.codecs.base import F32
    from weightctl.formats.base import Layout
    from weightctl.formats.imatrix.entry import ColumnWeights, Products
    from weightctl.weights.data import Source
    from weightctl.weights.info import Header, Leaf, Origin, TensorInfo
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.protocol import Weights

_MOST_NAMED = 5
# The kind of the leaf for a tensor that weightctl cannot read.
_UNREAD = "torch.Tensor"


@dataclass(frozen=True, slots=True)
class Item:
    """An output tensor, and the tensor of the source that it is computed from.

    `asked` is the requested encoding, if its blocks do not fit and another encoding was chosen.
    `importance` weights the errors of each column in rows of n values: its shape is (matrices, n),
    with a row for each matrix of the leading dimensions, or (1, n) for all matrices. Importance in
    a file is read one matrix at a time. With a `hessian`, the values of its one matrix are rounded
    with error feedback. `part` is the number of the file that gets the tensor.
    `line` is the line of a recipe, or the rule, that chose the encoding. `origin` describes how the
    source computes the tensor, if no file contains it. `weight` is the name of the weight if a
    `scheme` stores it in this tensor and others; `is_rounded` states that the scheme rounds it, and
    `searched_with` is the importance in the search for its scales.
    """

    info: TensorInfo
    source: TensorInfo
    asked: str | None = None
    importance: ColumnWeights | None = None
    hessian: Products | None = None
    part: int = 0
    line: str = ""
    origin: Origin | None = None
    weight: str = ""
    is_rounded: bool = False
    searched_with: ColumnWeights | None = None
    scheme: str = ""

    @property
    def is_copy(self) -> bool:
        """Whether the bytes are copied unchanged."""
        return self.info.encoding == self.source.encoding

    @property
    def is_exact(self) -> bool:
        """Whether the output holds every value of the tensor, bit for bit, whatever it is."""
        if self.is_rounded or self.is_copy:
            return not self.is_rounded
        from weightctl.codecs import holds_all  # needs NumPy, which copies do not need

        return holds_all(self.source.encoding, self.info.encoding)

    @property
    def sources(self) -> tuple[TensorInfo, ...]:
        """The stored tensors that it is computed from; empty if a config gives its values."""
        return (self.source,) if self.origin is None else self.origin.sources

    @property
    def stored(self) -> TensorInfo:
        """The first stored tensor that it is computed from; packed values precede their scales."""
        return self.sources[0] if self.sources else self.source

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that compute the tensor from its stored tensors, as text."""
        return () if self.origin is None else self.origin.steps

    def importance_of(self, matrix: int) -> F32 | None:
        """Return the weights of a matrix's columns; None if there are none or all are tiny.

        If the encoding needs weights, tiny ones are replaced by equal ones.
        """
        if self.importance is None:
            return None
        if not self.is_idle(matrix):
            return self.importance[matrix]
        return self.importance[matrix] * 0 + 1 if self.info.encoding.needs_importance else None

    def is_idle(self, matrix: int) -> bool:
        """Whether there are weights of a matrix's columns, and all are tiny."""
        if self.importance is None:
            return False
        from weightctl.formats.imatrix.entry import is_idle  # few conversions have importance

        return is_idle(self.importance[matrix])


class Described(NamedTuple):
    """llama.cpp's names for the tensors of a plan, and the metadata that llama.cpp reads.

    Recipes that depend on roles use them if the output has another naming convention.
    `norm_offsets` has what the norms of the plan add to their weights, by the names of these.
    """

    names: Mapping[str, str]
    metadata: Mapping[str, MetadataValue]
    norm_offsets: Mapping[str, float] = {}  # never changed


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The output tensors of a conversion, and their metadata.

    A transform is a function from plan to plan. `tied` maps further names to output tensors.
    `unkept` are leaves of the source that the output cannot store; a plan with tensors among them
    is refused. `consulted` maps the paths of other files that were read to descriptions of them;
    the output never replaces these files. `notes` are messages for the user. With `zero_nonfinite`,
    block encodings store 0 for values that are not finite; otherwise these values are an error.
    `recipe` is the name of the recipe that chose the encodings, and `scheme` that of the scheme in
    which weights are stored.

    `documents` are files, by name, that are written into a model directory instead of the files
    beside the source. `translation` describes the change to another naming convention; if there is
    one, only licenses are copied from the source. `describe` returns GGUF's names and metadata for
    recipes, if the plan has other names; its result is None if the family is unknown.
    """

    source: Source
    format: str
    items: tuple[Item, ...]
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict[str, "MetadataValue"])
    tied: Mapping[str, str] = field(default_factory=dict[str, str])
    unkept: Mapping[str, Leaf] = field(default_factory=dict[str, "Leaf"])
    consulted: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()
    zero_nonfinite: bool = False
    recipe: str = ""
    scheme: str = ""
    documents: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    translation: str = ""
    describe: Callable[[], Described | None] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        size = format_size(sum(item.info.nbytes for item in self.items))
        return f"<Plan for {self.format}: {len(self.items)} tensors, {size}>"

    @property
    def names_hint(self) -> str:
        """A hint that says how to list the names that patterns apply to."""
        if self.translation or any(map(is_renamed, self.items)):
            return (
                "patterns apply to the names in the output, after --rename and --names; "
                "`--dry-run` without patterns shows them"
            )
        return "`weightctl ls --flat` lists the names"

    @classmethod
    def copy(cls, weights: Weights | Mapping[str, Any], format_name: str) -> Plan:
        """Plan to store every tensor of a tree, or every array of a mapping, in a container format.

        Raises `ConversionError` if `weights` is neither of these, if weights are only declared, and
        for a LoRA adapter to GGUF. Raises `MissingTensorError` for a node of a tree at which
        nothing exists.
        """
        weights = loaded_checkpoint(weights)
        if weights.name and not weights:
            find_stored_name(weights)  # raises an error with similar names
        header = header_of(weights)
        refuse_adapter(header, format_name)
        items = tuple(
            Item(info, info, origin=header.origins.get(name))
            for name, info in header.tensors.items()
        )
        plan = cls(source_of(weights), format_name, items, _tying(header.metadata, header.aliases),
                   header.aliases, _unkept(header))  # fmt: skip
        if not weights.name:
            return plan
        below = f"{weights.name}."
        leaves = (name for name in header.leaves if name.startswith(below))
        return plan.only({*(name for name, _ in weights.items()), *leaves})

    @property
    def unread(self) -> dict[str, Leaf]:
        """The tensors in `unkept`: weightctl does not support their type, or they have no data."""
        return {name: leaf for name, leaf in self.unkept.items() if leaf.kind == _UNREAD}

    def with_items(self, items: tuple[Item, ...]) -> Plan:
        """Return the plan with other items."""
        return replace(self, items=items)

    def only(self, names: Collection[str]) -> Plan:
        """Return the plan with only the named tensors, tied names and other leaves.

        If a tied name is kept and its tensor is not, the tensor is stored under that name.
        """
        renamed: dict[str, str] = {}
        for name, tensor in self.tied.items():
            if name in names and tensor not in names:
                renamed.setdefault(tensor, name)
        items = tuple(
            replace(item, info=item.info._replace(name=renamed.get(item.info.name, item.info.name)))
            for item in self.items
            if item.info.name in names or item.info.name in renamed
        )
        kept = {item.info.name for item in items}
        tied = {
            name: renamed.get(tensor, tensor)
            for name, tensor in self.tied.items()
            if name in names and name not in kept
        }
        untied = (self.tied.keys() - tied) | (self.source.header.leaves.keys() - names)
        metadata = {key: value for key, value in self.metadata.items() if key not in untied}
        unkept = {name: leaf for name, leaf in self.unkept.items() if name in names}
        if LEVELS_KEY in metadata:
            from weightctl.formats.pytorch.nesting import restrict_levels

            metadata = restrict_levels(metadata, {*names, *kept, *tied})
        return replace(self, items=items, metadata=_tying(metadata, tied), tied=tied, unkept=unkept)

    def refuse_rounding(self) -> None:
        """Raise `ConversionError`, which lists the first tensors whose values are rounded."""
        rounded = [item for item in self.items if not item.is_exact]
        weights = dict.fromkeys(item.weight or item.info.name for item in rounded)
        if weights:
            first = {item.weight or item.info.name: item for item in reversed(rounded)}
            lines = [f"`{name}`: {_describe_change(first[name], self.scheme)}" for name in weights]
            raise ConversionError(
                "\n  ".join([
                    f"the values of {pluralize(len(lines), 'tensor')} would be rounded:",
                    *list_first(lines, _MOST_NAMED),
                ]),
                hint="to round them, leave out --exact (exact=False in Python); to leave a tensor "
                "unrounded, use --tensor-type REGEX=keep (tensor_types in Python)",
            )  # fmt: skip

    def layouts(self) -> tuple[Layout, ...]:
        """Describe the files that this plan writes, to the byte.

        Raises `ConversionError`, which lists all tensors that the format cannot store or weightctl
        cannot encode.
        """
        written = format_module(self.format)
        tensors = [item.info for item in self.items]
        self._refuse_unread()
        self._refuse(
            "some tensors cannot be converted:", [*_colliding(tensors), *self._impossible()]
        )
        self._refuse(
            f"{self.format} cannot store some of the tensors:",
            written.unfit(tensors, self.metadata),
        )
        count = 1 + max((item.part for item in self.items), default=0)
        if count == 1:
            return (written.layout(tensors, self.metadata),)
        files: list[list[TensorInfo]] = [[] for _ in range(count)]
        for item in self.items:
            files[item.part].append(item.info)
        return tuple(
            written.layout(file, self.metadata, Part(number, count, len(tensors)))
            for number, file in enumerate(files)
        )

    def _refuse(self, what: str, problems: list[str]) -> None:
        if problems:
            raise ConversionError(
                "\n  ".join([what, *list_first(problems, _MOST_NAMED)]), hint=self._remedy()
            )

    def _refuse_unread(self) -> None:
        if unread := self.unread:
            problems = [f"`{name}`: {leaf.look or leaf.kind}" for name, leaf in unread.items()]
            raise ConversionError(
                "\n  ".join(["some tensors cannot be read:", *list_first(problems, _MOST_NAMED)]),
                hint=f"to leave it out, use --exclude {next(iter(unread))} (exclude in Python)"
                if len(unread) == 1 else "to leave them out, use --exclude (exclude in Python)",
            )  # fmt: skip

    def _impossible(self) -> list[str]:
        changed = [item for item in self.items if not item.is_copy]
        if not changed:
            return []
        from weightctl.codecs import can_decode, can_encode  # needs NumPy, which copies do not need

        return (
            [
                f"`{item.source.name}` is {item.source.encoding}, which weightctl cannot decode"
                for item in changed
                if not can_decode(item.source.encoding)
            ]
            + [
                f"`{item.info.name}` would be {item.info.encoding}, which weightctl cannot encode"
                for item in changed
                if not can_encode(item.info.encoding)
            ]
            + [
                f"`{item.info.name}` would be {item.info.encoding}, which needs an importance "
                "matrix with an entry for it"
                for item in changed
                if item.info.encoding.needs_importance and item.importance is None
            ]
        )

    def _remedy(self) -> str:
        if any(
            item.info.encoding.needs_importance and item.importance is None and not item.is_copy
            for item in self.items
        ):
            return (
                "use --imatrix FILE (imatrix in Python) with a file that llama-imatrix made for "
                "this model, or choose another type for these tensors, such as IQ3_S or Q2_K"
            )
        types = {item.info.encoding for item in self.items}
        unheld = {encoding for encoding in types if not has_type(self.format, encoding)}
        if any(i.info.encoding in unheld and not i.is_copy for i in self.items):
            return (
                "choose another format, or another type with --dtype or --quant (dtype or quant in "
                "Python)"
            )
        together = list_scheme_tensors(self.source.header) if unheld else set[str]()
        if any(i.info.encoding in unheld and i.source.name in together for i in self.items):
            return (
                "the format of the output cannot store this quantization: start from the "
                "unquantized model"
            )
        if any(encoding.quantization for encoding in unheld):
            return "to dequantize, use --dtype bf16, f16 or f32 (dtype in Python)"
        if any(encoding.dtype and encoding.dtype.is_float for encoding in unheld):
            return (
                "to convert floating-point tensors, use --dtype bf16, f16 or f32 (dtype in Python)"
            )
        return ""


def _describe_change(item: Item, scheme: str) -> str:
    return f"{item.stored.encoding} -> {scheme if item.weight else item.info.encoding}"


def _tying(
    metadata: Mapping[str, MetadataValue], tied: Mapping[str, str]
) -> dict[str, MetadataValue]:
    """Return the metadata with tied names, as huggingface_hub records them."""
    return {**metadata, **{name: text(tensor) for name, tensor in tied.items()}}


def _unkept(header: Header) -> dict[str, Leaf]:
    """Return the leaves that have no metadata and contain no other entries."""
    unkept = {name: leaf for name, leaf in header.leaves.items() if name not in header.metadata}
    if not unkept:
        return unkept
    names = sorted([*header.tensors, *header.aliases, *header.leaves, *header.metadata])

    def holds(name: str) -> bool:
        below = bisect_left(names, f"{name}.")
        return below < len(names) and names[below].startswith(f"{name}.")

    return {name: leaf for name, leaf in unkept.items() if leaf.kind == _UNREAD or not holds(name)}


def _colliding(tensors: list[TensorInfo]) -> list[str]:
    counts = Counter(info.name for info in tensors)
    return [f"{n} tensors would have the name `{name}`" for name, n in counts.items() if n > 1]


def is_renamed(item: Item) -> bool:
    """Whether an item has another name than all stored tensors that it is computed from."""
    return bool(item.sources) and item.info.name not in {each.name for each in item.sources}


def refuse_adapter(header: Header, format_name: str) -> None:
    """Raise `ConversionError` if a LoRA adapter without GGUF's metadata is converted to GGUF."""
    if format_name != "gguf" or header.format == "gguf" or ARCHITECTURE in header.metadata:
        return
    document = config(header, ADAPTER_CONFIG)
    found = adapter(header, document)
    if found is None or not is_adapter_checkpoint(header, document):
        return
    base = f" ({found.base})" if found.base else ""
    raise ConversionError(
        "the checkpoint is a LoRA adapter: its names and its order of rows in a GGUF file depend "
        f"on the model that it is for{base}, which is not known here",
        hint="use `weightctl convert ADAPTER OUT.gguf --base MODEL` (base in Python), where MODEL "
        "is a directory with the model's config.json; `weightctl merge MODEL ADAPTER OUT` merges "
        "the adapter into the model; to write a directory for PEFT, use OUT without a suffix",
    )
