"""Which tensors of a model the modules of an adapter are, also in a GGUF file."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.families import recognize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import Config
    from weightctl.families.modules import TensorNames
    from weightctl.weights.tree import Checkpoint

# kohya's sd-scripts write the name of the model's part first, and `_` for the dots of names.
_KOHYA = re.compile(r"^lora_(unet|te|te1|te2|te3|transformer)_")
# Words that diffusers puts before the names of a pipeline's model.
_OF_PIPELINES = ("unet.", "transformer.", "text_encoder.", "text_encoder_2.", "diffusion_model.")
_WEIGHT = ".weight"


class Targets:
    """The names of a model's tensors, by which the tensors of modules are found."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        for name in names:
            self._names[name] = name
            if name.endswith(_WEIGHT):
                self._names.setdefault(name.removesuffix(_WEIGHT), name)
        self._by_words: dict[str, set[str]] = {}
        # The ends of names, for adapters whose names lack the first words, and the opposite.
        self._by_end: dict[str, set[str]] = {}
        for short, name in self._names.items():
            self._by_words.setdefault(short.replace(".", "_"), set()).add(name)
            words = short.split(".")
            for start in range(1, len(words) - 1):
                self._by_end.setdefault(".".join(words[start:]), set()).add(name)

    def find(self, module: str) -> str | None:
        """Return the name of the weight of a module, None if there is none, or several fit.

        `module` can also be the name of a tensor. Its first words may be missing, or be more than
        in the model, if only one tensor fits.
        """
        if module in self._names:
            return self._names[module]
        for prefix in _OF_PIPELINES:
            if module.startswith(prefix) and module[len(prefix) :] in self._names:
                return self._names[module[len(prefix) :]]
        if found := _KOHYA.match(module):
            return _only(self._by_words.get(module[found.end() :], set()))
        fitting = set(self._by_end.get(module, ()))
        words = module.split(".")
        ends = (".".join(words[start:]) for start in range(1, len(words) - 1))
        fitting.update(self._names[end] for end in ends if end in self._names)
        return _only(fitting)

    def list_other_parts(self, modules: Iterable[str]) -> set[str]:
        """Return the modules of other models of a pipeline, such as those of its text encoder.

        These are the modules with a prefix of kohya or diffusers, if no module with this prefix is
        found, but others are.
        """
        groups: dict[str, list[str]] = {}
        for module in modules:
            groups.setdefault(_prefix(module), []).append(module)
        found = {prefix: any(map(self.find, group)) for prefix, group in groups.items()}
        if not any(found.values()):
            return set()
        lost = (group for prefix, group in groups.items() if prefix and not found[prefix])
        return {module for group in lost for module in group}

    def describe_near(self, module: str) -> str:
        """Return a hint with the most similar names."""
        near = get_close_matches(module, self._names, 1)
        like = f"the most similar name is `{near[0]}`; " if near else ""
        return f"{like}check that the adapter belongs to this model"


def _prefix(module: str) -> str:
    """Return the prefix by which kohya or diffusers names a model of a pipeline, or nothing."""
    if found := _KOHYA.match(module):
        return found[0]
    return next((each for each in _OF_PIPELINES if module.startswith(each)), "")


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


class Places(NamedTuple):
    """Hugging Face's names of the tensors of a GGUF file, with the lines of its family."""

    names: Mapping[str, Sequence[TensorNames]]
    config: Config
    family: str

    def find(self, name: str) -> TensorNames:
        """Return the line of a tensor of Hugging Face's, which has a name in GGUF.

        Raises `ConversionError` if one of the conventions stores it together with other parts.
        """
        lines = self.names[name]
        line = lines[0]
        if len(lines) > 1 or line.fusions or line.gguf is None:
            raise ConversionError(
                f"`{name}` contains other parts in GGUF files of {self.family} than in the "
                "original model, so an adapter for it does not apply to them",
                hint="merge the adapter into the original model, and convert the result",
            )
        return line


def find_places(base: Checkpoint) -> Places:
    """Return where Hugging Face's tensors are in a GGUF file; raises as `recognize` does."""
    return list_places(recognize(base))


def list_places(model: RecognizedModel) -> Places:
    """Return the lines of a model's tensors by Hugging Face's names."""
    found: dict[str, list[TensorNames]] = {}
    for names in model.family.tensors(model.config):
        if names.hugging_face is not None:
            found.setdefault(names.hugging_face, []).append(names)
    return Places(found, model.config, model.family.name)
