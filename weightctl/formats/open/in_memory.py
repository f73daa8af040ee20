"""Opening of models in memory: those of transformers, and the adapters of PEFT in them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import weakref
from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import as_dtype
from weightctl.errors import ArgumentTypeError, ConversionError
from weightctl.formats.huggingface import ADAPTER_CONFIG, CONFIG
from weightctl.storage.files import is_directory, list_names, locate_model, open_reader
from weightctl.text.wording import join_names, pluralize
from weightctl.weights.data import Absent, WeightData
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import text
from weightctl.weights.source import Held
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

_MOST_NAMED = 3
_GENERATION = "generation_config.json"
_MERGE = "merge it with PEFT: `model.merge_and_unload()`"
# The beginnings of the names of a tokenizer's files.
_TOKENIZER = (
    "added_tokens", "additional_chat_templates", "chat_template", "merges", "rwkv_vocab",
    "sentencepiece", "special_tokens_map", "spiece", "tekken", "tokenizer", "vocab",
)  # fmt: skip
# PEFT's words in the names of a model's tensors; the name of an adapter follows some of them.
_IN_BASE = re.compile(r"\.(base_layer|original_module)(?=\.)")
_IN_ADAPTER = re.compile(r"\.(?P<kind>lora_[A-Za-z_]+|modules_to_save)\.(?P<adapter>[^.]+)")
_BEFORE_ALL, _EXPERTS = "base_model.model.", ".experts"


class ModelInMemory(NamedTuple):
    """A model in memory: its tree, and the trees of the LoRA adapters to be merged, by name."""

    weights: Checkpoint
    adapters: Mapping[str, Checkpoint]


def is_model(given: object) -> bool:
    """Whether a value is a module of torch with a config, as in transformers and PEFT."""
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(given, torch.nn.Module)
        and hasattr(_unwrap(given), "config")
    )


def open_model(model: object, name: str = "", tokenizer: object = None) -> ModelInMemory:
    """Open a model of transformers or PEFT that is in memory, with the names that it is saved with.

    Tensors are used where they are: they are read, and copied from other devices, in chunks.
    `name` is the name of its directory. `tokenizer` is a tokenizer of transformers, or the path of
    a directory with its files. They are written to a temporary directory together with the config,
    because these files are small and what reads tokenizers reads files; the directory is removed
    with the tree. The weights contain the adapters that PEFT has merged.

    Raises `ConversionError` if tensors have no values in memory or are quantized, and for adapters
    other than LoRA.
    """
    whole = _unwrap(model)
    base = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    state = _read_state(base)
    name = name or os.path.basename(getattr(base.config, "_name_or_path", "")) or "model"
    configs: dict[str, Any] = getattr(whole, "peft_config", None) or {}
    parts: dict[str, dict[str, Any]] = {}
    if configs:
        layers = [each for each in base.modules() if hasattr(each, "merged_adapters")]
        active = _list_active(whole, configs, layers)
        state, parts = _divide(state, active, is_merged=_is_merged(layers))
    restored = _restore_names(base, dict(state))
    adapters: dict[str, Checkpoint] = {}
    for adapter, tensors in parts.items():
        moved = _rename_modules(tensors, _find_moved(state, restored))
        opened = _Model(moved, adapter, "adapter_model.safetensors")
        _write_document(opened, ADAPTER_CONFIG, _describe_adapter(configs[adapter]))
        adapters[adapter] = Checkpoint(opened)
    source = _Model(restored, name, "model.safetensors")
    _write_configs(base, source)
    if tokenizer is not None:
        _write_tokenizer(tokenizer, source.directory)
    return ModelInMemory(Checkpoint(source), adapters)


class _Model(Held):
    """Tensors of torch on any device, in memory, with documents in a temporary directory."""

    def __init__(self, tensors: Mapping[str, Any], name: str, file: str) -> None:
        self._nodes: dict[str, Any] = {}
        aliases: dict[str, str] = {}
        places: dict[object, str] = {}
        # In the order of safetensors files.
        for key in sorted(tensors, key=lambda key: (-tensors[key].element_size(), key)):
            tensor = tensors[key]
            kept = places.setdefault(_locate(tensor), key)
            if kept == key:
                self._nodes[key] = tensor
            else:
                aliases[key] = kept
        # Only descriptions are kept: a copy on the CPU is made for each use.
        super().__init__(
            {
                key: WeightData.of(_describe(key, each), Absent())
                for key, each in self._nodes.items()
            },
            {"format": text("pt")},
        )
        outer = tempfile.mkdtemp(prefix="weightctl-")
        weakref.finalize(self, shutil.rmtree, outer, ignore_errors=True)
        self.directory = os.path.join(outer, name)
        os.mkdir(self.directory)
        # Its size is asked for; the tensors are in memory.
        open(os.path.join(self.directory, file), "wb").close()
        self._header = self._header._replace(
            files=(os.path.join(self.directory, file),), aliases=aliases
        )

    def data(self, name: str) -> WeightData:
        """Return a tensor's data: the model's memory, or a copy of another device's."""
        return WeightData.from_dlpack(self._nodes[name], name)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Copy the tensor's bytes that begin at `start`, and not much more from another device."""
        tensor, width = self._nodes[name], self._header.tensors[name].encoding.size
        first, count = start // width, buffer.nbytes // width
        if not tensor.is_contiguous():
            # Flattening copies; the rows that are needed are copied, and not the whole tensor.
            row = prod(tensor.shape[1:])
            top = first // row
            tensor = tensor[top : -(-(first + count) // row)]
            first -= top * row
        part = tensor.flatten()[first : first + count]
        buffer[:] = WeightData.from_dlpack(part, name).view()


def _locate(tensor: Any) -> object:
    """Return what tied tensors have in common: a place in memory, shape and order."""
    if not tensor.numel():
        return id(tensor)
    place = (tensor.device, tensor.data_ptr(), tensor.dtype)
    return (*place, tuple(tensor.shape), tensor.stride())


def _describe(name: str, tensor: Any) -> TensorInfo:
    return TensorInfo(name, tuple(tensor.shape), as_dtype(tensor.dtype).encoding)


def _unwrap(model: Any) -> Any:
    """Return the model in the wrappers of `torch.compile` and of data parallelism."""
    model = getattr(model, "_orig_mod", model)
    inner = getattr(model, "module", None)
    return inner if hasattr(inner, "config") and not hasattr(model, "config") else model


def _read_state(model: Any) -> dict[str, Any]:
    """Return the tensors of a model; raises `ConversionError` if their values cannot be read."""
    settings = getattr(model.config, "quantization_config", None)
    if settings is not None:
        method = getattr(settings, "quant_method", None) or dict(settings).get("quant_method")
        raise ConversionError(
            f"the model is quantized ({getattr(method, 'value', method)}), so its parameters are "
            "not the values of its weights",
            hint="load it without `quantization_config`, or call `model.dequantize()`; an adapter "
            "that was trained on it can be saved, and merged into the original model: "
            "`weightctl.merge(model, adapter, out)`",
        )
    torch: Any = sys.modules["torch"]
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    plain = (torch.Tensor, torch.nn.Parameter)
    others = [
        f"`{name}` ({type(each).__name__})"
        for name, each in state.items()
        if type(each) not in plain
    ]
    if others:
        raise ConversionError(
            f"{pluralize(len(others), 'tensor')} of the model are not plain tensors of torch, but "
            f"quantized or divided among processes: {join_names(others, _MOST_NAMED)}",
            hint="load the model without quantization, or collect the whole tensors first; "
            "`weightctl convert` reads what `save_pretrained` writes",
        )
    absent = [
        name
        for name, each in state.items()
        if each.device.type == "meta" or hasattr(each, "ds_tensor")
    ]
    if absent:
        raise ConversionError(
            f"the values of {pluralize(len(absent), 'tensor')} are not in memory, but offloaded or "
            f"never loaded: {join_names(absent, _MOST_NAMED)}",
            hint="load the whole model into memory, without `device_map`; `weightctl convert` "
            "reads directories that are larger than memory",
        )
    return {name: each.detach() for name, each in state.items()}


def _restore_names(model: Any, state: dict[str, Any]) -> Mapping[str, Any]:
    """Return tensors as `save_pretrained` does: with the names and shapes of files."""
    for name in (
        *(getattr(model, "_keys_to_ignore_on_save", None) or ()),
        *_list_tied(model, state),
    ):
        state.pop(name, None)
    loading = sys.modules.get("transformers.core_model_loading")  # since version 5
    restore: Any = getattr(loading, "revert_weight_conversion", None)
    if restore is None:
        return state
    with _without_copies():
        restored: Mapping[str, Any] = restore(model, state)
    return restored


def _list_tied(model: Any, state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that transformers does not save, because the model ties them to others."""
    patterns = [
        f"{prefix}.{pattern}" if prefix else pattern
        for prefix, module in model.named_modules()
        for pattern in getattr(module, "_tied_weights_keys", None) or ()
    ]
    groups: dict[object, list[str]] = {}
    for name, tensor in state.items():
        groups.setdefault(_locate(tensor), []).append(name)
    for names in groups.values():
        tied = [name for name in sorted(names) if any(re.search(each, name) for each in patterns)]
        yield from tied[: len(names) - 1]


def _without_copies() -> AbstractContextManager[object]:
    """Return a context in which torch does not copy tensors only to make them contiguous.

    transformers divides the tensors of experts; all parts together are as large as the model.
    """
    torch: Any = sys.modules["torch"]

    def call(_: object, function: Any, __: object, args: Any = (), options: Any = None) -> Any:
        if function is torch.Tensor.contiguous:
            return args[0]
        return function(*args, **(options or {}))

    views: Any = type("_Views", (torch.overrides.TorchFunctionMode,), {"__torch_function__": call})
    context: AbstractContextManager[object] = views()
    return context


def _write_configs(model: Any, source: _Model) -> None:
    """Write the config of a model as `save_pretrained` does; the model's own is not changed."""
    config = deepcopy(model.config)
    config.architectures = [type(model).__name__]
    key = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    setattr(config, key, str(model.dtype).removeprefix("torch."))
    config.to_json_file(os.path.join(source.directory, CONFIG))
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.to_json_file(os.path.join(source.directory, _GENERATION))


def _write_document(source: _Model, name: str, document: Mapping[str, Any]) -> None:
    with open(os.path.join(source.directory, name), "w", encoding="utf-8") as file:
        json.dump(document, file, default=sorted)  # the names of modules are a set


def _write_tokenizer(tokenizer: Any, directory: str) -> None:
    """Write the files of a tokenizer, or copy them from a directory."""
    if callable(getattr(tokenizer, "save_pretrained", None)):
        tokenizer.save_pretrained(directory)
        return
    if not isinstance(tokenizer, str | os.PathLike):
        raise ArgumentTypeError(
            f"{type(tokenizer).__name__} is not a tokenizer",
            hint="use a tokenizer of transformers, or the path of a directory with its files",
        )
    path = locate_model(os.fspath(tokenizer))
    if not _copy_tokenizer(path, directory):
        raise ConversionError(
            f"{path} is not a directory with the files of a tokenizer",
            hint="use a directory that `tokenizer.save_pretrained` wrote, or the tokenizer itself",
        )


def _copy_tokenizer(path: str, directory: str) -> list[str]:
    """Copy the files of a tokenizer, which can be at a URL; return their names."""
    names = [name for name in list_names(path) if name.startswith(_TOKENIZER)]
    for name in names:
        source, target = os.path.join(path, name), os.path.join(directory, name)
        if is_directory(source):
            shutil.copytree(source, target)
            continue
        file = open_reader(source)
        with open(target, "wb") as copy:
            copy.write(file.read(0, file.size))
        file.close()
    return names


# Adapters of PEFT.


def _list_active(whole: Any, configs: Mapping[str, Any], layers: Sequence[Any]) -> list[str]:
    """Return the names of active adapters; raises `ConversionError` if they are not LoRA.

    `layers` are those with adapters.
    """
    if layers and all(layer.disable_adapters for layer in layers):
        if _is_merged(layers):
            raise ConversionError(
                "adapters are merged, and disabled, so the weights are not those of the model",
                hint="call `model.unmerge_adapter()` first",
            )
        return []
    # Prompts of PEFT are not layers of the model, and a model can be given without its `PeftModel`.
    of_model: list[str] = whole.active_adapters if hasattr(whole, "get_base_model") else []
    of_layers: list[str] = [name for layer in layers for name in layer.active_adapters]
    names = [name for name in dict.fromkeys([*of_model, *of_layers]) if name in configs]
    for name in names:
        kind = getattr(configs[name].peft_type, "value", configs[name].peft_type)
        if kind != "LORA":
            raise ConversionError(
                f"the adapter `{name}` has the type {kind}, and only LoRA adapters are supported",
                hint=_MERGE,
            )
        if getattr(configs[name], "trainable_token_indices", None):
            raise ConversionError(
                f"the adapter `{name}` has trained embeddings of single tokens "
                "(`trainable_token_indices`), which are not supported",
                hint=_MERGE,
            )
    return names


def _is_merged(layers: Sequence[Any]) -> bool:
    """Whether PEFT has merged all adapters into the weights; raises `ConversionError` for some."""
    merged = [bool(layer.merged_adapters) for layer in layers if hasattr(layer, "lora_A")]
    if any(merged) and not all(merged):
        raise ConversionError(
            "adapters are merged into some layers of the model, and not into others",
            hint="call `model.merge_adapter()` or `model.unmerge_adapter()` first",
        )
    return any(merged)


def _divide(
    state: Mapping[str, Any], active: Sequence[str], *, is_merged: bool
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the tensors of a model without adapters, and those of each adapter by its name.

    Modules that an active adapter replaces are in the model.
    """
    base: dict[str, Any] = {}
    replaced: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, tensor in state.items():
        found = _IN_ADAPTER.search(name)
        if found is None:
            base[_IN_BASE.sub("", name)] = tensor
        elif found["adapter"] not in active:
            continue
        elif found["kind"] == "modules_to_save":
            replaced[_IN_BASE.sub("", name[: found.start()] + name[found.end() :])] = tensor
        elif not is_merged:
            saved = name[: found.start("adapter") - 1] + name[found.end() :]
            parts.setdefault(found["adapter"], {})[_BEFORE_ALL + saved] = tensor
    return base | replaced, parts


def _describe_adapter(settings: Any) -> dict[str, Any]:
    """Return the content of adapter_config.json.

    The initialization is left out: where it changes the weights of the model, these have changed.
    """
    return {**settings.to_dict(), "init_lora_weights": True}


def _find_moved(state: Mapping[str, Any], restored: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules that have other names in files, by their names in the model."""
    places = {_start(tensor): name for name, tensor in restored.items()}
    moved: dict[str, str] = {}
    for name, tensor in state.items():
        saved = places.get(_start(tensor), name)
        module, _, last = name.rpartition(".")
        if saved.endswith(f".{last}"):
            moved[module] = saved.removesuffix(f".{last}")
        elif module.endswith(_EXPERTS) and _EXPERTS in saved:
            # The first part of a tensor of all experts, which files have in parts.
            moved[module] = saved[: saved.rindex(_EXPERTS) + len(_EXPERTS)]
    return moved


def _start(tensor: Any) -> object:
    return (tensor.device, tensor.data_ptr()) if tensor.numel() else id(tensor)


def _rename_modules(tensors: Mapping[str, Any], moved: Mapping[str, str]) -> dict[str, Any]:
    """Return the tensors of an adapter with the names that files have for its modules."""
    renamed: dict[str, Any] = {}
    for name, tensor in tensors.items():
        stem, of_pair, rest = name.removeprefix(_BEFORE_ALL).partition(".lora_")
        module = _IN_BASE.sub("", f"{stem}.").removesuffix(".")
        inner = stem.removeprefix(module)
        renamed[f"{_BEFORE_ALL}{moved.get(module, module)}{inner}{of_pair}{rest}"] = tensor
    return renamed
