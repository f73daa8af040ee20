"""Compares a checkpoint's tensors with its config, and finds config values that would fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError, WeightctlError
from weightctl.families.checkpoint import has_fitting_numbers
from weightctl.families.config_values import WholeNumber, show_value
from weightctl.families.matching import EMBEDDING_WEIGHT, OF_TOKENS, OUTPUT_WEIGHT
from weightctl.families.model import ARCHITECTURE
from weightctl.families.modules import shape_of
from weightctl.families.mtp_tensors import is_marker
from weightctl.families.names import layer
from weightctl.families.recognition import choose_typed_family, find_named_family, recognize
from weightctl.text.folding import mask_numbers
from weightctl.text.wording import pluralize
from weightctl.translate.copies import check_copies, is_same
from weightctl.verify.compare.configs import find_spelling
from weightctl.verify.results import Explanation, Problem
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import Key
    from weightctl.families.family import Family
    from weightctl.families.modules import TensorNames
    from weightctl.weights.info import TensorInfo


class Wanted(NamedTuple):
    """A tensor that the config requires and that is missing.

    `name` is its name in the checkpoint's naming convention, and `shape` its expected shape in
    weightctl's modules.
    """

    name: str
    names: TensorNames
    shape: tuple[int, ...]


class Misfit(NamedTuple):
    """A tensor of an unexpected shape or type.

    `name` is the name of the stored tensor, and `info` describes the tensor, or the range of the
    stored tensor that it is. `shape` is the expected shape.
    """

    name: str
    names: TensorNames
    info: TensorInfo
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The differences between the tensors of a checkpoint and those that its config requires.

    `expected` is the number of required tensors, counted in weightctl's modules. `misshaped` have
    other shapes, and `no_numbers` encodings that are not for weights. `padded` are stored tensors
    with more rows than the vocabulary has tokens.
    """

    expected: int
    missing: list[Wanted]
    misshaped: list[Misfit]
    no_numbers: list[Misfit]
    unexpected: list[str]
    padded: list[TensorInfo]

    @property
    def is_whole(self) -> bool:
        is_wrong = self.missing or self.misshaped or self.no_numbers or self.unexpected
        return not is_wrong and not self.padded


def measure_fit(checkpoint: RecognizedModel) -> Fit:
    """Compare a checkpoint's names, shapes and types with those that its config requires."""
    missing: dict[str, Wanted] = {}
    misshaped: list[Misfit] = []
    no_numbers: list[Misfit] = []
    expected = 0
    layers = checkpoint.config.layers if checkpoint.has_only_mtp else 0
    for names in checkpoint.family.tensors(checkpoint.config):
        if names.line.is_of_layers and names.layer < layers:
            continue
        expected += 1
        shape = shape_of(names, checkpoint.config)
        tensor = checkpoint.tensors.get(names.module)
        if tensor is None:
            name = names.name(checkpoint.convention) or names.module
            missing.setdefault(name, Wanted(name, names, shape))
            continue
        info = tensor.info
        name = ", ".join(source.name for source in tensor.origin.sources)
        if shape != info.shape:
            misshaped.append(Misfit(name, names, info, shape))
        if not has_fitting_numbers(names, info):
            no_numbers.append(Misfit(name, names, info, shape))
    return Fit(
        expected=expected,
        missing=[*missing.values()],
        misshaped=misshaped,
        no_numbers=no_numbers,
        unexpected=checkpoint.unexpected,
        padded=[*_list_padded(checkpoint)],
    )


def _list_padded(checkpoint: RecognizedModel) -> Iterator[TensorInfo]:
    for module in OF_TOKENS:
        tensor = checkpoint.tensors.get(module)
        for stored in () if tensor is None else tensor.origin.sources:
            if len(stored.shape) == 2 and stored.shape[0] > checkpoint.config.vocabulary:
                yield stored


# Values are tried from this number of the most frequent shapes; a file may have many others.
_MOST_SHAPES = 12
_MOST_HEADS = 512
# Trying a value looks at every tensor once. This number of looks takes about a second.
_MOST_LOOKS = 200_000
_MOST_NAMED = 4
# The fields that are counts and sizes, whose values may be corrected.
FIELDS = ("layers", "heads", "kv_heads", "head_dim", "hidden", "intermediate", "vocabulary",
           "experts", "expert_intermediate", "context", "token_types")  # fmt: skip


