"""Faults that ruin a model and leave its files sound, each as the mistake of a tool makes it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from arrays import rope_rows
from weightctl import Plan, WeightData, open_weights
from weightctl.families import recognize
from weightctl.families.steps import half_split_order
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel

    Array = np.ndarray[Any, Any]
    Hurt = Callable[["Files"], tuple[str, ...]]

# A checkpoint whose tensors and config are changed on the way to another file.

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass
class Files:
    """A model's directory or GGUF file, in memory: what is put here is what is written.

    Tensors are asked for by the names of our modules; `where` returns the checkpoint's own.
    """

    source: Path
    model: RecognizedModel
    tensors: dict[str, WeightData]
    metadata: dict[str, MetadataValue]
    config: dict[str, Any]

    @property
    def is_gguf(self) -> bool:
        return self.model.convention == "gguf"

    @property
    def ours(self) -> Any:
        """The config as our modules read it."""
        return self.model.config

    def where(self, module: str) -> str:
        """Return what the checkpoint calls a tensor."""
        names = {each.module: each for each in self.model.family.tensors(self.model.config)}
        name = names[module].name(self.model.convention)
        # Of BERT, checkpoints leave the prefix out.
        plain = name or ""
        return plain if plain in self.tensors else plain.removeprefix(self.model.family.prefix)

    def has(self, module: str) -> bool:
        return any(each.module == module for each in self.model.family.tensors(self.model.config))

    def modules(self, prefix: str) -> list[str]:
        names = self.model.family.tensors(self.model.config)
        return [each.module for each in names if each.module.startswith(prefix)]

    def numbers(self, module: str) -> NDArray[Any]:
        """Return a copy of a tensor's numbers in its own dtype; of blocks, their bytes by rows."""
        return self.tensors[self.where(module)].to_buffer().to_numpy().copy()

    def put(self, module: str, array: NDArray[Any]) -> str:
        """Put other numbers, or blocks, in a tensor's place; return what it is called."""
        name = self.where(module)
        old = self.tensors[name]
        new = WeightData.from_numpy(array.astype(old.to_buffer().to_numpy().dtype), name)
        if old.quantization_encoding is not None:
            new = WeightData.of(old.info, new.data)
        self.tensors[name] = new
        return name

    def exchange(self, one: str, other: str) -> tuple[str, str]:
        """Give two tensors each other's numbers."""
        first, second = self.numbers(one), self.numbers(other)
        return self.put(one, second), self.put(other, first)

    def drop(self, module: str) -> str:
        name = self.where(module)
        del self.tensors[name]
        return name

    def stated(self, *names: str) -> dict[str, Any]:
        """Return what the config says, by those keys of these that it has.

        GGUF's are without the architecture.
        """
        if self.is_gguf:
            family = self.model.family.gguf_name
            keys = [f"{family}.{name}" for name in names]
            return {key: self.metadata[key].content for key in keys if key in self.metadata}
        stated = (self.config.get("rope_parameters") or {}) | self.config
        return {name: stated[name] for name in names if name in stated}

    def say(self, key: str, value: float) -> str:
        """Let the config say another value; return the key. In GGUF it has its type already."""
        if self.is_gguf:
            old = self.metadata[key]
            self.metadata[key] = MetadataValue(old.type, type(old.content)(value))
            return key
        for place in (self.config, self.config.get("rope_parameters")):
            if place is not None and key in place:
                place[key] = type(place[key])(value)
        return key

    def write(self, out: Path) -> Path:
        """Write the checkpoint, with all that lies beside it, where there is nothing yet."""
        if self.is_gguf:
            save(Plan.copy(as_checkpoint(self.tensors, self.metadata), "gguf"), out)
            return out
        out.mkdir()
        for beside in self.source.iterdir():
            if beside.name not in {WEIGHTS, CONFIG}:
                shutil.copy(beside, out)
        (out / CONFIG).write_text(json.dumps(self.config))
        tree = as_checkpoint(self.tensors, self.metadata)
        save(Plan.copy(tree, "safetensors"), out / WEIGHTS)
        return out


def read(source: Path) -> Files:
    weights = open_weights(source)
    is_directory = source.is_dir()
    return Files(
        source=source,
        model=recognize(weights),
        tensors={name: node.data() for name, node in weights.items()},
        metadata=dict(weights.metadata),
        config=json.loads((source / CONFIG).read_text()) if is_directory else {},
    )


# Faults that ruin a model and leave a file that is sound: each as a tool's mistake makes it.
# What a fault changes is told, so that a test can say whether what names it names the right thing.

LAYER, OTHER = 1, 0


class Injected(NamedTuple):
    """A checkpoint with a fault: what names it, and what caused it where that is to be told.

    `where` are tensors and keys as the checkpoint calls them; naming one of them is enough.
    `layer` is the block that is hurt first, None where it is of none or all are.
    """

    path: Path
    where: tuple[str, ...]
    cause: str | None = None
    layer: int | None = LAYER


class Fault(NamedTuple):
    """How a checkpoint is hurt: `hurt` returns what it changed."""

    hurt: Callable[[Files], tuple[str, ...]]
    cause: str | None = None
    layer: int | None = LAYER


def of(part: str, layer: int = LAYER) -> str:
    return f"layers.{layer}.{part}"


def _in_other_order(files: Files, part: str, layer: int) -> str:
    ours: Any = files.ours
    module = of(f"attention.{part}.weight", layer)
    heads = ours.heads if part == "q" else ours.kv_heads
    rows = files.numbers(module)
    if files.is_gguf:
        return files.put(module, rows[list(half_split_order(heads, ours.head_dim))])
    return files.put(module, rope_rows(rows, heads))


def _permuted(parts: str, layers: Callable[[Any], range]) -> Callable[[Files], tuple[str, ...]]:
    def hurt(files: Files) -> tuple[str, ...]:
        return tuple(
            _in_other_order(files, part, layer) for layer in layers(files.ours) for part in parts
        )

    return hurt


def _one(_: Any) -> range:
    return range(LAYER, LAYER + 1)


def _all(ours: Any) -> range:
    return range(ours.layers)


def _gate_and_up(files: Files) -> tuple[str, ...]:
    return files.exchange(of("mlp.gate.weight"), of("mlp.up.weight"))


def _key_and_value(files: Files) -> tuple[str, ...]:
    if not files.has(of("attention.qkv.weight")):
        kinds = [kind for kind in ("weight", "bias") if files.has(of(f"attention.k.{kind}"))]
        return tuple(
            name
            for kind in kinds
            for name in files.exchange(of(f"attention.k.{kind}"), of(f"attention.v.{kind}"))
        )
    return tuple(
        files.put(module, _last_thirds_exchanged(files.numbers(module), files.is_gguf))
        for module in (of("attention.qkv.weight"), of("attention.qkv.bias"))
    )


def _last_thirds_exchanged(array: NDArray[Any], is_gguf: bool) -> NDArray[Any]:
    along = 0 if is_gguf else -1
    query, key, value = np.split(array, 3, along)
    return np.concatenate((query, value, key), along)


def _square(files: Files) -> tuple[str, ...]:
    module = of("attention.o.weight")
    return (files.put(module, np.ascontiguousarray(files.numbers(module).T)),)


def _layers(files: Files) -> tuple[str, ...]:
    parts = [module.partition(".1.")[2] for module in files.modules(f"layers.{LAYER}.")]
    return tuple(
        name for part in parts for name in files.exchange(of(part, OTHER), of(part, LAYER))
    )


def _zeroed(files: Files) -> tuple[str, ...]:
    module = of("mlp.down.weight")
    return (files.put(module, np.zeros_like(files.numbers(module))),)


