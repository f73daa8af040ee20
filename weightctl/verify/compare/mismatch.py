"""Detects checkpoints that differ as a whole: different models or names, or one rank's file."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.configs import MODEL_TYPE
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import config
from weightctl.text.wording import join_names, number
from weightctl.verify.compare.pairing import list_trained, pair_renamed, pair_tensors
from weightctl.verify.results import Explanation, Problem
from weightctl.weights.derived import tensor_of
from weightctl.weights.steps.numbers import read_blocks
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.families import RecognizedModel
    from weightctl.verify.compare.pairing import Pairing
    from weightctl.verify.subject import Subject
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint

    # The shape, the encoding, and some bytes.
    Content = tuple[tuple[int, ...], str, bytes]

# The matrices of a LoRA adapter, whose shapes depend on its rank.
_OF_ADAPTER = re.compile(r"lora_[ABab]\b|lora_embedding_")
# The fraction of the smaller checkpoint's names that two checkpoints of one model share.
_COMMON = 0.5
# A file is one rank's file if at least this fraction of its tensors are cut in the same way.
_MOST = 0.75
_MOST_RANKS = 64
_EXAMPLES = 2
# Tensors with other names are recognized by this number of bytes, at this number of places.
_SAMPLE, _PLACES = 512, 4


class Mismatch(NamedTuple):
    """The reason why two checkpoints cannot be compared tensor by tensor.

    `text` is a sentence about both, in which A is the checkpoint and B the reference; `short` has a
    few words for checks that are skipped. `pairing` has the tensors that can be compared, or is
    None. `is_whole` says whether A is a whole model. `is_of_reference` says that only the names in
    B are unusual, so that nothing is wrong with A. `hint` says what to do, if it is not the cause's
    remedy.
    """

    cause: Explanation
    text: str
    short: str
    pairing: Pairing | None = None
    is_whole: bool = True
    is_of_reference: bool = False
    hint: str = ""

    @property
    def is_of_models(self) -> bool:
        return self.cause.name == "different_models"

    @property
    def is_of_names(self) -> bool:
        """Whether the names and shapes of A are not those of its own config."""
        is_renamed = self.cause.name == "renamed" and not self.is_of_reference
        return not self.is_whole or is_renamed

    @property
    def problem(self) -> Problem:
        """The mismatch as a problem of both checkpoints as a whole."""
        return Problem(where="", text=self.text, hint=self.hint, cause=self.cause)


def find_mismatch(subject: Subject, reference: Subject) -> Mismatch | None:
    """Return why two checkpoints cannot be compared tensor by tensor; None if they can.

    Headers are compared. If most tensors have no counterpart of the same name, a few bytes of each
    tensor are compared too.
    """
    if explain_unpaired(subject, reference):
        return None
    if text := _describe_models(subject.checkpoint, reference.checkpoint):
        return _make_different(f"A and B are different models: {text}")
    pairing = pair_tensors(subject, reference)
    return _find_rank(subject, reference, pairing) or _find_names(subject, reference, pairing)


def explain_unpaired(subject: Subject, reference: Subject) -> str:
    """Return a message if the tensors of an unknown family have names of both conventions.

    Such tensors cannot be paired. The message is empty if they can be.
    """
    if subject.checkpoint is not None or reference.checkpoint is not None:
        return ""
    in_gguf = [ARCHITECTURE in header_of(each.stored).metadata for each in (subject, reference)]
    own, other = list_trained(subject.weights), list_trained(reference.weights)
    if in_gguf[0] == in_gguf[1] or own.keys() & other.keys():
        return ""
    named = reference if in_gguf[0] else subject
    if MODEL_TYPE not in config(header_of(named.stored)):
        return ""
    one, two = "AB" if in_gguf[0] else "BA"
    return (
        f"{one} has the names of GGUF and {two} those of Hugging Face: weightctl does not support "
        "the family, so the tensors cannot be paired"
    )


def _make_different(text: str) -> Mismatch:
    cause = Explanation("different_models", "B is not the original of A")
    return Mismatch(cause, text, "A and B are different models")


def _describe_models(own: RecognizedModel | None, other: RecognizedModel | None) -> str:
    """Describe two models if they are different; empty if they may be the same.

    Models are different if their families differ, or if their hidden sizes differ together with the
    number of layers or the vocabulary size. If only one of these sizes differs, it may be an error
    in a config.
    """
    if own is None or other is None:
        return ""
    unequal = {
        field
        for field in ("hidden", "layers", "vocabulary")
        if getattr(own.config, field) != getattr(other.config, field)
    }
    is_resized = "hidden" in unequal and len(unequal) > 1
    if own.family.name == other.family.name and not is_resized:
        return ""
    return " / ".join(_describe_model(each, "vocabulary" in unequal) for each in (own, other))


def _describe_model(model: RecognizedModel, with_vocabulary: bool) -> str:
    layers, hidden = model.config.layers, model.config.hidden
    sizes = f"{layers} {'layer' if layers == 1 else 'layers'}, hidden size {hidden}"
    vocabulary = f", {model.config.vocabulary:,} tokens" if with_vocabulary else ""
    return f"{model.family.name} with {sizes}{vocabulary}"


def _find_rank(subject: Subject, reference: Subject, pairing: Pairing) -> Mismatch | None:
    """Return a mismatch if the manifest or the shapes show that a side is one rank's file."""
    cut = [
        pair
        for pair in pairing.pairs
        if pair.tensor.info.shape != pair.reference.info.shape and not _OF_ADAPTER.search(pair.name)
    ]
    wholes = subject.whole, reference.whole
    if bool(wholes[0]) != bool(wholes[1]) and (cut or pairing.missing or pairing.unexpected):
        side, whole = ("A", wholes[0]) if wholes[0] else ("B", wholes[1])
        lacking = pairing.missing if side == "A" else pairing.unexpected
        lacks = f" and lacks {len(lacking)}" if lacking else ""
        total = len(pairing.pairs) + len(lacking)
        text = (
            f"{side} is one rank's file, not a whole model: of {total} tensors it has {len(cut)} "
            f"in part{lacks}; the whole checkpoint is `{whole}`"
        )
        return _make_rank(side, text, pairing)
    matrices = sum(len(pair.tensor.info.shape) > 1 for pair in pairing.pairs)
    for side in ("A", "B"):
        counts = Counter(
            _count_ranks(*shapes[:: 1 if side == "A" else -1])
            for pair in cut
            if (shapes := (pair.tensor.info.shape, pair.reference.info.shape))
        )
        ranks, count = max(counts.items(), key=lambda each: each[1], default=(0, 0))
        if ranks and count > 1 and count >= _MOST * max(len(cut), matrices):
            other = "B" if side == "A" else "A"
            text = (
                f"{side} looks like one rank's file of a sharded checkpoint: {count} of "
                f"{len(pairing.pairs)} tensors have 1/{ranks} of the rows or columns that those "
                f"of {other} have"
            )
            return _make_rank(side, text, pairing)
    return None


