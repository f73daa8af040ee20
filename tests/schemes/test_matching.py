"""Weights that are stored as several tensors, detected by the shapes that each tool writes."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantized_examples as examples
from each import each
from weightctl.dtype import ENCODINGS
from weightctl.errors import WeightctlError
from weightctl.schemes import SCHEMES
from weightctl.schemes.matching import MARKS, find_quantized, list_scheme_tensors, load_schemes
from weightctl.schemes.settings import Settings
from weightctl.weights import Extent, Header, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEME_OF = load_schemes()
NAMES = {names for scheme in SCHEME_OF.values() for names in scheme.names}


def nothing(name: str) -> NoReturn:
    raise WeightctlError(f"{name} must not be read")


@each(
    ("weight", "scheme", "tensors"),
    [pytest.param(*row, id=tool) for tool, *row in examples.TABLE],
)
def test_a_weight_stored_in_parts_is_one_weight(weight: str, scheme: str, tensors: str) -> None:
    header = examples.header_of(tensors)
    name, shape = weight.split()
    assert list(find_quantized(header, Settings(examples.CONFIG), examples.read)) == [name]
    found = find_quantized(header, Settings(examples.CONFIG), examples.read)[name]
    assert (found.shape, found.label) == (examples.numbers(shape), scheme)
    assert found.tensors[0] == next(iter(header.tensors))
    assert set(found.tensors) == set(header.tensors) == list_scheme_tensors(header)
    assert found.nbytes == sum(info.nbytes for info in header.tensors.values())


def test_all_names_have_an_example() -> None:
    tensors = [examples.header_of(row[3]).tensors for row in examples.TABLE]
    tensors.append(examples.header_of(examples.QUANTO_4_BIT).tensors)
    for names in NAMES:
        assert any(
            names.gather(info, example, Settings({}), lambda *_: None)
            for example in tensors
            for info in example.values()
        ), names


def test_every_scheme_but_one_without_shapes_has_an_example() -> None:
    found = {
        weight.scheme
        for row in examples.TABLE
        for weight in find_quantized(
            examples.header_of(row[3]), Settings(examples.CONFIG), examples.read
        ).values()
    }
    others = SCHEME_OF.keys() - found
    # Only the config determines BitNet, and nothing determines the shapes of quanto's integers.
    assert others == {"bitnet", "quanto"}


def test_the_scales_of_every_scheme_are_looked_for_and_nothing_else() -> None:
    for name, scheme in SCHEME_OF.items():
        endings = SCHEMES[name].scales
        assert all(names.scales.endswith(endings) for names in scheme.names)
        assert all(any(names.scales.endswith(end) for names in scheme.names) for end in endings)
    assert set(MARKS) <= {names.scales for names in NAMES}


def test_parts_are_known_where_the_shape_of_the_weight_is_not() -> None:
    header = examples.header_of(examples.QUANTO_4_BIT)
    assert find_quantized(header, Settings({}), nothing) == {}
    assert list_scheme_tensors(header) == set(header.tensors)
    assert list_scheme_tensors(examples.header_of(examples.MLX)) == {
        "l.weight",
        "l.scales",
        "l.biases",
    }


def test_bits_count_the_scales() -> None:
    weight = find_quantized(examples.header_of(examples.AWQ), Settings({}), nothing)["l.weight"]
    assert weight.size == 4096 * 14336
    assert weight.bits == pytest.approx(4 + (16 + 4) / 128)


@pytest.mark.parametrize(
    ("settings", "schemes"),
    [({"bits": 4}, ["GPTQ 4-bit"]), ({"bits": True}, []), ({}, []), (7, [])],
)
def test_what_shapes_leave_open_the_config_says(settings: object, schemes: list[str]) -> None:
    header = examples.header_of("l.qweight I32 1792x4096, l.scales F16 112x4096")
    found = find_quantized(header, Settings({"quantization_config": settings}), nothing)
    assert [weight.label for weight in found.values()] == schemes


def test_bitnet_is_known_by_its_config() -> None:
    header = examples.header_of("l.weight U8 640x2560, l.weight_scale BF16 1")
    assert find_quantized(header, Settings({}), nothing) == {}
    config = {"quantization_config": {"quant_method": "bitnet"}}
    weight = find_quantized(header, Settings(config), nothing)["l.weight"]
    assert (weight.shape, weight.label) == ((2560, 2560), "BitNet 1.58-bit")


def test_weights_are_in_the_order_of_their_first_parts() -> None:
    header = examples.header_of(
        "a.scales F16 112x4096, b.weight_scale_inv F32 56x16, c.weight BF16 8, "
        "b.weight F8_E4M3 7168x2048, a.qweight I32 14336x512, a.qzeros I32 112x512"
    )
    assert list(find_quantized(header, Settings({}), nothing)) == ["a.weight", "b.weight"]


def test_what_only_stands_beside_a_weight_is_not_a_part_of_it() -> None:
    beside = ", l.bias F16 4096, l.norm.weight F16 4096, l.norm.scale F16 4096, l.k_scale F32 1"
    header = examples.header_of(examples.AWQ + beside)
    assert find_quantized(header, Settings({}), nothing)["l.weight"].tensors == (
        "l.qweight",
        "l.scales",
        "l.qzeros",
    )
    assert list_scheme_tensors(header) == {"l.qweight", "l.scales", "l.qzeros"}


@each(
    "tensors",
    [
        examples.AWQ.replace("scales F16 112x4096", "scales F16 112x4095"),
        examples.AWQ.replace("qzeros I32 112x512", "qzeros I32 111x512"),
        examples.AWQ.replace("I32 14336x512", "I32 14336x0"),
        examples.AWQ.replace("I32", "BF16"),
        examples.GPTQ.replace("g_idx I32 14336", "g_idx I32 4096"),
        examples.GPTQ.replace("qzeros I32 112x512", "qzeros I32 112x511"),
        examples.PACKED.replace("4096x1792", "4096x1791"),
        examples.PACKED.replace("4096x1792", "4097x1792"),
        examples.PACKED.replace("4096x112", "4096x0"),
        examples.PACKED.replace(", l.weight_shape I64 2", ""),
        examples.DEEPSEEK.replace("5x56", "6x7000"),
        examples.DEEPSEEK.replace("576x7168", "0x7168").replace("5x56", "scalar"),
        examples.DEEPSEEK.replace("F8_E4M3", "BF16"),
        examples.MODELOPT.replace("4096x896", "4096x895"),
        examples.MLX.replace("biases F16 4096x224", "biases F16 4096x223"),
        examples.MLX.replace("4096x224", "4096x225"),
        examples.NF4.replace("29360128x1", "29360127x1"),
        examples.GPT_OSS.replace("90x16", "90x17"),
        examples.HQQ.replace("2048x14336", "2047x14336"),
    ],
)
def test_shapes_that_do_not_fit_together_are_not_a_weight(tensors: str) -> None:
    assert (
        find_quantized(examples.header_of(tensors), Settings(examples.CONFIG), examples.read) == {}
    )


@pytest.mark.parametrize("config", [{}, {"quantization": None}, {"quantization": {"bits": 4}}])
def test_groups_that_only_the_config_could_tell_are_not_guessed(config: dict[str, Any]) -> None:
    assert find_quantized(examples.header_of(examples.MLX), Settings(config), nothing) == {}


def test_a_weight_whose_name_another_tensor_has_is_none() -> None:
    header = examples.header_of(examples.AWQ + ", l.weight BF16 4096x14336")
    assert find_quantized(header, Settings({}), nothing) == {}


@pytest.mark.parametrize(
    "content",
    [
        nothing,
        lambda _: b"",
        lambda _: b"[" * len(examples.STATE),
        lambda _: b'"\xff'.ljust(len(examples.STATE)),
        lambda _: b'{"shape": [-1, true]}'.ljust(len(examples.STATE)),
        lambda _: b'{"shape": 58720256}'.ljust(len(examples.STATE)),
        lambda _: struct.pack("<qq", -4096, 14336),
        lambda _: struct.pack("<qq", 4096, 2**62),
    ],
)
def test_what_cannot_be_read_or_makes_no_sense_is_not_a_weight(
    content: Callable[[str], bytes],
) -> None:
    for tensors in (examples.PACKED, examples.NF4, examples.HQQ):
        assert find_quantized(examples.header_of(tensors), Settings({}), content) == {}


def test_only_small_tensors_are_read() -> None:
    large = examples.PACKED.replace("l.weight_shape I64 2", "l.weight_shape I64 513")

    def refuse(name: str) -> bytes:
        raise AssertionError(name)

    assert find_quantized(examples.header_of(large), Settings({}), refuse) == {}


def test_layers_that_are_alike_are_read_once() -> None:
    names: list[str] = []

    def count(name: str) -> bytes:
        names.append(name)
        return examples.read(name)

    layers = [*(f"layers.{number}." for number in range(100)), "\ud800."]
    text = ", ".join(examples.PACKED.replace("l.", layer) for layer in layers)
    found = find_quantized(examples.header_of(text), Settings({}), count)
    assert len(found) == 101
    assert names == ["layers.0.weight_shape", "\ud800.weight_shape"]


def test_a_model_that_is_not_quantized_has_no_weights_in_parts() -> None:
    header = examples.header_of(
        "l.weight BF16 8x8, l.bias BF16 8, l.norm.scale BF16 8, l.embed.weight I8 9"
    )
    assert find_quantized(header, Settings({}), nothing) == {}
    assert list_scheme_tensors(header) == set()


ENDINGS = sorted(
    {"l" + ending for names in NAMES for ending in (names.scales, names.numbers, *names.others)}
)
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32, 40, 64, 128, 256, 4096, 2**40, 2**63])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["group_size", "bits", "l"]), inner, max_size=3),
    max_leaves=4,
)


@given(
    st.dictionaries(
        st.sampled_from(ENDINGS), st.tuples(SHAPES, st.sampled_from(list(ENCODINGS.values())))
    ),
    st.dictionaries(st.sampled_from(["quantization", "quantization_config"]), ANYTHING),
    st.binary(max_size=24) | st.just(examples.STATE),
)
def test_no_header_makes_it_fail(
    drawn: dict[str, tuple[tuple[int, ...], Any]], config: dict[str, Any], content: bytes
) -> None:
    tensors = {name: TensorInfo(name, *entry) for name, entry in drawn.items()}
    extents = {name: Extent(0, 0, 2**62) for name in tensors}
    header = Header("safetensors", ("a",), tensors, extents)
    found = find_quantized(header, Settings(config), lambda _: content)
    named = [part for weight in found.values() for part in weight.tensors]
    assert len(named) == len(set(named))
    assert set(named) <= list_scheme_tensors(header) <= set(tensors)
    for weight in found.values():
        assert weight.size > 0
        assert math.isfinite(weight.bits)


def test_neither_numpy_nor_torch_is_loaded() -> None:
    program = (
        "import sys; from weightctl.schemes.matching import load_schemes; load_schemes(); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