class Correction(NamedTuple):
    """A config key, as the checkpoint spells it, and the values that would fit the tensors.

    `found` is the value that the checkpoint states, None if the key is missing.
    """

    key: str
    found: Any
    values: tuple[int, ...]

    @property
    def statement(self) -> str:
        """The stated value, as text for messages."""
        return "is missing" if self.found is None else f"is {show_value(self.found).strip('`')}"

    @property
    def text(self) -> str:
        """The stated value and the values that fit, as text for messages."""
        values = ", ".join(map(str, self.values[:_MOST_NAMED]))
        values += ", ..." * (len(self.values) > _MOST_NAMED)
        any_of = "any of " * (len(self.values) > 1)
        return f"`{self.key}` {self.statement}; {any_of}{values} would fit"


def explain_misfit(fitting: list[Correction]) -> Explanation | None:
    """Return the likely cause, a wrong config key; None if there is no correction.

    Each of the corrections would by itself make the config fit.
    """
    if not fitting:
        return None
    return Explanation("config", "; or ".join(each.text for each in fitting))


def find_corrections(
    weights: Checkpoint,
    family: Family,
    document: Mapping[str, Any] | None,
    now_fits: Fit | None,
    fields: Iterable[str] = FIELDS,
) -> list[Correction]:
    """Return corrections: values of a single key with which the config would fit the tensors.

    `document` is the content of config.json; None for GGUF, whose metadata is in the tree.
    `now_fits` is the fit of the current config, None if that config is rejected. If it is given, a
    corrected config may keep faults that do not depend on the key. `fields` are the fields whose
    keys are tried.
    """
    count = len(header_of(weights).tensors)
    left = _MOST_LOOKS // max(count, 1)
    found: list[Correction] = []
    for key in _find_keys(family, fields):
        name, now = _read_value(key, weights, document)
        if not name:
            continue
        values = [value for value in _list_candidates(key.field, weights) if value != now][:left]
        left -= len(values)
        tried = ((value, _try_value(weights, document, name, value)) for value in values)
        good = [value for value, fit in tried if fit is not None and _is_better(fit, now_fits)]
        if good:
            found.append(Correction(name, now, tuple(good)))
    return found


def find_family(weights: Checkpoint, document: Mapping[str, Any]) -> Family | None:
    """Return the family that a checkpoint states, even if its config is invalid."""
    if ARCHITECTURE in header_of(weights).metadata:
        return find_named_family(weights)
    return choose_typed_family(document)


def _find_keys(family: Family, fields: Iterable[str]) -> list[Key]:
    known = {key.field: key for key in reversed(family.keys) if isinstance(key.kind, WholeNumber)}
    return [known[field] for field in fields if field in known]


def _read_value(
    key: Key, weights: Checkpoint, document: Mapping[str, Any] | None
) -> tuple[str, Any]:
    if document is not None:
        return ("", None) if "." in key.hugging_face else (
            key.hugging_face, document.get(key.hugging_face)
        )  # fmt: skip
    name = key.gguf.format(arch=header_of(weights).metadata[ARCHITECTURE].content)
    value = header_of(weights).metadata.get(name)
    return name, None if value is None else value.content


def _list_candidates(field: str, weights: Checkpoint) -> Iterator[int]:
    """Yield the possible values of a field, derived from the tensors' names and shapes."""
    infos = header_of(weights).tensors.values()
    if field == "layers":
        yield from _list_layers(weights)
        return
    shapes = Counter(info.shape for info in infos).most_common(_MOST_SHAPES)
    sizes = dict.fromkeys(size for shape, _ in shapes for size in shape)
    if field in {"heads", "kv_heads", "head_dim"}:
        rows = {shape[0] for shape, _ in shapes if len(shape) == 2}
        most = min(max(rows, default=0), _MOST_HEADS)
        yield from (n for n in range(1, most + 1) if any(row % n == 0 for row in rows))
        return
    yield from sizes


def _list_layers(weights: Checkpoint) -> Iterator[int]:
    numbers: set[int] = set()
    further: set[int] = set()
    for name in header_of(weights).tensors:
        found = layer(name)
        parts = name.split(".") if found is None else [str(found)]
        own = [int(part) for part in parts if part.isdecimal() and len(part) < 6]
        numbers.update(own)
        further.update(own if is_marker(name) else ())
    if numbers:
        yield max(numbers) + 1
    if further:
        yield min(further)  # layers for MTP follow those that config.json counts