def _row_lost(files: Files) -> tuple[str, ...]:
    rows = files.numbers("embedding.weight")
    rows[len(rows) // 3] = 0
    return (files.put("embedding.weight", rows),)


def _less_one(files: Files) -> tuple[str, ...]:
    module = of("attention_norm.weight")
    return (files.put(module, files.numbers(module) - 1),)


def _times(factor: float, *names: str) -> Callable[[Files], tuple[str, ...]]:
    """Return the fault of a config in which a value is another; `names` are by convention."""

    def hurt(files: Files) -> tuple[str, ...]:
        stated = files.stated(*names)
        return tuple(files.say(key, value * factor) for key, value in stated.items())

    return hurt


def _heads(files: Files) -> tuple[str, ...]:
    """Make heads fewer and wider, so that every shape still fits."""
    ours: Any = files.ours
    by = next(by for by in (2, 3) if getattr(ours, "kv_heads", ours.heads) % by == 0)
    counts = files.stated(
        "attention.head_count", "attention.head_count_kv",
        "num_attention_heads", "n_head", "num_key_value_heads",
    )  # fmt: skip
    widths = files.stated(
        "attention.key_length", "attention.value_length", "rope.dimension_count", "head_dim"
    )
    for key, value in widths.items():
        files.say(key, value * by)
    return tuple(files.say(key, value // by) for key, value in counts.items())


def _more_kv_heads(files: Files) -> tuple[str, ...]:
    ours: Any = files.ours
    keys = files.stated("attention.head_count_kv", "num_key_value_heads")
    return tuple(files.say(key, ours.heads) for key in keys)


def _bias_dropped(files: Files) -> tuple[str, ...]:
    return (files.drop(of("mlp.up.bias")),)


def _output_forgotten(files: Files) -> tuple[str, ...]:
    return (files.drop("output.weight"),)


FAULTS = {
    "q permuted": Fault(_permuted("q", _one), "rope_rows"),
    "k permuted": Fault(_permuted("k", _one), "rope_rows"),
    "q and k permuted everywhere": Fault(_permuted("qk", _all), "rope_rows", 0),
    "gate and up swapped": Fault(_gate_and_up, "gate_and_up_swapped"),
    "k and v swapped": Fault(_key_and_value, "key_and_value_swapped"),
    "square transposed": Fault(_square, "transposed"),
    "layers exchanged": Fault(_layers, "layers_exchanged", OTHER),
    "zeroed": Fault(_zeroed, "zeroed"),
    "row lost": Fault(_row_lost, "rows_lost", None),
    "norm off by one": Fault(_less_one, "norm_offset"),
    "rope theta": Fault(_times(10, "rope.freq_base", "rope_theta"), "config", 0),
    "norm eps": Fault(
        _times(
            10,
            *("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
            *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
        ),
        "config",
        0,
    ),
    "head count": Fault(_heads, "config", 0),
    "kv heads contradict": Fault(_more_kv_heads, "config", None),
    "bias dropped": Fault(_bias_dropped, "bias_dropped"),
    "output forgotten": Fault(_output_forgotten, "output_forgotten", None),
}
# Those that a model can have.
LLAMA = [fault for fault in FAULTS if fault not in {"bias dropped", "output forgotten"}]
BIASED = [
    "k and v swapped", "square transposed", "layers exchanged", "zeroed", "row lost",
    "norm off by one", "norm eps", "head count", "bias dropped",
]  # fmt: skip
APPLY = {
    "tiny-llama": [*LLAMA, "output forgotten"],
    "smollm2": LLAMA,
    "gpt2": BIASED,
    "bert": BIASED,
}


def inject(source: Path, out: Path, fault: str) -> Injected:
    """Write a copy of a checkpoint that has a fault."""
    files = read(source)
    hurt, cause, layer = FAULTS[fault]
    where = hurt(files)
    assert where, "the fault changed nothing"
    return Injected(files.write(out), where, cause, layer)


# Mistakes in single tensors, or in tensors that belong together: each as a tool makes it.
# A mistake is made to a checkpoint in memory, and returns what the checkpoint calls what it
# changed.

RANK, LIMIT, ROLL = 4, 1.5, 5


class Mistake(NamedTuple):
    """What is done to a checkpoint, the cause that is to be named, and words of its sentence."""

    hurt: Hurt
    cause: str
    text: str


def changed(module: str, change: Callable[[Array], Array]) -> Hurt:
    """Return the mistake that changes the numbers of one tensor."""
    return lambda files: (files.put(module, change(files.numbers(module))),)


def swapped_rows(array: Array, one: int, other: int, size: int) -> Array:
    """Exchange two blocks of so many rows."""
    blocks = array.reshape(-1, size, *array.shape[1:]).copy()
    blocks[[one, other]] = blocks[[other, one]]
    return blocks.reshape(array.shape)


def query_heads(files: Files) -> tuple[str, ...]:
    module, ours = of("attention.q.weight"), files.ours
    size = len(files.numbers(module)) // ours.heads
    return changed(module, lambda rows: swapped_rows(rows, 1, 3, size))(files)


def heads_of_outputs(files: Files) -> tuple[str, ...]:
    module, ours = of("attention.o.weight"), files.ours
    size = files.numbers(module).shape[1] // ours.heads
    return changed(module, lambda rows: swapped_rows(rows.T, 0, 2, size).T)(files)


def norms(files: Files) -> tuple[str, ...]:
    return files.exchange(of("attention_norm.weight"), of("mlp_norm.weight"))


def norm_copied(files: Files) -> tuple[str, ...]:
    return (files.put(of("mlp_norm.weight"), files.numbers(of("attention_norm.weight"))),)


def low_rank(array: Array) -> Array:
    """Add what an adapter makes: a product of two narrow matrices."""
    random = np.random.default_rng(4)
    rows, columns = array.shape
    numbers = array.astype(np.float32)
    change = random.normal(size=(rows, RANK)) @ random.normal(size=(RANK, columns))
    return numbers + change * numbers.std() / RANK


def clipped(array: Array) -> Array:
    numbers = array.astype(np.float32)
    limit = LIMIT * numbers.std()
    return np.clip(numbers, -limit, limit)


def interleaved(files: Files) -> tuple[str, ...]:
    gate, up = of("mlp.gate.weight"), of("mlp.up.weight")
    both = np.stack([files.numbers(gate), files.numbers(up)], 1)
    return _halves(files, both.reshape(-1, both.shape[-1]))


def taken_apart(files: Files) -> tuple[str, ...]:
    both = np.concatenate([files.numbers(of(f"mlp.{part}.weight")) for part in ("gate", "up")])
    return _halves(files, np.concatenate([both[::2], both[1::2]]))


def _halves(files: Files, both: Array) -> tuple[str, ...]:
    gate, up = np.split(both, 2)
    return files.put(of("mlp.gate.weight"), gate), files.put(of("mlp.up.weight"), up)


MISTAKES = {
    "query heads swapped": Mistake(query_heads, "heads_exchanged", "query heads 1 and 3"),
    "heads of outputs swapped": Mistake(heads_of_outputs, "heads_exchanged", "heads 0 and 2"),
    "norms swapped": Mistake(norms, "norms_exchanged", "are swapped"),
    "norm copied": Mistake(norm_copied, "norms_exchanged", "is a copy of"),
    "columns rolled": Mistake(changed(of("mlp.down.weight"), lambda rows: np.roll(rows, ROLL, 1)),
                              "rolled", f"columns are rotated by {ROLL} of"),
    "rows rolled": Mistake(changed(of("mlp.up.weight"), lambda rows: np.roll(rows, ROLL, 0)),
                           "rolled", f"rows are rotated by {ROLL} of"),
    "columns reversed": Mistake(changed(of("mlp.down.weight"), lambda rows: rows[:, ::-1]),
                                "permuted", "columns are in another order"),
    "two rows swapped": Mistake(
        changed("embedding.weight", lambda rows: swapped_rows(rows, 40, 45, 1)), "permuted",
        "rows 40 and 45 are swapped",
    ),
    "adapter": Mistake(changed(of("attention.v.weight"), low_rank), "low_rank", f"rank {RANK} "),
    "clipped": Mistake(changed(of("mlp.gate.weight"), clipped), "clipped", "clipped to ±"),
    "bytes swapped": Mistake(changed(of("mlp.up.weight"), lambda rows: rows.byteswap()),
                             "byte_order", "byte order"),
    "interleaved": Mistake(interleaved, "gate_and_up_interleaved", "are interleaved"),
    "separated": Mistake(taken_apart, "gate_and_up_interleaved", "separated"),
}  # fmt: skip


def units_permuted(files: Files, layer: int, *, with_down: bool = True) -> tuple[str, ...]:
    """Give an MLP's inner units another order, which its other side may or may not have too."""
    prefix = of("mlp.", layer)
    first = files.numbers(f"{prefix}gate.weight")
    order = np.random.default_rng(5).permutation(len(first))
    names = [
        files.put(f"{prefix}{part}.weight", files.numbers(f"{prefix}{part}.weight")[order])
        for part in ("gate", "up")
    ]
    if with_down:
        down = f"{prefix}down.weight"
        names.append(files.put(down, files.numbers(down)[:, order]))
    return tuple(names)


def heads_permuted(files: Files, layer: int, *, with_outputs: bool = True) -> tuple[str, ...]:
    """Swap two KV heads with their query heads, in what comes after them too or not."""
    ours = files.ours
    shared = ours.heads // ours.kv_heads
    names: list[str] = []
    for part, size in (("q", shared), ("k", 1), ("v", 1)):
        module = of(f"attention.{part}.weight", layer)
        rows = files.numbers(module)
        names.append(files.put(module, swapped_rows(rows, 0, 1, size * ours.head_dim)))
    if with_outputs:
        module = of("attention.o.weight", layer)
        rows = files.numbers(module)
        turned = swapped_rows(rows.T, 0, 1, shared * ours.head_dim).T
        names.append(files.put(module, turned))
    return tuple(names)


# Makers of faults in a part or a key of a model that is sound otherwise.


def _swap_two(rows: Array) -> Array:
    return swapped_rows(rows, 0, 1, 1)


def _reverse_rows(rows: Array) -> Array:
    return rows[:, ::-1].copy()


def _logarithms(rates: Array) -> Array:
    return np.log(-rates)


class BlockFault(NamedTuple):
    """What is done, and the cause that is to be named; None where no cause explains it."""

    hurt: Hurt
    cause: str | None


def change_part(part: str, cause: str | None, change: Callable[[Array], Array]) -> BlockFault:
    """Return the fault that changes the numbers of a part of the second layer, or of the model."""
    return BlockFault(changed(_module(part), change), cause)


def _module(part: str) -> str:
    """Return the tensor of a part of the second layer, or of the model; a weight if not a bias."""
    name = part if part.endswith((".weight", ".bias")) else f"{part}.weight"
    return name if name in _OF_MODEL else of(name)


_OF_MODEL = {
    "decoder_bias.weight", "embedding.weight", "encoder_bias.weight",
    "layer_inputs.embedding.weight", "layer_inputs.norm.weight", "position_embedding.weight",
    "stream_output.projection.weight",
    "token_type_embedding.weight",
}  # fmt: skip


def swap_heads(part: str, heads: str) -> BlockFault:
    def hurt(files: Files) -> tuple[str, ...]:
        module = of(f"attention.{part}.weight")
        rows = files.numbers(module)
        size = len(rows) // getattr(files.ours, heads)
        return changed(module, lambda rows: swapped_rows(rows, 0, 1, size))(files)

    return BlockFault(hurt, "heads_exchanged")


def exchange_parts(one: str, other: str, cause: str | None = None) -> BlockFault:
    return BlockFault(lambda files: files.exchange(_module(one), _module(other)), cause)


def drop_part(part: str, cause: str | None = None) -> BlockFault:
    return BlockFault(lambda files: (files.drop(_module(part)),), cause)


def change_key(name: str, change: Callable[[Any], Any]) -> BlockFault:
    """Return the fault of a key of the metadata that has another value."""

    def hurt(files: Files) -> tuple[str, ...]:
        key = f"{files.model.family.gguf_name}.{name}"
        old = files.metadata[key]
        files.metadata[key] = MetadataValue(old.type, change(old.content))
        return (key,)

    return BlockFault(hurt, "config")


def change_layer_key(key: str, added: float) -> BlockFault:
    """Return the fault of a key with a value for each layer, of which the second is larger."""

    def hurt(files: Files) -> tuple[str, ...]:
        old = files.metadata[key]
        values = list(old.content)
        values[1] += added
        files.metadata[key] = MetadataValue(old.type, values)
        return (key,)

    return BlockFault(hurt, "config")


def add_one(part: str) -> BlockFault:
    return change_part(part, "norm_offset", lambda weight: weight + 1)


def zero_part(part: str) -> BlockFault:
    return change_part(part, "zeroed", np.zeros_like)


def negate_part(part: str) -> BlockFault:
    return change_part(part, "scaled", np.negative)


def times(factor: float) -> Callable[[Any], Any]:
    return lambda value: type(value)(value * factor)


def opposite(value: bool) -> bool:
    return not value


# Faults of hyper-connections, and of attention to compressed keys.

_STREAMS = 4


def _between_transposed(rows: Array) -> Array:
    """Exchange the rows and columns of the weights between streams, which follow the others."""
    before, between = np.split(rows, [2 * _STREAMS])
    square = between.reshape(_STREAMS, _STREAMS, -1).swapaxes(0, 1)
    return np.concatenate([before, square.reshape(between.shape)])


def _halves_swapped(rows: Array) -> Array:
    return np.roll(rows, len(rows) // 2, 0)


_HYPER_CONNECTIONS = {
    "weights between streams transposed": change_part("attention_streams.projection",
        "permuted", _between_transposed),
    "weights of streams zero": zero_part("mlp_streams.projection"),
    "offsets of streams negated": negate_part("attention_streams.offsets"),
    "scales of two kinds swapped": change_part("attention_streams.scales", None, _swap_two),
    "offsets missing": drop_part("mlp_streams.offsets"),
    "streams of attention and MLP swapped": exchange_parts("attention_streams.projection",
        "mlp_streams.projection"),
    "output of streams negated": negate_part("stream_output.projection"),
    "steps of the normalization": change_key("hyper_connection.sinkhorn_iterations",
        lambda count: count - 18),
}  # fmt: skip
_COMPRESSED_ATTENTION = {
    "vectors of a compressed key swapped": change_part("attention.compressor.kv", "rolled",
        _halves_swapped),
    "gates of the compressor zero": zero_part("attention.compressor.gate"),
    "places in a compressed key reversed": change_part("attention.compressor.places",
        "permuted", lambda rows: rows[::-1].copy()),
    "norm of compressed keys with 1 added": add_one("attention.compressor.norm"),
    "compressor missing": drop_part("attention.compressor.kv"),
    "keys of the indexer zero": zero_part("attention.indexer.compressor.kv"),
    "outputs of two groups swapped": change_part("attention.o_a", "rolled", _halves_swapped),
    "table of experts one token too far": BlockFault(
        changed(of("mlp.table.weight", 0), lambda rows: np.roll(rows, 1, 0)), "shifted"
    ),
    "RoPE base of compressed keys": change_key("attention.compress_rope_freq_base",
        lambda base: base / 10),
    "keys that are used": change_key("attention.indexer.top_k", lambda count: count // 2),
}  # fmt: skip
# By the kind of block: a case of a family that has it, and the faults.
COMPRESSED_KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "hyper-connections": ("deepseek_v4", _HYPER_CONNECTIONS),
    "compressed attention": ("deepseek_v4", _COMPRESSED_ATTENTION),
}


# Faults of gated delta nets and Kimi delta attention, and of the attention beside them.

_ATTENDED = 2  # the layer with attention


def _swap_projections(files: Files) -> tuple[str, ...]:
    return files.exchange(of("delta.beta.weight"), of("delta.alpha.weight"))


def _part_gates(rows: Array) -> Array:
    return rows.reshape(4, 2, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)


DELTA_NET = {
    "gate of the net zero": zero_part("delta.gate"),
    "offsets zero": zero_part("delta.offsets"),
    "offsets negated": negate_part("delta.offsets"),
    "rates as Hugging Face has them": change_part("delta.rates", None, _logarithms),
    "norm of the net with 1 added": add_one("delta.norm"),
    "weights of the convolution in reverse": change_part("delta.kernel", "permuted", _reverse_rows),
    "channels of the convolution rolled": change_part("delta.kernel", "permuted",
        lambda rows: np.roll(rows, 3, 0)),
    "beta and alpha swapped": BlockFault(_swap_projections, None),
    "heads in Hugging Face's order": change_part("delta.gate", "permuted",
        lambda rows: swapped_rows(rows, 1, 2, len(rows) // 4)),
    "queries and gates apart": BlockFault(changed(of("attention.q.weight", _ATTENDED), _part_gates),
        None),
    "rotated dimensions": change_key("rope.dimension_count", lambda size: size * 2),
}  # fmt: skip
KIMI_DELTA = {
    "gate zero": zero_part("delta.gate_b"),
    "offsets zero": zero_part("delta.offsets"),
    "norm of the heads with 1 added": add_one("delta.norm"),
    "weights of the convolution in reverse": change_part("delta.k_kernel", None,
        lambda channels: channels[..., ::-1]),
    "two heads swapped": change_part("delta.q", "permuted",
                                     lambda rows: swapped_rows(rows, 0, 1, len(rows) // 4)),
    "decays transposed": change_part("delta.decay_b", None,
                                     lambda rows: rows.T.reshape(rows.shape)),
    "rates as Hugging Face has them": change_part("delta.rates", None, _logarithms),
    "values of latent vectors zero": BlockFault(
        changed(of("attention.v_b.weight", _ATTENDED), np.zeros_like), "zeroed"
    ),
}  # fmt: skip


# Faults of parts that replace attention or select its keys.


def _gates_swapped(rows: Array) -> Array:
    first, last, values = np.split(rows, 3)
    return np.concatenate([last, first, values])


_SHORT_CONVOLUTION = {
    "kernels reversed": change_part("convolution.kernel", "permuted", _reverse_rows),
    "kernels of two channels swapped": change_part("convolution.kernel", "permuted", _swap_two),
    "kernels zero": zero_part("convolution.kernel"),
    "kernels negated": negate_part("convolution.kernel"),
    "gates swapped": change_part("convolution.inputs", "permuted", _gates_swapped),
    "output transposed": change_part("convolution.outputs", "transposed", lambda rows: rows.T),
    "projection missing": drop_part("convolution.outputs"),
    "norms swapped": exchange_parts("attention_norm", "mlp_norm", "norms_exchanged"),
}  # fmt: skip
_SPARSE_ATTENTION = {
    "factors of heads negated": negate_part("attention.indexer.factors"),
    "keys of the indexer zero": zero_part("attention.indexer.k"),
    "norm of keys with 1 added": add_one("attention.indexer.k_norm"),
    "bias of the norm missing": drop_part("attention.indexer.k_norm.bias", "bias_dropped"),
    "heads of the indexer swapped": change_part("attention.indexer.q_b", "permuted",
        lambda rows: swapped_rows(rows, 0, 1, 64)),
    "keys that are used": change_key("attention.indexer.top_k", lambda count: count // 2),
}  # fmt: skip
_LINEAR_UNIT = {
    "rates negated": negate_part("lru.rates"),
    "rates of the first two channels swapped": change_part("lru.rates", None, _swap_two),
    "gates of additions with inputs as rows": change_part("lru.input_gate", None,
        lambda blocks: blocks.transpose(0, 2, 1).copy()),
    "gates of fading in another order of blocks": change_part("lru.fade_gate", None,
        lambda blocks: blocks[::-1].copy()),
    "bias of the gates of fading zero": zero_part("lru.fade_gate_bias"),
    "kernels reversed": change_part("lru.kernel", "permuted", _reverse_rows),
    "gate and inputs swapped": exchange_parts("lru.gate", "lru.inputs"),
    "bias of the gate missing": drop_part("lru.gate.bias", "bias_dropped"),
    "projection missing": drop_part("lru.outputs"),
    "positions that the convolution reads": change_key("recurrent.conv_kernel",
        lambda count: count - 1),
}  # fmt: skip
_TIME_MIX = {
    "offsets of decays zero": zero_part("rwkv.decay_offset"),
    "offsets of rates negated": negate_part("rwkv.rate_offset"),
    "shares of queries zero": zero_part("rwkv.mix_r"),
    "share of the MLP negated": negate_part("mlp_mix"),
    "offsets of shares of values negated": negate_part("rwkv.value_offset"),
    "scales of keys zero": zero_part("rwkv.key_scale"),
    "products of queries and keys zero": zero_part("rwkv.bonus"),
    "norm of heads with 1 added": add_one("rwkv.norm"),
    "bias of the norm of heads missing": drop_part("rwkv.norm.bias", "bias_dropped"),
    "projection missing": drop_part("rwkv.outputs"),
    "epsilon": change_key("attention.layer_norm_epsilon", times(1e3)),
}
_DYNAMIC_MIX = {
    "weights of the first mix zero": zero_part("rwkv.mix_x"),
    "projection of the shares zero": zero_part("rwkv.mixer_a"),
    "shares in another order": change_part("rwkv.mixer_b", None, lambda each: each[::-1].copy()),
    "offsets of decays negated": negate_part("rwkv.decay_offset"),
    "products of queries and keys zero": zero_part("rwkv.bonus"),
    "gate and queries swapped": exchange_parts("rwkv.gate", "rwkv.r"),
    "norm of heads with 1 added": add_one("rwkv.norm"),
    "share of the gate of the MLP negated": negate_part("mlp_mix_gate"),
    "gate of the MLP missing": drop_part("mlp.gate"),
    "layers until outputs are halved": change_key("rescale_every_n_layers",
        lambda count: count + 1),
}  # fmt: skip
# By the kind of block: a case of a family that has it, and the faults.
MIXER_KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "short convolution": ("lfm2", _SHORT_CONVOLUTION),
    "sparse attention": ("deepseek_v32", _SPARSE_ATTENTION),
    "gated delta net": ("qwen35", DELTA_NET),
    "Kimi delta attention": ("kimi_linear", KIMI_DELTA),
    "time mixing": ("rwkv7", _TIME_MIX),
    "time mixing by tokens": ("rwkv6", _DYNAMIC_MIX),
    "linear recurrent unit": ("recurrent_gemma", _LINEAR_UNIT),
}


# Faults of state space models: Mamba, Mamba-2, that of PLaMo 2, and a Mamba-2 beside attention.


def _matrices_swapped(rows: Array) -> Array:
    """Swap B and C in the projection of the tiny Mamba-2: 512 gates, 512 values, 64 each, 8."""
    gates, values, b, c, steps = np.split(rows, [512, 1024, 1088, 1152])
    return np.concatenate([gates, values, c, b, steps])


def _gates_first(rows: Array) -> Array:
    values, gates = np.split(rows, 2)
    return np.concatenate([gates, values])


def _values_before_gates(rows: Array) -> Array:
    """Swap the gates and values in each head of the tiny PLaMo 2, which are 32 rows each."""
    return rows.reshape(-1, 2, 32, rows.shape[1])[:, ::-1].reshape(rows.shape).copy()


_STATES = {
    "rates negated": change_part("ssm.rates", None, np.negative),
    "rates as logarithms": change_part("ssm.rates", None, _logarithms),
    "skips zero": zero_part("ssm.skip"),
    "kernels reversed": change_part("ssm.kernel", "permuted", _reverse_rows),
    "projection missing": drop_part("ssm.outputs"),
}
_BOTH = {
    **_STATES,
    "bias of the convolution zero": zero_part("ssm.kernel.bias"),
    "rates of the first two swapped": change_part("ssm.rates", "permuted", _swap_two),
}
_MAMBA = {
    **_BOTH,
    "gates before values": change_part("ssm.inputs", "rolled", _gates_first),
    "bias of steps zero": zero_part("ssm.step.bias"),
    "steps negated": negate_part("ssm.step"),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(1e3)),
}
_MAMBA_2 = {
    **_BOTH,
    "B and C swapped": change_part("ssm.inputs", "permuted", _matrices_swapped),
    "bias of steps missing": drop_part("ssm.step_bias", "bias_dropped"),
    "norm of groups with 1 added": add_one("ssm.norm"),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(1e3)),
}
_PLAMO_2 = {
    **_STATES,
    "values before gates in each head": change_part("ssm.inputs", "permuted", _values_before_gates),
    "B and C swapped": change_part("ssm.selection", "permuted",
                                   lambda rows: swapped_rows(rows, 0, 1, 16)),
    "bias of steps missing": drop_part("ssm.step_bias", "bias_dropped"),
    "norm of B with 1 added": add_one("ssm.b_norm"),
    "norm after the states without its offset": change_part("post_attention_norm", None,
        lambda weight: weight - np.float32(0.2)),
}  # fmt: skip
_BESIDE_ATTENTION = {
    "output of attention with its factor twice": change_part("attention.o", "scaled",
        lambda rows: rows * 0.9),
    "output of the states with its factor twice": change_part("ssm.outputs", "scaled",
        lambda rows: rows * 0.7),
    "embedding with its factor twice": change_part("embedding", "scaled", lambda rows: rows * 1.3),
    "keys zero": zero_part("attention.k"),
    "skips negated": negate_part("ssm.skip"),
    "RoPE base": change_key("rope.freq_base", times(10)),
}  # fmt: skip
# By the kind of block: a case of a family that has it, and the faults.
STATE_SPACE_KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "Mamba": ("mamba", _MAMBA),
    "Mamba-2": ("mamba2", _MAMBA_2),
    "states of PLaMo 2": ("plamo2-tied", _PLAMO_2),
    "Mamba-2 beside attention": ("falcon_h1", _BESIDE_ATTENTION),
}


# Faults of each kind of block: what is done to a GGUF file, and the cause that is to be named.
# Each is a mistake of a tool in one tensor or key of a model that is sound otherwise.


def _rope_rows(part: str) -> BlockFault:
    def hurt(files: Files) -> tuple[str, ...]:
        heads = files.ours.heads if part == "q" else files.ours.kv_heads
        module = of(f"attention.{part}.weight")

        def halve(rows: Array) -> Array:
            split = rows.reshape(heads, -1, 2, rows.shape[-1])
            return split.swapaxes(1, 2).reshape(rows.shape)

        return changed(module, halve)(files)

    return BlockFault(hurt, "rope_rows")


_EXPERT = "mlp.experts.1."


def _stacked(part: str, cause: str | None, change: Callable[[Array], Array]) -> BlockFault:
    return change_part(f"{_EXPERT}{part}", cause, change)


def _rows_permuted(experts: Array) -> Array:
    made = experts.copy()
    made[1] = made[1][np.random.default_rng(3).permutation(made.shape[1])]
    return made


def _expert_copied(experts: Array) -> Array:
    made = experts.copy()
    made[1] = made[0]
    return made


def _turned(array: Array) -> Array:
    """Lay out each matrix of a stack by its other side, in the same shape."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)).reshape(array.shape)


def _rolled(rows: Array) -> Array:
    return np.roll(rows, 1, 0)


def _rolled_far(rows: Array) -> Array:
    return np.roll(rows, 3, 0)


_DENSE = {
    "two heads swapped": swap_heads("q", "heads"),
    "norm with 1 added": add_one("mlp_norm"),
    "gate and up swapped": exchange_parts("mlp.gate", "mlp.up", "gate_and_up_swapped"),
    "keys in the other order of RoPE": _rope_rows("k"),
    "RoPE base": change_key("rope.freq_base", times(10)),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(100)),
    "output transposed": change_part("attention.o", "transposed", np.transpose),
}  # fmt: skip
_SOFTMAX = {
    "rows of an expert permuted": _stacked("up", "permuted", _rows_permuted),
    "experts in another order": _stacked("down", "expert_order", _swap_two),
    "an expert copied": _stacked("gate", "expert_copied", _expert_copied),
    "rows of the router swapped": change_part("mlp.router", "permuted",
        lambda rows: swapped_rows(rows, 0, 2, 1)),
    "experts used": change_key("expert_used_count", lambda count: count - 1),
    "gate of the shared expert zero": zero_part("mlp.shared_gate"),
    "shared gate and up swapped": exchange_parts("mlp.shared.gate", "mlp.shared.up",
        "gate_and_up_swapped"),
}  # fmt: skip
_SIGMOID = {
    "correction missing": drop_part("mlp.correction", "bias_dropped"),
    "correction zero": zero_part("mlp.correction"),
    "correction negated": negate_part("mlp.correction"),
    "groups used": change_key("expert_group_used_count", lambda count: count + 1),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
    "shares not normalized": change_key("expert_weights_norm", opposite),
    "rows of an expert permuted": _stacked("gate", "permuted", _rows_permuted),
}
_LATENT = {
    "keys of heads transposed": change_part("attention.k_b", None, _turned),
    "values of two heads swapped": change_part("attention.v_b", None, _swap_two),
    "norm of the latent vector with 1 added": add_one("attention.kv_a_norm"),
    "norm of the queries' vector zero": zero_part("attention.q_a_norm"),
    "rows of the latent vector rolled": change_part("attention.kv_a", "rolled", _rolled_far),
    "RoPE base": change_key("rope.freq_base", times(10)),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
}  # fmt: skip
_SINKS = {
    "sinks negated": negate_part("attention.sinks"),
    "sinks zero": zero_part("attention.sinks"),
    "sinks missing": drop_part("attention.sinks"),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "gate and up of experts swapped": exchange_parts(f"{_EXPERT}gate", f"{_EXPERT}up",
        "gate_and_up_swapped"),
    "biases of experts zero": zero_part(f"{_EXPERT}down.bias"),
    "YaRN's factor": change_key("rope.scaling.factor", times(2)),
}  # fmt: skip
_WINDOWS = {
    "layers with a window": change_key("attention.sliding_window_pattern",
                                       lambda period: period - 1),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "RoPE base of layers with a window": change_key("rope.freq_base_swa", times(5)),
    "RoPE base of the others": change_key("rope.freq_base", times(0.1)),
    "norm of queries with 1 added": add_one("attention.q_norm"),
    "norms swapped": exchange_parts("post_attention_norm", "post_mlp_norm", "norms_exchanged"),
    "value heads swapped": swap_heads("v", "kv_heads"),
}  # fmt: skip
_ENCODER = {
    "positions one too far": change_part("position_embedding", "shifted", _rolled),
    "token types zero": zero_part("token_type_embedding"),
    "norms swapped": exchange_parts("attention_norm", "mlp_norm", "norms_exchanged"),
    "two heads swapped": swap_heads("v", "heads"),
    "output transposed": change_part("attention.o", "transposed", np.transpose),
    "epsilon": change_key("attention.layer_norm_epsilon", times(1e6)),
    "query and key swapped": exchange_parts("attention.q", "attention.k", "query_and_key_swapped"),
}  # fmt: skip
_PARALLEL = {
    "one by one": change_key("use_parallel_residual", opposite),
    "rotated dimensions": change_key("rope.dimension_count", lambda size: size // 2),
    "parts of the projection in another order": change_part(
        "attention.qkv", "key_and_value_swapped",
        lambda rows: np.concatenate([rows[: len(rows) // 3], rows[2 * len(rows) // 3 :],
                                     rows[len(rows) // 3 : 2 * len(rows) // 3]]),
    ),
    "norms swapped": exchange_parts("attention_norm", "mlp_norm", "norms_exchanged"),
    "norm with 1 added": add_one("attention_norm"),
    "bias zero": zero_part("attention.qkv.bias"),
    "RoPE base": change_key("rope.freq_base", times(10)),
}  # fmt: skip
_MULTIPLIERS = {
    "embedding": change_key("embedding_scale", times(2)),
    "residual": change_key("residual_scale", times(2)),
    "attention": change_key("attention.scale", times(2)),
    "logits": change_key("logit_scale", times(2)),
    "embedding that was multiplied": change_part("embedding", "scaled", lambda rows: rows * 12),
    "queries that were multiplied": change_part("attention.q", "scaled", lambda rows: rows * 2),
}  # fmt: skip
_NORMS_APART = {
    "norm of queries with 1 added": add_one("attention.q_norm"),
    "norm of keys zero": zero_part("attention.k_norm"),
    "norm of queries negated": negate_part("attention.q_norm"),
    "norms of two heads swapped": change_part("attention.q_norm", "permuted", _swap_two),
    "norm of keys missing": drop_part("attention.k_norm"),
    "logits": change_key("logit_scale", times(2)),
    "two heads swapped": swap_heads("q", "heads"),
}  # fmt: skip
_NORMS_AFTER = {
    "norms swapped": exchange_parts("post_attention_norm", "post_mlp_norm", "norms_exchanged"),
    "norm of all queries with 1 added": add_one("attention.q_norm"),
    "norm of all keys zero": zero_part("attention.k_norm"),
    "norm of all queries negated": negate_part("attention.q_norm"),
    "norm missing": drop_part("post_mlp_norm"),
    "two heads swapped": swap_heads("q", "heads"),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(1e4)),
}  # fmt: skip
_INNER_NORMS = {
    "norm of attention's output with 1 added": add_one("attention.inner_norm"),
    "norm of the MLP's product zero": zero_part("mlp.inner_norm"),
    "norm of the MLP's product negated": negate_part("mlp.inner_norm"),
    "norm missing": drop_part("attention.inner_norm"),
    "gate and up swapped": exchange_parts("mlp.gate", "mlp.up", "gate_and_up_swapped"),
    "norms swapped": exchange_parts("attention_norm", "mlp_norm", "norms_exchanged"),
    "value heads swapped": swap_heads("v", "kv_heads"),
}  # fmt: skip
_OUTPUT_GATE = {
    "gate of attention zero": zero_part("attention.gate"),
    "gate of attention negated": negate_part("attention.gate"),
    "gate of attention missing": drop_part("attention.gate"),
    "gate of attention transposed": change_part("attention.gate", "transposed", np.transpose),
    "norm of keys with 1 added": add_one("attention.k_norm"),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
}  # fmt: skip
_CHUNKED = {
    "keys in the other order of RoPE": _rope_rows("k"),
    "experts in another order": _stacked("down", "expert_order", _swap_two),
    "an expert copied": _stacked("up", "expert_copied", _expert_copied),
    "rows of the router swapped": _SOFTMAX["rows of the router swapped"],
    "shared gate and up swapped": _SOFTMAX["shared gate and up swapped"],
    "experts used": change_key("expert_used_count", lambda count: count - 1),
    "RoPE base": change_key("rope.freq_base", times(10)),
}
_XIELU = {
    "slopes above 0": change_layer_key("xielu.alpha_p", 0.5),
    "slopes below 0": change_layer_key("xielu.alpha_n", 0.5),
    "linear part": change_layer_key("xielu.beta", 0.5),
    "norm of queries with 1 added": add_one("attention.q_norm"),
    "up zero": zero_part("mlp.up"),
    "output transposed": change_part("attention.o", "transposed", np.transpose),
    "two heads swapped": swap_heads("v", "kv_heads"),
}
_DECODER = 3
_ENCODER_DECODER = {
    "distances of the decoder one too far": change_part("decoder_bias", "shifted", _rolled),
    "distances of the encoder zero": zero_part("encoder_bias"),
    "distances of the encoder negated": negate_part("encoder_bias"),
    "query and key of cross-attention swapped": BlockFault(
        lambda files: files.exchange(
            of("cross.q.weight", _DECODER), of("cross.k.weight", _DECODER)
        ),
        "query_and_key_swapped",
    ),
    "norm of cross-attention with 1 added": BlockFault(
        changed(of("cross_norm.weight", _DECODER), lambda weight: weight + 1), "norm_offset"
    ),
    "cross-attention zero": BlockFault(changed(of("cross.o.weight", _DECODER), np.zeros_like),
                                       "zeroed"),
    "gate and up swapped": exchange_parts("mlp.gate", "mlp.up", "gate_and_up_swapped"),
    "first token of the decoder": change_key("decoder_start_token_id", lambda token: token + 5),
}  # fmt: skip
_ALIBI = {
    "slopes": change_key("attention.max_alibi_bias", times(2)),
    "norm with 1 added": add_one("attention_norm"),
    "parts of the projection in another order": _PARALLEL[
        "parts of the projection in another order"
    ],
    "norms swapped": exchange_parts("attention_norm", "mlp_norm", "norms_exchanged"),
    "output transposed": change_part("attention.o", "transposed", np.transpose),
    "up zero": zero_part("mlp.up"),
}
_LEARNED = {
    "positions one too far": change_part("position_embedding", "shifted", _rolled),
    "positions zero": zero_part("position_embedding"),
    "bias zero": zero_part("attention.qkv.bias"),
    "bias of the norm negated": negate_part("mlp_norm.bias"),
    "output transposed": change_part("attention.o", "transposed", np.transpose),
    "epsilon": change_key("attention.layer_norm_epsilon", times(1e4)),
}
_LAYER_INPUTS = {
    "embeddings of layers zero": zero_part("layer_inputs.embedding"),
    "embeddings of layers one token too far": change_part("layer_inputs.embedding", "shifted",
        _rolled),
    "norm of layers' embeddings with 1 added": add_one("layer_inputs.norm"),
    "gate of a layer's embedding negated": negate_part("layer_input.gate"),
    "norm of a layer's input zero": zero_part("layer_input.norm"),
    "scale of a layer zero": zero_part("scale"),
}  # fmt: skip
_SHARED_KEYS = {
    "shared keys zero": BlockFault(changed(of("attention.k.weight", 3), np.zeros_like), "zeroed"),
    "shared values negated": BlockFault(changed(of("attention.v.weight", 3), np.negative),
                                        "scaled"),
    "norm of shared keys with 1 added": BlockFault(
        changed(of("attention.k_norm.weight", 3), lambda weight: weight + 1), "norm_offset"
    ),
    "queries that read shared keys negated": BlockFault(
        changed(of("attention.q.weight", 5), np.negative), "scaled"
    ),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "RoPE base of layers with a window": change_key("rope.freq_base_swa", times(5)),
}  # fmt: skip
_STREAMS_block = {
    "coefficients of the prediction zero": zero_part("altup.prediction"),
    "coefficients of the correction negated": negate_part("altup.correction"),
    "norm of the router with 1 added": add_one("altup.norm"),
    "rows of the router swapped": change_part("altup.router", "permuted",
        lambda rows: swapped_rows(rows, 0, 2, 1)),
    "scale of the corrected stream zero": zero_part("corrected_scale"),
    "projections of Laurel zero": zero_part("laurel.right"),
    "norm of Laurel with 1 added": add_one("laurel.norm"),
    "stream": change_key("altup.active_idx", lambda stream: stream + 1),
    "sparsity of a layer": change_layer_key("gemma3n.activation_sparsity_scale", 0.5),
}  # fmt: skip
_LATENT_EXPERTS = {
    "projection of the sum zero": zero_part("mlp.latent_out"),
    "rows of the projection rolled": change_part("mlp.latent_in", "rolled", _rolled_far),
    "projection of the sum negated": negate_part("mlp.latent_out"),
    "experts used": change_key("expert_used_count", lambda count: count - 1),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
    "correction zero": zero_part("mlp.correction"),
}
# By the kind of block: a case of a family that has it, and the faults.
KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "grouped heads": ("llama", _DENSE),
    "experts by softmax": ("qwen2moe", _SOFTMAX),
    "experts by sigmoid": ("dots1", _SIGMOID),
    "experts of latent vectors": ("nemotron_h_moe-latent", _LATENT_EXPERTS),
    "latent attention": ("deepseek_v2", _LATENT),
    "sinks": ("gpt_oss", _SINKS),
    "windows by layer": ("gemma3", _WINDOWS),
    "embeddings by layer": ("gemma4", _LAYER_INPUTS),
    "shared keys and values": ("gemma4", _SHARED_KEYS),
    "streams": ("gemma3n", _STREAMS_block),
    "encoder": ("bert", _ENCODER),
    "parallel residual": ("gptneox", _PARALLEL),
    "multipliers": ("granite", _MULTIPLIERS),
    "norms after the parts": ("olmo2", _NORMS_AFTER),
    "norms inside the parts": ("bitnet", _INNER_NORMS),
    "output gate": ("afmoe", _OUTPUT_GATE),
    "chunked attention": ("llama4", _CHUNKED),
    "xIELU": ("apertus", _XIELU),
    "encoder and decoder": ("t5", _ENCODER_DECODER),
    "norms of each head": ("cohere-norms", _NORMS_APART),
    "ALiBi": ("mpt", _ALIBI),
    "learned positions": ("gpt2", _LEARNED),
    **MIXER_KINDS,
    **STATE_SPACE_KINDS,
    **COMPRESSED_KINDS,
}


# Damage inside quantized blocks: single bits of one block's scale in a GGUF file.

# Where in a block its first scale is, a half-precision number.
SCALE_AT = {"Q8_0": 0, "Q4_0": 0, "Q4_K": 0, "Q6_K": 208}
EXPONENT_BITS = range(10, 15)
MODULE = of("mlp.up.weight")
ROW, BLOCK = 5, 2
NAN = np.float16("nan").view(np.uint16)


def flip(source: Path, out: Path, bit: int) -> Injected:
    """Write a copy of a Q8_0 file in which one bit of one scale is another."""
    return _write(source, out, "Q8_0", lambda scale: scale ^ np.uint16(1 << bit))


def make_nan(source: Path, out: Path, kind: str) -> Injected:
    """Write a copy of a GGUF file in which one block's scale is NaN."""
    return _write(source, out, kind, lambda _: NAN)


def _write(source: Path, out: Path, kind: str, change: Callable[..., np.uint16]) -> Injected:
    files = read(source)
    encoding = files.tensors[files.where(MODULE)].info.encoding
    assert encoding.name == kind
    rows = files.numbers(MODULE)
    start = min(BLOCK, rows.shape[1] // encoding.size - 1) * encoding.size + SCALE_AT[kind]
    scale = rows[ROW, start : start + 2].view(np.uint16)
    scale[0] = change(scale[0])
    where = files.put(MODULE, rows)
    return Injected(files.write(out), (where,), "scale")


# Mistakes in what goes with the tensors: each changes one entry of a GGUF file or a directory.

TEMPLATE = "{% for message in messages %}\n{{ message['content'] }}\n{% endfor %}"
PADDING, USERS = 2, 511
Metadata = dict[str, MetadataValue]


class MetadataFault(NamedTuple):
    """A mistake, the key or file that has it, and what must be said of it."""

    change: Callable[[Any], object]
    where: str
    words: tuple[str, ...]


def give_more(directory: Path, out: Path) -> Path:
    """Return a copy of a model with what real ones have: chat template, padding, an added token."""
    shutil.copytree(directory, out)
    with edited(out, "tokenizer.json") as tokenizer:
        vocabulary = tokenizer["model"]["vocab"]
        texts = {token: text for text, token in vocabulary.items()}
        entry = dict(tokenizer["added_tokens"][0])
        tokenizer["added_tokens"] += [
            entry | {"id": PADDING, "content": texts[PADDING]},
            entry | {"id": USERS, "content": texts[USERS], "special": False},
        ]
    with edited(out, "tokenizer_config.json") as config:
        config["pad_token"] = texts[PADDING]
    (out / "chat_template.jinja").write_text(TEMPLATE)
    return out


class edited:  # noqa: N801  # used as a function
    """Yield the content of a JSON file, to be changed and written back."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name

    def __enter__(self) -> Any:
        self._content = json.loads(self._path.read_text())
        return self._content

    def __exit__(self, *_: object) -> None:
        self._path.write_text(json.dumps(self._content))


def in_gguf(source: Path, out: Path, change: Callable[[Metadata], object]) -> Path:
    """Write a GGUF file with other metadata."""
    files = read(source)
    change(files.metadata)
    return files.write(out)


def in_directory(source: Path, out: Path, change: Callable[[Path], object]) -> Path:
    """Write a model's directory in which a file is changed."""
    shutil.copytree(source, out)
    change(out)
    return out


def _set(key: str, value: object) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata[key] = MetadataValue(metadata[key].type, value)

    return change


def _drop(key: str) -> Callable[[Metadata], object]:
    return lambda metadata: metadata.pop(key)


def _list(key: str, change: Callable[[list[Any]], object]) -> Callable[[Metadata], None]:
    def apply(metadata: Metadata) -> None:
        content = [*metadata[key].content]
        change(content)
        metadata[key] = MetadataValue(metadata[key].type, content)

    return apply


def exchange(elements: Any, one: int = 305, other: int = 306) -> None:
    elements[one], elements[other] = elements[other], elements[one]


def _all_normal(types: list[int]) -> None:
    types[:] = [1] * len(types)


_GGML = "tokenizer.ggml."


def _lose_last(metadata: Metadata) -> None:
    for key in ("tokens", "token_type"):
        _list(f"{_GGML}{key}", list.pop)(metadata)


IN_GGUF = {
    "tokens exchanged": MetadataFault(
        _list(f"{_GGML}tokens", exchange), f"{_GGML}tokens",
        ("2 tokens are swapped", "token 305 `", "token 306 `", "in the reference"),
    ),
    "token lost at the end": MetadataFault(_lose_last, f"{_GGML}tokens",
        ("511 tokens here and 512", "missing", "511 `")),
    "types all normal": MetadataFault(_list(f"{_GGML}token_type", _all_normal),
                                      f"{_GGML}token_type",
                                      ("every token is ordinary text", "0 `<s>`", "1 `</s>`")),
    "one control token normal": MetadataFault(
        _list(f"{_GGML}token_type", lambda types: types.__setitem__(0, 1)), f"{_GGML}token_type",
        ("0 `<s>` is of type NORMAL here and CONTROL in the reference",),
    ),
    "added token normal": MetadataFault(
        _list(f"{_GGML}token_type", lambda types: types.__setitem__(USERS, 1)),
        f"{_GGML}token_type", ("511 `", "is of type NORMAL here and USER_DEFINED in the reference"),
    ),
    "merges reordered": MetadataFault(
        _list(f"{_GGML}merges", lambda merges: exchange(merges, 7, 8)), f"{_GGML}merges",
        ("another order", "merge 7 is `", "merge 8 is `"),
    ),
    "merge lost": MetadataFault(_list(f"{_GGML}merges", list.pop), f"{_GGML}merges",
                                ("253 merges here and 254",)),
    "wrong eos": MetadataFault(_set(f"{_GGML}eos_token_id", 7), f"{_GGML}eos_token_id",
                               ("the eos token is 7 `", "1 `</s>` in the reference")),
    "eos dropped": MetadataFault(_drop(f"{_GGML}eos_token_id"), f"{_GGML}eos_token_id",
                                 ("is missing", "llama.cpp uses token 11 `")),
    "eos outside the vocabulary": MetadataFault(_set(f"{_GGML}eos_token_id", 512),
        f"{_GGML}eos_token_id", ("is 512", "512 tokens")),
    "wrong bos": MetadataFault(_set(f"{_GGML}bos_token_id", 1), f"{_GGML}bos_token_id",
                               ("the bos token is 1 `</s>` here and 0 `<s>` in the reference",)),
    "wrong padding": MetadataFault(_set(f"{_GGML}padding_token_id", 9), f"{_GGML}padding_token_id",
                                   ("the padding token is 9 `", "2 `!` in the reference")),
    "bos not added": MetadataFault(_set(f"{_GGML}add_bos_token", False), f"{_GGML}add_bos_token",
                                   ("is false here and true in the reference",)),
    "another pre-tokenizer": MetadataFault(_set(f"{_GGML}pre", "qwen2"), f"{_GGML}pre",
        ("the pre-tokenizer is `qwen2` here and `gpt-2` in the reference",)),
    "another kind of tokenizer": MetadataFault(_set(f"{_GGML}model", "llama"), f"{_GGML}model",
        ("is `llama` here and `gpt2`",)),
    "chat template changed": MetadataFault(
        _set("tokenizer.chat_template", TEMPLATE.replace("content", "text")),
        "tokenizer.chat_template", ("from line 2 on", "['text']", "['content']"),
    ),
    "chat template dropped": MetadataFault(_drop("tokenizer.chat_template"),
        "tokenizer.chat_template", ("missing",)),
    "context halved": MetadataFault(
        _set("llama.context_length", 256), "llama.context_length",
        ("`llama.context_length` is 256 here and 512 in the reference",),
    ),
    "rope base": MetadataFault(_set("llama.rope.freq_base", 500000.0), "llama.rope.freq_base",
                               ("is 500000 here and 10000 in the reference",)),
    "rotations stretched": MetadataFault(
        lambda metadata: metadata.update(
            {"llama.rope.scaling.type": MetadataValue("string", "linear"),
             "llama.rope.scaling.factor": MetadataValue("f32", 4.0)}
        ),
        "llama.rope.scaling.type", ("linear",),
    ),
    "norm epsilon": MetadataFault(_set("llama.attention.layer_norm_rms_epsilon", 1e-6),
                                  "llama.attention.layer_norm_rms_epsilon",
                                  ("1e-06 here and 1e-05 in the reference",)),
    "file type of another encoding": MetadataFault(_set("general.file_type", 7),
        "general.file_type", ("is 7, Q8_0, but 100 % of the matrices' values are BF16",)),
}  # fmt: skip


def _json(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        with edited(directory, name) as content:
            change(content)

    return apply


def _exchange_entries(tokenizer: Any) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    texts = {token: text for text, token in vocabulary.items()}
    vocabulary[texts[305]], vocabulary[texts[306]] = 306, 305


def _drop_added(tokenizer: Any) -> None:
    tokenizer["added_tokens"] = [each for each in tokenizer["added_tokens"] if each["id"] != USERS]


def _config(**values: Any) -> Callable[[Path], None]:
    return _json("config.json", lambda config: config.update(values))


def _ends(directory: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        with edited(directory, name) as content:
            content["eos_token_id"] = 7


def _fewer_heads(directory: Path) -> None:
    _config(num_attention_heads=4, num_key_value_heads=1, head_dim=64)(directory)


IN_DIRECTORY = {
    "two entries exchanged": MetadataFault(_json("tokenizer.json", _exchange_entries),
        "tokenizer.json", ("2 tokens are swapped", "token 305 `", "token 306 `")),
    "merges reordered": MetadataFault(
        _json("tokenizer.json", lambda document: exchange(document["model"]["merges"], 7, 8)),
        "tokenizer.json", ("another order", "merge 7 is `"),
    ),
    "added token dropped": MetadataFault(_json("tokenizer.json", _drop_added), "tokenizer.json",
        ("511 `", "is of type NORMAL here and USER_DEFINED in the reference")),
    "special tokens not special": MetadataFault(
        _json(
            "tokenizer.json",
            lambda document: [each.update(special=False) for each in document["added_tokens"]],
        ),
        "tokenizer.json",
        ("0 `<s>`", "1 `</s>`", "are of type USER_DEFINED here and CONTROL in the reference"),
    ),
    "wrong end of generation": MetadataFault(_ends, "eos_token_id",
        ("generation ends with 7 `", "with 1 `</s>` in the reference")),
    "wrong eos of the tokenizer": MetadataFault(
        _json("tokenizer_config.json", lambda config: config.update(eos_token="<s>")),
        "eos_token", ("the eos token is 0 `<s>` here and 1 `</s>` in the reference",),
    ),
    "eos outside the vocabulary": MetadataFault(_config(eos_token_id=512), "eos_token_id",
        ("is 512 in config.json", "512 rows")),
    "wrong padding": MetadataFault(
        _json("tokenizer_config.json", lambda config: config.update(pad_token="</s>")),
        "pad_token", ("the padding token is 1 `</s>`",),
    ),
    "chat template changed": MetadataFault(
        lambda directory: (directory / "chat_template.jinja").write_text(TEMPLATE[1:]),
        "chat_template", ("from line 1 on",),
    ),
    "context halved": MetadataFault(
        _config(max_position_embeddings=256), "max_position_embeddings",
        ("`max_position_embeddings` is 256 here and 512 in the reference",),
    ),
    "rope base": MetadataFault(_config(rope_theta=500000.0), "rope_theta",
                               ("is 500000 here and 10000",)),
    "norm epsilon": MetadataFault(_config(rms_norm_eps=1e-6), "rms_norm_eps",
                                  ("is 1e-06 here and 1e-05",)),
    "head counts": MetadataFault(_fewer_heads, "num_attention_heads",
                                 ("`num_attention_heads` is 4 here and 8",)),
}  # fmt: skip
