"""Reading of LoRA adapters: their pairs of matrices, and how each pair is scaled."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import ADAPTER_CONFIG, config
from weightctl.formats.open.opening import open_weights
from weightctl.schemes.adapters import is_adapter_checkpoint
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_object
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import read_floats
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.tree import Checkpoint

# PEFT: the words before a name, and the words behind it. `default` is the name of an adapter.
_PREFIX = re.compile(r"^base_model\.model\.")
_PEFT = re.compile(
    r"^(?P<module>.+)\.lora_(?P<half>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(?:\.(?!weight$|bias$)[^.]+)?(?P<kind>\.weight|\.bias)?$"
)
_SAVED = re.compile(r"\.modules_to_save(?:\.(?!weight$|bias$)[^.]+)?(?=\.)")
_BASE_LAYER = ".base_layer."
_HALVES = {
    "A": "first", "embedding_A": "first", "B": "second", "embedding_B": "second",
    "magnitude_vector": "magnitude",
}  # fmt: skip
# kohya's sd-scripts, diffusers and llama.cpp: the words behind a name.
_OTHERS = (
    re.compile(r"^(?P<module>.+)\.lora_(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)\.lora_linear_layer\.(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)\.lora\.(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)_lora\.(?P<half>down|up)\.weight$"),
    re.compile(r"^(?P<module>.+)\.(?P<half>alpha|dora_scale)$"),
    re.compile(r"^(?P<module>.+)\.lora_(?P<half>a|b)$"),
)
_OTHER_HALVES = {
    "down": "first", "up": "second", "a": "first", "b": "second", "alpha": "alpha",
    "dora_scale": "magnitude",
}  # fmt: skip
_GGUF_EMBEDDING = "token_embd.weight"
_ALPHA = "adapter.lora.alpha"
# Initializations of PEFT that change the weights of the model as well.
_CHANGED_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Settings of PEFT with which the product of the matrices is not all that an adapter adds, or with
# which the adapter does not apply to all tokens.
_OTHER_KINDS = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
    "monteclora_config", "use_bdlora", "use_qalora",
)  # fmt: skip
_MATRICES = {"first", "second"}
# The default of PEFT's setting `lora_alpha`.
_PEFT_ALPHA = 8.0


class LowRank(NamedTuple):
    """A pair of matrices of an adapter, whose product times `scale` is added to a weight.

    `first` has the shape (rank, inputs), and `second` (outputs, rank). `is_embedding` states that
    the weight is transposed, `magnitude` has DoRA's magnitudes, and `bias` is added to the bias of
    the module, times the scale. The scale is `alpha` / rank, or by the root of the rank (rsLoRA).
    """

    module: str
    first: ReadableTensor
    second: ReadableTensor
    alpha: float
    is_by_root: bool = False
    is_embedding: bool = False
    magnitude: ReadableTensor | None = None
    bias: ReadableTensor | None = None

    @property
    def rank(self) -> int:
        """The rank; for experts in one tensor, the sum of their ranks."""
        return self.first.info.shape[0]

    def scale(self, experts: int = 0) -> float:
        """Return what the product is multiplied by; `experts` share the rank of the matrices."""
        rank = max(self.rank // max(experts, 1), 1)
        return self.alpha / (sqrt(rank) if self.is_by_root else rank)


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter: its pairs by the names of modules, and tensors that replace the model's.

    `copies` are those that PEFT saved beside their pairs, such as embeddings with new tokens.
    `is_gguf` states that the names are GGUF's. `fan_in_fan_out` is PEFT's setting for matrices that
    are stored as (inputs, outputs). `document` is the content of adapter_config.json.
    """

    where: str
    source: Source
    base: str
    pairs: Mapping[str, LowRank]
    replaced: Mapping[str, ReadableTensor]
    document: Mapping[str, Any]
    is_gguf: bool = False
    copies: frozenset[str] = frozenset()

    @property
    def fan_in_fan_out(self) -> bool:
        return self.document.get("fan_in_fan_out") is True


def load_adapter(path: str) -> LoraAdapter:
    """Open an adapter at a path, which may be a file or a PEFT directory.

    Raises as `open_weights` and `read_adapter` do.
    """
    return read_adapter(open_weights(path), path)