def _try_value(
    weights: Checkpoint, document: Mapping[str, Any] | None, name: str, value: int
) -> Fit | None:
    """Return the fit with another value of the key `name`; None if that config is rejected."""
    config = None if document is None else {**document, name: value}
    if config is None:
        kind = (
            header_of(weights).metadata[name].type if name in header_of(weights).metadata else "u32"
        )
        tensors = {each: tensor_of(source_of(weights), each) for each in header_of(weights).tensors}
        metadata = {**header_of(weights).metadata, name: MetadataValue(kind, value)}
        weights = Checkpoint(Derived(source_of(weights), tensors, metadata))
    try:
        return measure_fit(recognize(weights, config))
    except (WeightctlError, ValueError, TypeError):
        return None


def _is_better(fit: Fit, before: Fit | None) -> bool:
    """Whether all shapes fit, and fewer faults remain than before.

    If the config was rejected before, all faults must be gone.
    """
    if before is None:
        return fit.is_whole
    if fit.misshaped or len(fit.padded) > len(before.padded):
        return False
    lacks, lacked = len(fit.missing), len(before.missing)
    exceeds, exceeded = len(fit.unexpected), len(before.unexpected)
    is_less = bool(before.misshaped) or lacks + exceeds < lacked + exceeded
    return is_less and lacks <= lacked and exceeds <= exceeded


# Problems of tensors that do not fit the config, and their likely causes.


def check_lost_mtp(checkpoint: RecognizedModel) -> list[Problem]:
    """Return a problem if the config states layers for MTP that the checkpoint does not have."""
    if not checkpoint.lost_mtp or checkpoint.unexpected:
        return []
    key = find_spelling(checkpoint, "mtp_layers").key
    layers = pluralize(checkpoint.lost_mtp, "layer")
    why = "they were left out when the file was written"
    if checkpoint.convention == "hugging_face":
        why = "transformers does not write them, so they are lost when it saves a model"
    cause = Explanation("mtp_lost", f"{why}; the other layers compute the same without them")
    text = (
        f"states {layers} for multi-token prediction (MTP), but the checkpoint has none of their "
        "tensors"
    )
    return [Problem(where=key, text=text, cause=cause)]


def check_tied(checkpoint: RecognizedModel) -> list[Problem]:
    """Return a problem if a stored output differs from the embedding that it is tied to."""
    if EMBEDDING_WEIGHT not in checkpoint.tensors:
        return []
    try:
        check_copies(checkpoint)
    except ArchitectureError as error:
        _, name, text = error.message.split("`", 2)
        cause = Explanation(
            "tied", f"{checkpoint.where} ties the output to the embedding: {error.hint}"
        )
        return [Problem(where=name, text=text.strip(), cause=cause)]
    return []


def _blame_forgotten_output(checkpoint: RecognizedModel) -> Explanation:
    """Return the cause of a missing output that is not tied to the embedding."""
    return Explanation(
        "output_forgotten",
        f"{checkpoint.where} does not tie the output to the embedding, so that the model "
        "needs its own output, which was not written; if the model is tied, set "
        "`tie_word_embeddings` to true there",
    )


def note_tying(checkpoint: RecognizedModel) -> list[str]:
    """Return a note if the output is tied to the embedding, or equal to it."""
    family, convention = checkpoint.family, checkpoint.convention
    names = (each.name(convention) for each in family.copies(checkpoint.config))
    tied = [name for name in names if name is not None]
    embedding, output = (checkpoint.tensors.get(name) for name in (EMBEDDING_WEIGHT, OUTPUT_WEIGHT))
    if output is not None and embedding is not None and is_same(output, embedding):
        name = output.info.name
        return [f"`{name}` is equal to the embedding; if the model is tied, it need not be stored"]
    if convention == "gguf" and tied:
        return [
            f"there is no `{tied[0]}`: the embedding is also the output matrix (tied embeddings)"
        ]
    plain = {family.plain(name) for name in tied}
    stored = [name for name in header_of(checkpoint.tree).tensors if family.plain(name) in plain]
    return [f"`{name}` is stored although it is tied to the embedding" for name in stored]


_COUNTS = ("layers", "experts")


def list_misfits(checkpoint: RecognizedModel, fit: Fit) -> list[Problem]:
    """Return a problem for each tensor that is missing, unexpected, or has a wrong shape or type.

    If changing a single config value would make the tensors fit, a problem of that key comes first.
    """
    fitting = _find_fitting(checkpoint, fit)
    problems: list[Problem] = []
    if fitting:
        first = fitting[0]
        text = f"{first.statement}, but {_find_contradicted(fit)}"
        problems.append(Problem(where=first.key, text=text, cause=explain_misfit(fitting)))
    problems += [_report_misshaped(each, fitting) for each in fit.misshaped]
    for each in fit.no_numbers:
        text = f"has the encoding {each.info.encoding}, which is not for weights"
        problems.append(Problem(where=each.name, text=text))
    problems += [_report_missing(checkpoint, each, fitting) for each in fit.missing]
    return problems + list(_report_unexpected(checkpoint, fit, fitting))


