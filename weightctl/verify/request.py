"""A request to verify a checkpoint: the checkpoint, its reference, and limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.errors import (
    ArchitectureError,
    ConversionError,
    FormatError,
    UnknownArchitectureError,
    WeightctlError,
)
from weightctl.families.recognition import recognize
from weightctl.formats.open.opening import open_weights
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.formats.sharded.opening import find_whole
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.system.phases import begin_phase
from weightctl.verify import CHECKS
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from weightctl.device import DeviceRef
    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer.encoding import TokenEncoder
    from weightctl.verify.compare.mismatch import Mismatch
    from weightctl.verify.compare.pairing import Pairing
    from weightctl.verify.run.prompt import Prompt
    from weightctl.verify.workers import Workers
    from weightctl.weights.tree import Checkpoint


class Subject:
    """A checkpoint at a path, which is opened, recognized and read on first use.

    Errors of recognition are kept as `refusal`, not raised, so that every check can run.
    """

    def __init__(self, path: str | os.PathLike[str], format_name: str | None = None) -> None:
        self.path = os.fspath(path)
        self.format_name = format_name

    @cached_property
    def stored(self) -> Checkpoint:
        """The tree as stored in the files; raises `FormatError` if they are damaged."""
        return open_weights(self.path, self.format_name)

    @cached_property
    def weights(self) -> Checkpoint:
        """The tree in which each weight that a scheme stores in several tensors is one tensor."""
        return dequantize_weights(self.stored, in_blocks=False)

    @property
    def cut(self) -> GatheredSource | None:
        """The source of a sharded checkpoint; None if the files are not those of several ranks."""
        source = source_of(self.stored)
        return source if isinstance(source, GatheredSource) else None

    @property
    def whole(self) -> str:
        """The directory of the sharded checkpoint if this is one rank's file; otherwise empty."""
        return find_whole(header_of(self.stored).files)

    @cached_property
    def _recognized(self) -> RecognizedModel | WeightctlError:
        try:
            return recognize(self.weights)
        except WeightctlError as error:
            return error

    @property
    def checkpoint(self) -> RecognizedModel | None:
        """The recognized model; None if the family is unknown or the tensors do not match it."""
        found = self._recognized
        return None if isinstance(found, WeightctlError) else found

    @property
    def refusal(self) -> WeightctlError | None:
        """The error that explains why `checkpoint` is None; None if the model was recognized."""
        found = self._recognized
        return found if isinstance(found, WeightctlError) else None

    @cached_property
    def encoder(self) -> TokenEncoder | None:
        """The tokenizer's text encoder; None if the model is unknown or has no tokenizer.

        Raises `TokenizerError` if the tokenizer is damaged, or if the `tokenizers` library is
        missing.
        """
        from weightctl.translate.tokenizer.encoding import encoder_of

        checkpoint = self.checkpoint
        if checkpoint is None:
            return None
        begin_phase("reading the tokenizer")
        files = header_of(checkpoint.tree).files
        directory = os.path.dirname(files[0]) or "." if files else None
        kind = str(checkpoint.document.get("model_type", checkpoint.family.name))
        return encoder_of(header_of(checkpoint.tree).metadata, directory, kind, checkpoint.where)

    @property
    def damage(self) -> FormatError | None:
        """The error that opening the files raises; None if they can be opened."""
        try:
            _ = self.stored
        except FormatError as error:
            return error
        return None

    @property
    def is_of_unknown_family(self) -> bool:
        """Whether the checkpoint does not state its family, or states an unknown one."""
        return isinstance(self.refusal, UnknownArchitectureError) or (
            isinstance(self.refusal, ArchitectureError) and not self._says_its_family
        )

    @property
    def _says_its_family(self) -> bool:
        from weightctl.families.model import ARCHITECTURE
        from weightctl.formats.huggingface import config

        return ARCHITECTURE in header_of(self.stored).metadata or bool(
            config(header_of(self.stored).files)
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checkpoint to verify, alone or against a `reference`, and the limits for it.

    The model runs on `device`. Its input is `tokens`, or `text` if `tokens` is None, or the
    built-in text if both are None. Only `layers` are checked, or all layers if None.

    A perplexity above `max_perplexity`, a mean Kullback-Leibler divergence above `max_divergence`
    and a relative RMSE of a tensor above `max_rmse` are problems. If `max_rmse` is None, the limit
    of each tensor is derived from the errors of its encodings. If `compare` is set, differences
    from the reference are listed, not judged.

    `progress` is called with the name of a step and the fraction of it that is done, from 0 to 1.
    `workers`, if not None, read the values for the checks `structure`, `finite` and `values`.
    """

    subject: Subject
    reference: Subject | None = None
    device: DeviceRef = CPU
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    layers: range | None = None
    max_perplexity: float | None = None
    max_divergence: float | None = None
    max_rmse: float | None = None
    compare: bool = False
    progress: Callable[[str, float], object] | None = None
    workers: Workers | None = None

    @cached_property
    def prompt(self) -> Prompt:
        """The tokens to run the models on, from the reference's tokenizer if it has one.

        At least one of the models must be of a known family. Raises the errors of `make_prompt`.
        """
        from weightctl.verify.run.prompt import make_prompt

        subjects = (self.reference, self.subject)
        return make_prompt(self, *(each for each in subjects if each and each.checkpoint))

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """Why the checkpoints cannot be compared tensor by tensor; None if they can.

        None also if there is no reference. Raises `FormatError` if a file cannot be read.
        """
        from weightctl.verify.compare.mismatch import find_mismatch

        return None if self.reference is None else find_mismatch(self.subject, self.reference)

    @cached_property
    def pairing(self) -> Pairing:
        """The paired tensors of both checkpoints, with the results of the checks so far.

        Raises `ValueError` if there is no reference.
        """
        from weightctl.verify.compare.pairs import pair_tensors

        if self.reference is None:
            raise ValueError("there is no reference")
        if self.mismatch is not None and self.mismatch.pairing is not None:
            return self.mismatch.pairing
        return pair_tensors(self.subject, self.reference)

    def tell(self, doing: str, done: float) -> None:
        """Report progress: the name of a step, and the fraction of it that is done, 0 to 1."""
        if self.progress is not None:
            self.progress(doing, done)

    def has_layer(self, number: int | None) -> bool:
        """Whether layer `number` is checked; None means a tensor outside the layers.

        Tensors outside the layers are checked only if all layers are.
        """
        return self.layers is None or (number is not None and number in self.layers)

    def last_layer(self, layers: int) -> int:
        """Return the last layer that has to run in a model of `layers` layers; -1 if none does.

        The requested range may extend beyond the model's layers.
        """
        return max(filter(self.has_layer, range(layers)), default=-1)


def require_consistent(request: Request, wanted: Container[str]) -> None:
    """Raise `ConversionError` for a limit that no check applies, or layers that do not exist.

    A limit that is silently ignored would look as if it were met.
    """
    last = _find_last_layer(request)
    _require_comparison(request)
    for name, limit in [(name, limit) for name, each in CHECKS.items() for limit in each.limits]:
        if getattr(request, limit.field) is None:
            continue
        if limit.needs_reference and request.reference is None:
            raise ConversionError(
                f"{limit.option} limits a difference, but there is no reference checkpoint",
                hint="give a checkpoint that works: --against PATH",
            )
        if name not in wanted:
            raise ConversionError(
                f"{limit.option} applies to the check `{name}`, which --check or --skip disables",
                hint=f"leave out {limit.option}, or run `{name}`",
            )
        if limit.of_whole_model and last is not None and not request.has_layer(last):
            raise ConversionError(
                f"{limit.option} applies to the whole model, but --layers leaves out its last "
                f"layer, {last}",
                hint=f"leave out {limit.option}, or --layers",
            )


def _require_comparison(request: Request) -> None:
    """Raise `ConversionError` for `compare` without a reference, or with a limit."""
    if not request.compare:
        return
    if request.reference is None:
        raise ConversionError(
            "--compare needs a second checkpoint", hint="give its path: --against PATH"
        )
    for limit in [limit for each in CHECKS.values() for limit in each.limits]:
        if getattr(request, limit.field) is not None:
            raise ConversionError(
                f"--compare and {limit.option} are both given, but --compare applies no limits",
                hint=f"leave out --compare, or {limit.option}",
            )


def _find_last_layer(request: Request) -> int | None:
    """Return the number of the model's last layer; None if the model is unknown.

    Raises `ConversionError` if a requested layer does not exist.
    """
    subject, asked = request.subject, request.layers
    if subject.damage is not None or subject.checkpoint is None:
        return None
    count = subject.checkpoint.config.layers
    # The ends are compared, since `len` fails for very large ranges.
    if asked is not None and not (asked and {asked[0], asked[-1]} <= {*range(count)}):
        raise ConversionError(
            f"{subject.path}: --layers lists layers that do not exist: the model has "
            f"{'only layer 0' if count == 1 else f'layers 0 to {count - 1}'}",
            hint="use layers of the model: --layers N-M",
        )
    return count - 1
