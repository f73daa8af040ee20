"""The quantization settings beside a checkpoint: which of them are known, and those of a layer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from itertools import chain, dropwhile, zip_longest
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import CONFIG, config
from weightctl.schemes import added_schemes
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.weights.info import Header

# Keys of quantization settings in a config.json, and in the config of a text model in it.
SETTINGS_KEYS = ("quantization_config", "quantization", "compression_config")
# Files beside config.json that older tools write instead, and the `quant_method` that they are for.
SETTINGS_FILES = {
    "quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt",
}  # fmt: skip
# Keys of these files, and what transformers calls them in config.json.
_RENAMED = {"w_bit": "bits", "q_group_size": "group_size"}
# MLX's defaults for settings of a single layer.
_MLX_LAYER = {"group_size": 64, "bits": 4}

# Settings whose values are objects with the settings of each module, or of a group of modules.
_BY_MODULE = (
    "config_groups", "dynamic", "extra_config", "quantized_layers", "layer_quant_config",
    "layer_type_quant_config",
)  # fmt: skip
# ComfyUI's formats that need nothing but the scales, and settings that do not change a weight.
_COMFY = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise")
_COMFY_KEYS = ("format", "full_precision_matrix_mult")


def read_settings(header: Header) -> Settings:
    """Return the settings beside the files of a checkpoint."""
    found = Settings(config(header))
    for name in SETTINGS_FILES:
        if not found and (document := read_settings_file(header, name)):
            found = Settings({SETTINGS_KEYS[0]: document}, name)
    return found


def read_settings_file(header: Header, name: str) -> dict[str, Any]:
    """Return the settings in one of `SETTINGS_FILES`, as in a config.json; empty without a file."""
    document = config(header, name)
    inner = document.get("quantization")
    found = {
        _RENAMED.get(key, key): value
        for key, value in (inner if is_object(inner) else document).items()
    }
    return {"quant_method": SETTINGS_FILES[name], **found} if found else {}


def without_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the quantization settings of the model, or of a part of it."""
    return {
        key: without_settings(value) if key.endswith("_config") and is_object(value) else value
        for key, value in document.items()
        if key not in SETTINGS_KEYS
    }