def _find_contradicted(fit: Fit) -> str:
    if fit.misshaped:
        count = len(fit.misshaped)
        return f"{count} {'tensors have' if count > 1 else 'tensor has'} other shapes"
    counts = {"are missing": len(fit.missing), "are unexpected": len(fit.unexpected)}
    return " and ".join(f"{count} tensors {what}" for what, count in counts.items() if count)


def _find_fitting(checkpoint: RecognizedModel, fit: Fit) -> list[Correction]:
    fields = FIELDS if fit.misshaped else _COUNTS
    # Many tensors of the same layers or experts may be missing or unexpected.
    may_help = fit.misshaped or len(fit.missing) > 1 or len(fit.unexpected) > 1
    if not may_help or _is_turned(fit):
        return []
    document = checkpoint.document if checkpoint.convention == "hugging_face" else None
    return find_corrections(checkpoint.tree, checkpoint.family, document, fit, fields)


def _is_turned(fit: Fit) -> bool:
    return bool(fit.misshaped) and all(map(_is_transposed, fit.misshaped))


def _report_misshaped(each: Misfit, fitting: list[Correction]) -> Problem:
    cause = explain_misfit(fitting)
    if cause is None and _is_transposed(each):
        cause = Explanation(
            "transposed",
            "the shape is transposed: rows and columns were exchanged, or were not "
            "exchanged where they should be",
        )
    return Problem(
        where=each.name,
        text=f"has shape {list(each.info.shape)}, expected {list(each.shape)}",
        cause=cause,
    )


def _is_transposed(each: Misfit) -> bool:
    return len(each.shape) == 2 and each.info.shape == each.shape[::-1]


def _report_missing(
    checkpoint: RecognizedModel, each: Wanted, fitting: list[Correction]
) -> Problem:
    cause = explain_misfit(fitting)
    if each.names.module == OUTPUT_WEIGHT:
        cause = _blame_forgotten_output(checkpoint)
    elif (
        cause is None
        and each.names.line.is_of_layers
        and each.names.layer >= checkpoint.config.layers
    ):
        cause = Explanation("mtp_lost", "this layer for multi-token prediction is incomplete")
    elif (
        each.names.kind == "bias"
        and f"{each.names.module.removesuffix('bias')}weight" in checkpoint.tensors
    ):
        cause = _blame_drop(checkpoint)
    return Problem(
        where=each.name, text=f"is missing; expected shape {list(each.shape)}", cause=cause
    )


def _blame_drop(checkpoint: RecognizedModel) -> Explanation:
    return Explanation(
        "bias_dropped",
        f"according to {checkpoint.where}, the layer has this bias, and its weight is present: the "
        "bias was left out when the checkpoint was written",
    )


def _report_unexpected(
    checkpoint: RecognizedModel, fit: Fit, fitting: list[Correction]
) -> Iterator[Problem]:
    """Yield a problem for each tensor that is not part of the model.

    For an unexpected bias, the cause is a missing bias of the first layer, or a config key.
    """
    stored = header_of(checkpoint.tree).tensors
    for name in fit.unexpected:
        cause = explain_misfit(fitting)
        first = mask_numbers(name, "0", most=1)
        if name.endswith(".bias") and first != name and first not in stored:
            # In GGUF, the first layer decides for all layers whether they have one.
            cause = Explanation(
                "bias_dropped", f"`{first}` is missing, and other layers have a bias"
            )
        elif name.endswith(".bias") and (key := _find_denial(checkpoint, name)):
            cause = Explanation("config", f"`{key}` is false or missing, and there are biases")
        yield Problem(
            where=name,
            text=f"is not a tensor of {checkpoint.family.name} with this config",
            cause=cause,
        )


def _find_denial(checkpoint: RecognizedModel, name: str) -> str:
    """Return the config key that says whether the bias `name` exists; empty if there is none."""
    plain, convention = checkpoint.family.plain, checkpoint.convention
    kind = mask_numbers(plain(name))
    for line in checkpoint.family.names:
        template = line.gguf if convention == "gguf" else line.hugging_face
        if not isinstance(line.bias, str) or template is None:
            continue
        if plain(f"{template.format('N', expert='N')}.bias") == kind:
            return find_spelling(checkpoint, line.bias).key
    return ""