def _make_rank(side: str, text: str, pairing: Pairing) -> Mismatch:
    cause = Explanation("one_rank", f"{side} has the shards of one of several ranks")
    return Mismatch(cause, text, f"{side} is one rank's file", pairing, is_whole=side != "A")


def _count_ranks(shape: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """Return the number of equal shards of `whole` if `shape` is one of them; otherwise 0."""
    if len(shape) != len(whole):
        return 0
    unequal = [(size, of) for size, of in zip(shape, whole, strict=True) if size != of]
    if len(unequal) != 1:
        return 0
    size, of = unequal[0]
    return of // size if size and of % size == 0 and of // size <= _MOST_RANKS else 0


def _find_names(subject: Subject, reference: Subject, pairing: Pairing) -> Mismatch | None:
    """Return a mismatch if fewer than half of the tensors can be paired by their names."""
    own, other = list_trained(subject.weights), list_trained(reference.weights)
    fewest = min(len(own), len(other))
    if bool(own) != bool(other):
        empty, full = ("A", "B") if other else ("B", "A")
        cause = Explanation("different_models", "there is nothing to compare with")
        text = f"{empty} has no tensors, and {full} has {len(own) or len(other)}"
        return Mismatch(cause, text, f"{empty} has no tensors")
    if len(pairing.pairs) >= _COMMON * fewest:
        return None
    wanted = {name: name for name in _list_names(reference)}
    for prefix, is_added in ((find_prefix(own, wanted), True), (find_prefix(wanted, own), False)):
        if prefix:
            found = {
                name: new
                for name in own
                if (new := name.removeprefix(prefix) if is_added else prefix + name) in wanted
            }
            how = "begins with" if is_added else "lacks"
            detail = f"each name {how} the prefix `{prefix}`"
            if len(found) >= _COMMON * fewest:
                made = _make_renamed(subject, reference, found, detail, fewest)
                # The names in A are those of its model, and training added a prefix in B.
                is_known = subject.checkpoint is not None and reference.checkpoint is None
                return made._replace(is_of_reference=is_known and not is_added)
    found = _match_contents(subject.weights, reference.weights)
    if len(found) >= _COMMON * fewest:
        examples = [f"`{name}` is `{new}`" for name, new in found.items() if name != new]
        return _make_renamed(subject, reference, found, join_names(examples, _EXAMPLES), fewest)
    common = len({*own} & {*other})
    counts = f"{number(common)} of {number(fewest)} names {'is' if common == 1 else 'are'} in both"
    if _count_shapes(own) == _count_shapes(other):
        text = f"A and B have tensors of the same shapes under different names: {counts}"
        hint = ""
        if subject.checkpoint is not None and reference.checkpoint is None:
            hint = (
                "B has no config: convert it first, with `weightctl convert B OUT --config DIR`, "
                "where DIR has the config of the model"
            )
        short = "A and B have different tensor names"
        return Mismatch(_OTHER_NAMES, text, short, pairing, hint=hint)
    return _make_different(
        f"A and B are probably different models: {counts}, and fewer than half of the tensors "
        "have equal values under other names"
    )


_OTHER_NAMES = Explanation("renamed", "the tensors of A were renamed")


def _make_renamed(
    subject: Subject, reference: Subject, names: Mapping[str, str], detail: str, fewest: int
) -> Mismatch:
    changed = sum(name != new for name, new in names.items())
    text = f"A has {changed} of {fewest} tensors of B under other names: {detail}"
    pairing = pair_renamed(subject, reference, names)
    return Mismatch(_OTHER_NAMES, text, "A and B have different tensor names", pairing)


def _list_names(reference: Subject) -> Iterable[str]:
    """Yield the names of a checkpoint's tensors, and its family's names in both conventions."""
    yield from list_trained(reference.weights)
    model = reference.checkpoint
    if model is not None:
        for names in model.family.tensors(model.config):
            yield from filter(None, (names.name("gguf"), names.name("hugging_face")))


def find_prefix(names: Iterable[str], wanted: Iterable[str]) -> str:
    """Return the prefix whose removal turns the most names into wanted ones; empty if none does."""
    known = {*wanted}
    found: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        for place in range(1, len(parts)):
            if ".".join(parts[place:]) in known:
                found[".".join(parts[:place]) + "."] += 1
    return max(found, key=lambda prefix: found[prefix], default="")


def _match_contents(weights: Checkpoint, reference: Checkpoint) -> dict[str, str]:
    """Map the name of each tensor to the reference's name for a tensor with the same content.

    The shape, the encoding and some bytes are compared. Tensors whose content occurs more often on
    one side than on the other are left out.
    """
    own, other = (_read_contents(each) for each in (weights, reference))
    return {
        name: new
        for content, names in own.items()
        if len(names) == len(other.get(content, ()))
        for name, new in zip(names, other[content], strict=True)
    }


def _read_contents(weights: Checkpoint) -> dict[Content, list[str]]:
    found: dict[Content, list[str]] = {}
    for name, info in list_trained(weights).items():
        if not info.encoding.is_known:
            continue
        content = info.shape, info.encoding.name, _read_sample(tensor_of(source_of(weights), name))
        found.setdefault(content, []).append(name)
    return found


def _read_sample(tensor: ReadableTensor) -> bytes:
    """Return some bytes of a tensor, from places that are evenly spaced."""
    encoding, blocks = tensor.info.encoding, tensor.info.size // tensor.info.encoding.block
    count = min(max(_SAMPLE // encoding.size, 1), blocks)
    starts = dict.fromkeys((blocks - count) * place // (_PLACES - 1) for place in range(_PLACES))
    return b"".join(
        read_blocks(tensor, start * encoding.block, count * encoding.block).tobytes()
        for start in (starts if count else ())
    )


def _count_shapes(tensors: Mapping[str, TensorInfo]) -> Counter[tuple[int, ...]]:
    return Counter(info.shape for info in tensors.values())