def read_adapter(weights: Checkpoint, where: str = "") -> LoraAdapter:
    """Return the adapter in a checkpoint; only single numbers are read.

    Raises `ConversionError` if the checkpoint is not a LoRA adapter, if a pair is not complete or
    its scale is not known, and for kinds of adapters that change weights in another way.
    """
    header, source = header_of(weights), source_of(weights)
    where = where or (header.files[0] if header.files else "the adapter")
    document = config(header, ADAPTER_CONFIG)
    if not is_adapter_checkpoint(header, document):
        kind = document.get("peft_type")
        what = (
            f"an adapter of the type {kind}, not a LoRA adapter" if kind else "not a LoRA adapter"
        )
        raise ConversionError(
            f"{where} is {what}",
            hint="an adapter is a directory with adapter_config.json and adapter_model.safetensors,"
            " or a file with pairs of matrices such as lora_A and lora_B; the model comes first",
        )
    _refuse_other_kinds(document, where)
    parts: dict[str, dict[str, str]] = {}
    replaced: dict[str, ReadableTensor] = {}
    embeddings: set[str] = set()
    copies: set[str] = set()
    for name in header.tensors:
        place = parse_name(name)
        if place.part in {"saved", "copy"}:
            replaced[place.module] = tensor_of(source, name)
            if place.part == "copy":
                copies.add(place.module)
            continue
        parts.setdefault(place.module, {})[place.part] = name
        if place.is_embedding:
            embeddings.add(place.module)
    scales = _Scales(document, source, where)
    pairs = {
        module: _pair(module, found, source, scales, is_embedding=module in embeddings)
        for module, found in parts.items()
    }
    return LoraAdapter(
        where,
        source,
        document.get("base_model_name_or_path") or "",
        pairs,
        replaced,
        document,
        header.format == "gguf",
        frozenset(copies),
    )


def _refuse_other_kinds(document: Mapping[str, Any], where: str) -> None:
    kind = document.get("peft_type", "LORA")
    if kind != "LORA":
        raise ConversionError(
            f"{where} is an adapter of the type {kind}, and only LoRA adapters are supported",
            hint="merge it with PEFT: `merge_and_unload()`",
        )
    start = document.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_MODEL):
        raise ConversionError(
            f"{where} was initialized with {start}, which also changed the weights of the model: "
            "its matrices do not apply to the original model",
            hint="save the adapter with PEFT's "
            "`save_pretrained(path_initial_model_for_weight_conversion=...)`",
        )
    for key, problem in list_wrong_scales(document):
        raise ConversionError(
            f"{where}: `{key}` in {ADAPTER_CONFIG} {problem}",
            hint="correct the setting, or use the directory that PEFT saved",
        )
    for key in _OTHER_KINDS:
        if document.get(key):
            raise ConversionError(
                f"{where} uses `{key}`, a kind of LoRA that is not supported",
                hint="if PEFT can merge it, use `merge_and_unload()`",
            )


