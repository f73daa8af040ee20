"""A checkpoint as a model of a supported family: its config, and its weights by module name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError
from weightctl.families.mlx import HINT as MLX_HINT
from weightctl.families.mlx import is_mlx
from weightctl.families.modules import shape_of
from weightctl.families.steps import INT32, TOKEN_OFFSETS
from weightctl.text.folding import group_alike, mask_numbers
from weightctl.text.wording import list_first
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Config, Fields, NamingConvention
    from weightctl.families.family import Family
    from weightctl.families.modules import TensorNames
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# A file may cause any number of problems; a message lists only this many.
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class RecognizedModel:
    """A recognized model: a checkpoint with its family, config and weights.

    - `tree`: the checkpoint.
    - `where`: its name in errors.
    - `family`, `config`: the model family, and the config of the model.
    - `convention`: the naming convention of its tensors.
    - `fields`: the values of the config, by the names of the fields in the family's keys.
    - `document`: the content of config.json, empty if there is none.
    - `tensors`: the tensors of the model, by their names in our modules.
    - `missing`: tensors that the config requires and the checkpoint does not have.
    - `unexpected`: tensors that are not part of the model, by their names in the checkpoint.
    - `beside`: tensors that the family allows but does not use, such as training heads.
    - `stored`: maps the names of tensors in our modules to the tensors of the checkpoint that
      contain them, also those of copies that the model does not need.
    - `outputs_first`: the tensors that the checkpoint has as (outputs, inputs), although others of
      this family have (inputs, outputs), by their names in the checkpoint.
    - `has_mlx_form`: whether tensors have the form of MLX.
    - `lost_mtp`: the number of layers for multi-token prediction that the config states although
      the checkpoint has no tensor of them.
    """

    tree: Checkpoint
    where: str
    family: Family
    convention: NamingConvention
    config: Config
    fields: Fields
    document: Mapping[str, Any]
    tensors: Mapping[str, ReadableTensor]
    missing: list[str]
    unexpected: list[str]
    beside: list[str]
    stored: Mapping[str, str]
    outputs_first: frozenset[str] = frozenset()
    has_mlx_form: bool = False
    lost_mtp: int = 0

    def __repr__(self) -> str:
        found = f"{len(self.tensors)} weights of {self.family.name}, {self.convention} names"
        counts = {"missing": len(self.missing), "unexpected": len(self.unexpected)}
        wrong = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return f"<RecognizedModel: {found}{wrong}>"

    @cached_property
    def weights(self) -> Mapping[str, Checkpoint]:
        """The tensors by their names in our modules, as a `weights_registry` of an engine."""
        source = source_of(self.tree)
        stored = Checkpoint(source)
        made = {
            name: tensor
            for name, tensor in self.tensors.items()
            if isinstance(tensor, DerivedTensor)
        }
        derived = Checkpoint(Derived(source, made, {}))
        return {
            name: stored[tensor.name] if isinstance(tensor, StoredTensor) else derived[name]
            for name, tensor in self.tensors.items()
        }

    @cached_property
    def is_mlx(self) -> bool:
        """Whether tensors have the form of MLX, or the checkpoint states that MLX wrote it."""
        return self.has_mlx_form or is_mlx(header_of(self.tree))

    @cached_property
    def has_only_mtp(self) -> bool:
        """Whether this is a GGUF file with the layers for MTP alone, a draft model."""
        if self.convention != "gguf" or not getattr(self.config, "mtp_layers", 0):
            return False
        layers = tuple(f"layers.{number}." for number in range(self.config.layers))
        return not any(name.startswith(layers) for name in self.tensors)

    def check(self) -> None:
        """Raise `ArchitectureError` for a checkpoint that is not the whole model of its config.

        The error lists all tensors that are missing, unexpected, of a wrong shape, or not
        floating-point.
        """
        if self.has_only_mtp:
            raise ArchitectureError(
                f"{self.where} has only the layers for multi-token prediction (MTP) of a "
                f"{self.family.name}",
                hint="use the file of the whole model",
            )
        problems = self._disagreements()
        alike: tuple[str, str, int] | None = None
        shape: tuple[int, ...] = ()
        for names in self.family.tensors(self.config):
            kind = (names.line.module, names.kind, names.layer)
            if kind != alike:  # the experts of a layer follow one another
                alike, shape = kind, shape_of(names, self.config)
            tensor = self.tensors.get(names.module)
            if tensor is not None and (wrong := _describe_misfit(names, tensor, shape)):
                problems.append(wrong)
        if problems:
            raise self._error(problems)

    def _disagreements(self) -> list[str]:
        """Return which tensors are missing, and which are not part of the model."""
        problems = [f"`{name}` is missing" for name in self.missing]
        return problems + [
            f"`{name}` is not a part of {self.family.name}" for name in self.unexpected
        ]

    def _error(self, problems: list[str]) -> ArchitectureError:
        """Return the error that lists all problems of a checkpoint."""
        folded = fold_problems(problems)
        return ArchitectureError(
            "\n  ".join(
                [
                    f"the checkpoint does not match its config (model family {self.family.name}):",
                    *list_first(folded, _MOST_NAMED),
                ]
            ),
            hint=MLX_HINT
            if self.is_mlx
            else "check that the config belongs to this checkpoint, and that the checkpoint is "
            "complete; if its tensors have other names, use --rename FILE (rename=FILE in "
            "Python); --config DIR (config in Python) removes a prefix of all names",
        )


def fold_problems(problems: list[str]) -> list[str]:
    """Return the problems, merging those that differ only in layer and expert numbers."""
    return [
        same[0] if len(same) == 1 else f"{same[0]}, and {len(same) - 1} more like it"
        for same in group_alike(problems, mask_numbers)
    ]


def has_fitting_numbers(names: TensorNames, info: TensorInfo) -> bool:
    """Whether a tensor has integers if it is a table of them, and real numbers if it is not."""
    if names.change not in (INT32, TOKEN_OFFSETS):
        return info.encoding.is_real
    from weightctl.weights.steps.integers import INTEGERS

    return info.encoding.name in INTEGERS


def _describe_misfit(names: TensorNames, tensor: ReadableTensor, shape: tuple[int, ...]) -> str:
    """Return what is wrong with a tensor for a weight of this shape, empty if nothing is."""
    info = tensor.info
    name = ", ".join(source.name for source in tensor.origin.sources)
    if shape != info.shape:
        return f"`{name}` has shape {list(info.shape)} instead of {list(shape)}"
    if not has_fitting_numbers(names, info):
        return f"`{name}` is stored as {info.encoding}, a type that model weights cannot have"
    return ""