class Settings:
    """The quantization settings of a config.json, which can be untrusted; empty if it has none.

    Models of text and images can have them in the config of the text model. `where` is the name of
    the file.
    """

    def __init__(self, document: Mapping[str, Any], where: str = CONFIG) -> None:
        self.where = where
        self._found: Mapping[str, Any] = {}
        text = document.get("text_config")
        for each in (document, text if is_object(text) else {}):
            for key in SETTINGS_KEYS:
                found = each.get(key)
                if is_object(found) and not self._found:
                    self._found = found
        self._layers: dict[str, str] = {}
        extra = self._found.get("extra_config")
        self._own = {**self._found, **extra} if is_object(extra) else self._found

    def __bool__(self) -> bool:
        return bool(self._found)

    def assign(self, layers: Iterable[str]) -> None:
        """Assign settings of single modules to layers whose names differ only at the beginning.

        MLX writes names of its own modules, such as `language_model.model.layers.0.mlp.up_proj`.
        """
        keys = [key for key in self._found if self._is_of_module(key)]
        if not keys:
            return
        by_last: dict[str, list[str]] = {}
        for layer in dict.fromkeys(layers):
            by_last.setdefault(layer.rpartition(".")[2], []).append(layer)
        for key in keys:
            alike = by_last.get(key.rpartition(".")[2], [])
            if key not in alike and len(found := _find_alike(key, alike)) == 1:
                self._layers[found[0]] = key

    def _is_of_module(self, key: str) -> bool:
        return isinstance(self._found[key], dict | bool) and not _is_known(key)

    def refuse_unknown(self, layers: Iterable[str]) -> tuple[str, ...]:
        """Return notes on settings that are taken for those of another layer.

        Raises `ConversionError` for settings that are not known, because values of weights can
        depend on them. Those of a scheme of an installed package are left to it.
        """
        known = {*layers, *self._layers.values()}
        for path, value in _list_unknown(self._found):
            if path in known and isinstance(value, bool):
                continue
            wrong = path
            if path in known and is_object(value):
                wrong = next((name for name, _ in _list_unknown(value, f"{path}: ")), "")
            is_same = is_object(value) and all(self._found.get(k) == v for k, v in value.items())
            if wrong and not is_same:
                method = self.text("quant_method")
                if method and any(method == line.method for line in added_schemes().values()):
                    return ()
                layer = ", and no layer has this name" if is_object(value) else ""
                raise ConversionError(
                    f"{self.where} has the quantization setting `{wrong}` with the value "
                    f"{_shorten(value)}, which weightctl does not support{layer}: values of "
                    "weights can depend on it",
                    hint="use the unquantized model as input; if the setting does not change "
                    f"values of weights, remove it from {self.where}",
                )
        if not self._layers:
            return ()
        layer, key = next(iter(self._layers.items()))
        count = pluralize(len(self._layers), "module")
        note = (
            f"{self.where} has the quantization settings of {count} under other names than the "
            f"tensors: those of `{key}` are used for `{layer}`"
        )
        return (note,)

    def of(self, layer: str) -> Settings:
        """Return the settings of a layer, which can override the common settings."""
        own = self._own.get(self._layers.get(layer, layer))
        if not is_object(own):
            return self
        made = Settings({}, self.where)
        # Settings without a method are those of MLX.
        usual = {} if "quant_method" in self._found else _MLX_LAYER
        made._found = {**self._found, **usual, **own}  # of this class
        return made

    def value(self, key: str) -> object:
        """Return a setting; None if it is missing."""
        return self._found.get(key)

    def number(self, key: str) -> int:
        """Return a setting that is a positive integer; 0 if it is missing."""
        found = self._found.get(key)
        return found if type(found) is int and found > 0 else 0

    def text(self, key: str) -> str:
        """Return a setting that is a string, in lower case; empty if it is missing."""
        found = self._found.get(key)
        return found.lower() if isinstance(found, str) else ""

    @property
    def bits(self) -> int:
        """The width of integers in all weights; 0 if it is not stated, or differs by a pattern."""
        return 0 if any(self._found.get(key) for key in _BY_MODULE) else self.number("bits")

    def sizes(self, axis: int) -> tuple[int, ...]:
        """Return the block sizes that are stated for an axis, counted from the end: -1 or -2."""
        return tuple(size for size in self._sizes(axis) if type(size) is int and size > 0)

    def _sizes(self, axis: int) -> Iterator[Any]:
        groups = self._found.get("config_groups")
        groups = groups.values() if is_object(groups) else ()
        weights = [group.get("weights") for group in groups if is_object(group)]
        patterns = self._found.get("dynamic")
        patterns = patterns.values() if is_object(patterns) else ()
        for settings in filter(is_object, (self._found, *weights, *patterns)):
            for key in ("weight_block_size", "block_structure"):
                blocks = settings.get(key)
                if is_list(blocks) and len(blocks) == 2:
                    yield blocks[axis]
            if axis == -1:
                yield settings.get("group_size")
                yield settings.get("q_group_size")


def is_plain_comfy(document: object) -> bool:
    """Whether ComfyUI's settings of a weight state values that need nothing but the scales."""
    if not is_object(document) or document.get("format") not in _COMFY:
        return False
    return not any(value for key, value in document.items() if key not in _COMFY_KEYS)


def _find_alike(key: str, layers: Sequence[str]) -> list[str]:
    """Return the layers whose names end like a key; numbers must not be in what differs."""
    found: dict[int, list[str]] = {}
    for layer in layers:
        pairs = [*zip_longest(key.split(".")[::-1], layer.split(".")[::-1])]
        rest = [*dropwhile(lambda pair: pair[0] == pair[1], pairs)]
        if not any(str(each).isdigit() for pair in rest for each in pair):
            found.setdefault(len(pairs) - len(rest), []).append(layer)
    return found[max(found)] if found else []


@cache
def _read_table() -> dict[str, Any]:
    import tomllib  # unquantized models do not need it

    return tomllib.loads(files("weightctl.schemes").joinpath("settings.toml").read_text("utf-8"))


def _is_known(key: str) -> bool:
    return key in (
        *_read_table()["values"],
        *_read_table()["sections"],
        *_BY_MODULE,
    ) or _is_harmless(key)


def _is_harmless(key: str) -> bool:
    patterns = chain.from_iterable(_read_table()["known"].values())
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _list_unknown(settings: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings that are not known, and their values; what is off or empty is harmless."""
    for key, value in settings.items():
        path = below + key
        values = _read_table()["values"]
        allowed = values.get(path, values.get(key))
        if allowed is not None:
            stated = value.lower() if isinstance(value, str) else value
            if value is not None and stated not in allowed:
                yield path, value
        elif not value:
            continue
        elif key in _BY_MODULE and is_object(value):
            for name, each in value.items():
                yield from _list_unknown(each if is_object(each) else {}, f"{path}.{name}.")
        elif key in _read_table()["sections"] and is_object(value):
            yield from _list_unknown(value, f"{path}.")
        elif not _is_harmless(key):
            yield path, value


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