def list_wrong_scales(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ranks and alphas that PEFT cannot divide: the key, and what is wrong."""
    for key, is_rank in (("r", True), ("lora_alpha", False)):
        value = document.get(key)
        patterns = document.get("rank_pattern" if is_rank else "alpha_pattern")
        given = {} if value is None else {key: value}
        given |= patterns if is_object(patterns) else {}
        for name, number in given.items():
            if is_rank and (type(number) is not int or number < 1):
                yield name, f"is {number!r}, but a rank is a positive integer"
            elif _number(number) is None:
                yield name, f"is {number!r}, but a finite number is expected"


def _pair(
    module: str,
    found: Mapping[str, str],
    source: Source,
    scales: _Scales,
    *,
    is_embedding: bool,
) -> LowRank:
    names = [*found.values()]
    if not found.keys() >= _MATRICES:
        lacking = "second" if "first" in found else "first"
        raise ConversionError(
            f"the adapter has `{names[0]}`, but not the {lacking} matrix of the pair",
            hint="check that the adapter is complete",
        )
    first, second = (tensor_of(source, found[each]) for each in ("first", "second"))
    if source.header.format == "gguf" and module == _GGUF_EMBEDDING:
        # llama.cpp looks up the rows of the first matrix.
        is_embedding = True
        first = DerivedTensor(first.info.name, Transposed(), [first])
    for each in (first, second):
        if len(each.info.shape) < 2:
            raise ConversionError(
                f"`{each.info.name}` has shape {list(each.info.shape)}, but a matrix is expected"
            )
    alpha = scales.find_alpha(module, first, found.get("alpha"))
    if not isfinite(alpha):
        raise ConversionError(
            f"the alpha of `{names[0]}` is {alpha}, but a finite number is needed"
        )
    return LowRank(
        module,
        first,
        second,
        alpha,
        scales.is_by_root,
        is_embedding,
        tensor_of(source, found["magnitude"]) if "magnitude" in found else None,
        tensor_of(source, found["bias"]) if "bias" in found else None,
    )


class _Scales:
    """How the products of an adapter are scaled: alpha / rank, by the settings and the tensors."""

    def __init__(self, document: Mapping[str, Any], source: Source, where: str) -> None:
        self._document, self._source, self._where = document, source, where
        says = source.header.metadata.get(_ALPHA)
        stated = None if says is None else says.content
        self._alpha = _number(document.get("lora_alpha", stated))
        if stated is not None and self._alpha is None:
            raise ConversionError(f"{where}: `{_ALPHA}` is {stated}, but a finite number is needed")
        self._alphas = _patterns(document.get("alpha_pattern"))
        self.is_by_root = document.get("use_rslora") is True

    def find_alpha(self, module: str, first: ReadableTensor, alpha_name: str | None) -> float:
        """Return the alpha of a pair, which is divided by its rank."""
        name, rank = first.info.name, first.info.shape[0]
        if not rank:
            raise ConversionError(f"`{name}` has the rank 0")
        if alpha_name is not None:
            tensor = tensor_of(self._source, alpha_name)
            if tensor.info.size != 1:
                raise ConversionError(
                    f"`{alpha_name}` has shape {list(tensor.info.shape)}, but a number is expected"
                )
            return float(read_floats(tensor, 0, 1)[0])
        alpha = next((each for key, each in self._alphas if key.match(module)), self._alpha)
        if self._source.header.format == "gguf":
            return alpha or float(rank)  # llama.cpp does not scale if alpha is 0 or missing
        if alpha is None and not self._document:
            if name.endswith(("lora_A.weight", "lora_embedding_A")):
                raise ConversionError(
                    f"the alpha of {self._where} is not known, because there is no "
                    f"{ADAPTER_CONFIG} beside it",
                    hint="use the directory that PEFT saved",
                )
            return float(rank)  # in files of kohya and diffusers without alpha, the scale is 1
        return _PEFT_ALPHA if alpha is None else alpha


def _patterns(given: object) -> list[tuple[re.Pattern[str], float]]:
    """Return the patterns of PEFT's setting `alpha_pattern`."""
    if not is_object(given):
        return []
    found: list[tuple[re.Pattern[str], float]] = []
    for key, value in given.items():
        number = _number(value)
        if number is not None:
            found.append((regular_expression(rf"(.*\.)?({key})$"), number))
    return found


def _number(content: object) -> float | None:
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    return float(content) if isfinite(content) else None


# Names of an adapter's tensors: which weight each belongs to, and which matrix it is.


class AdapterPart(NamedTuple):
    """What a tensor of an adapter is.

    - `module`: the name of the module or of the weight that it belongs to.
    - `part`: `first` or `second` for the matrices of a pair, `magnitude` for DoRA's magnitudes,
      `alpha`, `bias` for the bias of a pair, `saved` for a tensor that replaces the model's, and
      `copy` for a copy of a weight that a pair belongs to.
    - `is_embedding`: whether the pair is that of an embedding, whose product is transposed.
    """

    module: str
    part: str
    is_embedding: bool = False


def parse_name(name: str) -> AdapterPart:
    """Return what the tensor of a name is, in the conventions of PEFT, kohya and diffusers."""
    stem = _PREFIX.sub("", name)
    if found := _PEFT.match(stem):
        if found["kind"] == ".bias":
            return AdapterPart(found["module"], "bias")
        return AdapterPart(found["module"], _HALVES[found["half"]], "embedding" in found["half"])
    for pattern in _OTHERS:
        if found := pattern.match(name):
            return AdapterPart(found["module"], _OTHER_HALVES[found["half"]])
    if _BASE_LAYER in stem:
        return AdapterPart(stem.replace(_BASE_LAYER, "."), "copy")
    return AdapterPart(_SAVED.sub("", stem), "saved")


# Paths of adapters, which may end in a weight: `adapter:0.5`.


class AdapterPath(NamedTuple):
    """The path of an adapter, or an open one, and the weight that its changes are multiplied by."""

    path: str | LoraAdapter
    weight: float = 1.0


# A path, which may end in a weight as in `adapter:0.5`, a path and a weight, or an open adapter.
AdapterLike: TypeAlias = "str | os.PathLike[str] | tuple[str, float] | LoraAdapter"


def parse_adapter(given: AdapterLike) -> AdapterPath:
    """Return a path with its weight; raises `ConversionError` if the weight is not finite."""
    if isinstance(given, LoraAdapter):
        return AdapterPath(given)
    if isinstance(given, tuple):
        return AdapterPath(os.fspath(given[0]), float(given[1]))
    path = os.fspath(given)
    stem, colon, text = path.rpartition(":")
    if not colon or not stem or os.path.exists(path) or text.startswith("//"):
        return AdapterPath(path)
    try:
        weight = float(text)
    except ValueError:
        return AdapterPath(path)
    if not abs(weight) < float("inf"):
        raise ConversionError(
            f"{text} is not a weight of an adapter", hint="use a number, as in adapter:0.5"
        )
    return AdapterPath(stem, weight)
