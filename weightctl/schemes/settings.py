"""The quantization settings beside a checkpoint: which of them are known, and those of a layer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import CONFIG, config
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "SETTINGS_FILES",
    "SETTINGS_KEYS",
    "Settings",
    "is_plain_comfy",
    "read_settings",
    "read_settings_file",
    "without_settings",
]

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

# ComfyUI's formats that need nothing but the scales, and settings that do not change a weight.
_COMFY = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise")
_COMFY_KEYS = ("format", "full_precision_matrix_mult")

# The values that are known, by setting; those of other settings below are not restricted.
_VALUES: dict[str, tuple[object, ...]] = {
    "quant_method": (
        "auto-round", "auto_round", "autoround", "intel/auto-round", "awq", "gptq", "autoawq",
        "autogptq", "bitnet", "bitsandbytes", "compressed-tensors", "exl2", "exl3", "fbgemm_fp8",
        "fp8", "finegrained_fp8", "hqq", "llm-compressor", "mlx", "modelopt", "modelopt_fp4",
        "modelopt_fp8", "modelopt_mixed", "mxfp4", "mxfp8", "nvfp4", "quanto", "quark", "torchao",
    ),
    "zero_point": (True,),
    "pack_dtype": ("int32", "torch.int32"),
    "sparsity_config.format": ("dense",),
    "format": (
        "dense", "pack-quantized", "int-quantized", "naive-quantized", "float-quantized",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized",
        "mxfp8-pack-quantized", "mixed-precision", "gptq", "gptq_v2", "gemm", "gemv", "gemv_fast",
    ),
}  # fmt: skip
# Settings that are used, that tensors state as well, or that change only how scales were found, the
# activations, the cache, or how a library computes. Patterns are as in `fnmatch`.
_KNOWN = (
    # Used here.
    "bits", "group_size", "q_group_size", "weight_block_size", "block_structure", "sym", "desc_act",
    "checkpoint_format", "packing_format", "linear_class", "quantization_mode",
    # Stated by tensors as well.
    "num_bits", "type", "symmetric", "strategy", "actorder", "scale_dtype", "zp_dtype", "mode",
    "bnb_4bit_*", "*load_in_4bit", "*load_in_8bit", "llm_int8_*", "dtype", "qscheme", "ch_axis",
    "is_scale_quant", "scale_format", "scale_calculation_mode", "mx_element_dtype", "block_size",
    "scale_type", "quant_algo", "has_zero_point", "pre_quant_scale", "awq_block_size", "fmt",
    "scale_fmt", "expert_dtype", "data_type", "super_bits", "super_group_size", "weights", "nbits",
    "axis", "view_as_float", "quant_type", "quant_config", "w_bit", "head_bits", "out_scales",
    "is_mx", "quantization_status",
    # The modules that are quantized.
    "targets", "ignore", "ignored_layers", "modules_to_*", "modules_in_*", "exclude*", "lm_head",
    "quant_lm_head", "*skip_modules", "block_name_to_quantize", "*quant_block_*", "supported_types",
    "include_input_output_embeddings", "untie_embedding_weights", "module_name_preceding_*",
    # How scales were found.
    "observer*", "global_compression_ratio", "global_sparsity", "sparsity_structure", "meta",
    "damp_*", "true_sequential", "static_groups", "dataset", "tokenizer", "model_name_or_path",
    "model_file_base_name", "mse", "act_group_aware", "hyb_act", "cache_block_outputs", "iters",
    "lr", "minmax_lr", "lr_scheduler", "momentum", "nsamples", "seqlen", "enable_*", "disable_*",
    "amp", "low_gpu_mem_usage", "low_cpu_mem_usage", "gradient_accumulate_steps", "batch_size",
    "*_version", "version", "producer", "calibration", "model_free", "regex_config", "rows",
    "min_kv_scale", "pack_method", "weight_format", "weight_merge_groups", "round_method",
    "quant_mode", "target_device", "is_dynamic", "timestamp",
    # Activations and the cache.
    "dynamic", "activation*", "act_*", "input_*", "output_*", "kv_cache_*", "static_*_dtype",
    "softmax_quant_spec",
    # How a library computes.
    "backend", "dequantize", "run_compressed", "use_*exllama*", "exllama_config", "model_seqlen",
    "pad_token_id", "fuse_max_seq_len", "do_fuse", "modules_to_fuse", "use_cuda_fp16",
    "max_input_length", "use_optimized_inference", "offload_*", "pack_impl",
    "quant_type_kwargs", "rms_norm_eps", "packed_modules_*",
)  # fmt: skip
# Settings whose values are objects with further settings, of the model or of each module.
_SECTIONS = ("quantization", "sparsity_config", "global_quant_config", "weight", "export")
_BY_MODULE = (
    "config_groups", "dynamic", "extra_config", "quantized_layers", "layer_quant_config",
    "layer_type_quant_config",
)  # fmt: skip


def read_settings(files: Sequence[str]) -> Settings:
    """Return the settings beside the files of a checkpoint."""
    found = Settings(config(files))
    for name in SETTINGS_FILES:
        if not found and (document := read_settings_file(files, name)):
            found = Settings({SETTINGS_KEYS[0]: document}, name)
    return found


def read_settings_file(files: Sequence[str], name: str) -> dict[str, Any]:
    """Return the settings in one of `SETTINGS_FILES`, as in a config.json; empty without a file."""
    document = config(files, name)
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
        value = self._found[key]
        return not _is_known(key) and (is_object(value) or isinstance(value, bool))

    def refuse_unknown(self, layers: Iterable[str]) -> tuple[str, ...]:
        """Return notes on settings that are taken for those of another layer.

        Raises `ConversionError` for settings that are not known, because values of weights can
        depend on them.
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
    ends = key.split(".")[::-1]
    found: dict[int, list[str]] = {}
    for layer in layers:
        other = layer.split(".")[::-1]
        count = next(
            (at for at, pair in enumerate(zip(ends, other, strict=False)) if pair[0] != pair[1]),
            min(len(ends), len(other)),
        )
        if not any(map(str.isdigit, (*ends[count:], *other[count:]))):
            found.setdefault(count, []).append(layer)
    return found[max(found)] if found else []


def _is_known(key: str) -> bool:
    return key in _VALUES or key in _SECTIONS or key in _BY_MODULE or _is_harmless(key)


def _is_harmless(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in _KNOWN)


def _list_unknown(settings: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings that are not known, and their values; what is off or empty is harmless."""
    for key, value in settings.items():
        path = below + key
        allowed = _VALUES.get(path, _VALUES.get(key))
        if allowed is not None:
            stated = value.lower() if isinstance(value, str) else value
            if value is not None and stated not in allowed:
                yield path, value
        elif not value:
            continue
        elif key in _BY_MODULE and is_object(value):
            for name, each in value.items():
                yield from _list_unknown(each if is_object(each) else {}, f"{path}.{name}.")
        elif (key in _SECTIONS or key == "weights") and is_object(value):
            yield from _list_unknown(value, f"{path}.")
        elif not _is_harmless(key):
            yield path, value


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
