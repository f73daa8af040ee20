"""Diffusion transformers, which packages know: whether a checkpoint is one, and what it has.

An entry point of the group `weightctl.diffusion` is a `DiffusionPackage`, such as a module with
these names. In the code, `hugging_face` is the naming convention of diffusers, and `gguf` is that
of the files that the authors of a model published.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import CLASS_NAME, config
from weightctl.system.registry import load_entry_points
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.config_keys import NamingConvention
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header
    from weightctl.weights.tree import Checkpoint

_ENTRY_POINTS = "weightctl.diffusion"
# The metadata key under which weightctl keeps diffusers' config.json in other files, as JSON text.
CONFIG_KEY = "diffusers.config"
# What the names begin with in files that also have text encoders and the VAE.
PREFIXES = ("", "model.diffusion_model.")
# What names of the first layer begin with. Only checkpoints with such names, or with a config of
# diffusers, are shown to packages.
_LAYERS = tuple(
    f"{prefix}{kind}blocks.0."
    for prefix in PREFIXES
    for kind in ("", "double_", "joint_", "single_", "single_transformer_", "transformer_")
)


class FoundDiffusion(NamedTuple):
    """What the header of a checkpoint shows of a diffusion transformer.

    - `architecture`: its family, the value of `general.architecture` in GGUF.
    - `convention`: the naming convention, `hugging_face` for diffusers, `gguf` for original names.
    - `prefix`: what the names begin with.
    - `stated`: the config.json of diffusers, empty if the checkpoint does not have it.
    """

    architecture: str
    convention: NamingConvention
    prefix: str
    stated: Mapping[str, Any]


class DiffusionEntry(Protocol):
    """What the table of a package has of a family of diffusion transformers.

    - `class_name`: diffusers' class, the value of `_class_name` in config.json.
    - `original`, `diffusers`: names of tensors that, together, only these models have, in files of
      either naming convention. They are the same if the names of all tensors are.
    - `kept`: a regular expression of tensors that are never quantized, by their original names.
    """

    @property
    def class_name(self) -> str: ...
    @property
    def original(self) -> tuple[str, ...]: ...
    @property
    def diffusers(self) -> tuple[str, ...]: ...
    @property
    def kept(self) -> str: ...


class DiffusionModel(Protocol):
    """A checkpoint of a diffusion transformer.

    - `name`: the name of its family.
    - `convention`: its naming convention.
    - `tensors`: the tensors by their original names, and with the values that original files have.
    - `layers`: the number of layers of all kinds.
    - `problems`: a sentence for each tensor that is missing or does not fit the others.
    - `unexpected`: tensors that are not part of the model, by their names in the checkpoint.
    """

    @property
    def name(self) -> str: ...
    @property
    def convention(self) -> NamingConvention: ...
    @property
    def tensors(self) -> Mapping[str, ReadableTensor]: ...
    @property
    def layers(self) -> int: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def unexpected(self) -> Sequence[str]: ...
    def make_config(self) -> dict[str, Any]:
        """Return the content of config.json for diffusers; raises `ArchitectureError`."""
        ...


class DiffusionPackage(Protocol):
    """What a package knows of diffusion transformers: families, by the names of architectures."""

    @property
    def FAMILIES(self) -> Mapping[str, DiffusionEntry]:  # noqa: N802 - a constant of a module
        ...

    def find(self, header: Header, /) -> FoundDiffusion | None:
        """Return what a header shows of a diffusion transformer; None if it is not one."""
        ...

    def recognize(self, weights: Checkpoint, /) -> DiffusionModel | None:
        """Return a checkpoint as a diffusion transformer; None if it is not one."""
        ...

    def plan(
        self,
        weights: Checkpoint,
        format_name: str,
        wanted: NamingConvention | None,
        exclude: Sequence[str],
        /,
        *,
        is_model: bool,
    ) -> Any:
        """Return the `Plan` to store it, and the patterns that still apply.

        `wanted` is the naming convention of the output, None to keep the present names. `exclude`
        are patterns of names that are left out. `is_model` states that the output is a model
        directory.
        """
        ...


@cache
def _load_packages() -> tuple[DiffusionPackage, ...]:
    return tuple(each.value for each in load_entry_points(_ENTRY_POINTS))


def list_diffusion_families() -> dict[str, DiffusionEntry]:
    """Return the families of all packages, by the names of architectures."""
    return {name: each for package in _load_packages() for name, each in package.FAMILIES.items()}


def find_diffusion_family(architecture: object) -> DiffusionEntry | None:
    """Return the family of an architecture; None if it is that of another model."""
    return None if _is_known(architecture) else list_diffusion_families().get(str(architecture))


def _is_known(architecture: object) -> bool:
    from weightctl.families.index import FAMILIES  # a listing does not need it

    return any(line.gguf == architecture for line in FAMILIES.values())


def find_diffusion_package(header: Header) -> tuple[DiffusionPackage, FoundDiffusion] | None:
    """Return the package that knows the diffusion transformer of a header; None without one."""
    if not _may_be_diffusion(header):
        return None
    for package in _load_packages():
        found = package.find(header)
        if found is not None:
            return package, found
    return None


def _may_be_diffusion(header: Header) -> bool:
    """Whether it is worth to look for packages, which takes time."""
    stated = header.metadata.get(ARCHITECTURE)
    if stated is not None:
        return not _is_known(stated.content)
    is_of_diffusers = CONFIG_KEY in header.metadata or CLASS_NAME in config(header)
    return is_of_diffusers or any(name.startswith(_LAYERS) for name in header.tensors)


def find_diffusion(header: Header) -> FoundDiffusion | None:
    """Return what a header shows of a diffusion transformer; None if it is not one."""
    known = find_diffusion_package(header)
    return None if known is None else known[1]


def recognize_diffusion(weights: Checkpoint) -> DiffusionModel | None:
    """Return a checkpoint as a diffusion transformer; None if it is not one. No tensor is read.

    Raises `ArchitectureError` for layer numbers that are too large.
    """
    known = find_diffusion_package(header_of(weights))
    return None if known is None else known[0].recognize(weights)
