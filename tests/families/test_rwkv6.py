"""What is special about RWKV-6: weights that GGUF halves by layer, and older names."""

from __future__ import annotations

import json
from shutil import copytree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.torch import load_file

from family_cases import make_checkpoint
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_hugging_face
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from pathlib import Path

FAMILY = FAMILIES["rwkv6"].load()
HALVED = ("time_mix_output", "channel_mix_value")


def read(**keys: Any) -> Any:
    return from_hugging_face(FAMILY, {"model_type": "rwkv6", **keys}, "here")


@pytest.mark.parametrize(("hidden", "ranks"), [(2048, (32, 64)), (4096, (64, 128))])
def test_the_sizes_of_vectors_follow_from_the_width(hidden: int, ranks: tuple[int, int]) -> None:
    found = read(hidden_size=hidden).config
    assert (found.mix_rank, found.decay_rank) == ranks
    assert found.intermediate == int(hidden * 3.5)
    assert (found.rescale_every, found.mix_vectors) == (6, 5 * ranks[0])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention_hidden_size": 512}, "attention_hidden_size"),
        ({"head_size_divisor": 4}, "one epsilon"),
        ({"hidden_size": 100}, "not an integer"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        read(**keys)
    assert said in str(caught.value)


def test_halved_weights_stay_bf16_and_come_back_with_the_same_bytes(
    crossed: Path, tmp_path: Path
) -> None:
    convert(make_checkpoint("rwkv6", crossed).path, tmp_path / "own", dtype="bf16")
    convert(tmp_path / "own", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "back")
    stored = header_of(open_weights(tmp_path / "a.gguf")).tensors
    assert {stored[f"blk.3.{part}.weight"].encoding.name for part in HALVED} == {"BF16"}
    own, back = (load_file(tmp_path / each / "model.safetensors") for each in ("own", "back"))
    assert all(each.equal(back[name]) for name, each in own.items())
    tree = recognize(open_weights(tmp_path / "a.gguf"))
    module = tree.weights["layers.3.mlp.down.weight"].data().astype("float32")
    expected = own["rwkv.blocks.3.feed_forward.value.weight"].float().numpy() / 2
    assert np.array_equal(np.from_dlpack(module), expected)


def test_never_halved_weights_are_kept(crossed: Path, tmp_path: Path) -> None:
    copytree(make_checkpoint("rwkv6", crossed).path, tmp_path / "own")
    document = json.loads((tmp_path / "own" / "config.json").read_text()) | {"rescale_every": 0}
    (tmp_path / "own" / "config.json").write_text(json.dumps(document))
    convert(tmp_path / "own", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "back")
    own, back = (load_file(tmp_path / each / "model.safetensors") for each in ("own", "back"))
    assert all(each.equal(back[name]) for name, each in own.items())


def test_older_files_have_a_tensor_for_each_share(crossed: Path, tmp_path: Path) -> None:
    convert(make_checkpoint("rwkv6", crossed).path, tmp_path / "a.gguf")
    tree = open_weights(tmp_path / "a.gguf")
    source = source_of(tree)
    stored: dict[str, Any] = {name: tensor_of(source, name) for name in source.header.tensors}
    for layer in range(4):
        fused = stored.pop(f"blk.{layer}.time_mix_lerp_fused.weight")
        for place, part in enumerate("wkvrg"):
            name = f"blk.{layer}.time_mix_lerp_{part}.weight"
            stored[name] = DerivedTensor(name, RowRange(place, place + 1), [fused])
    apart = recognize(Checkpoint(Derived(source, stored, source.header.metadata)))
    apart.check()
    for part in "wkvrg":
        module = f"layers.2.rwkv.mix_{part}.weight"
        one, other = (each.weights[module].data() for each in (apart, recognize(tree)))
        assert np.array_equal(np.from_dlpack(one), np.from_dlpack(other))
