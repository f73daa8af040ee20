"""Products of columns of inputs, for rounding with error feedback: `imatrix --hessian`."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from family_cases import make_checkpoint
from imatrix_models import TEXT, TINY, latent, mixture_directory, tiny_llama
from lazy import torch, transformers
from llama_cpp import read_float_tensors
from ready_children import run_ready
from weightctl import convert
from weightctl.calibrate import make_imatrix
from weightctl.engine import products
from weightctl.engine.products import ProductSums
from weightctl.errors import ConversionError, EngineError, FormatError
from weightctl.formats.imatrix import read_importance
from weightctl.formats.imatrix.sums import ColumnSums, ImportanceSums, read_sums, write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from conftest import Completed

    Run = Callable[..., Completed]

SHORT = {"text_files": [str(TEXT)], "context": 64, "chunks": 20, "hessian": True}
# Ends with SIGKILL in the third of three layers.
KILLED = """
import os, signal, sys
from weightctl.calibrate import make_imatrix

def advance(stage, done):
    if stage == "layer 3 of 3":
        os.kill(os.getpid(), signal.SIGKILL)

make_imatrix(sys.argv[1], sys.argv[2], text_files=[sys.argv[3]], context=64, chunks=20,
             hessian=True, progress=advance)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An importance matrix of tiny-llama with products, of two batches."""
    made = tmp_path_factory.mktemp("hessians") / "imatrix.gguf"
    found = make_imatrix(TINY, made, **SHORT)
    assert (found.hessians, found.notes) == (21, ())
    return made


def of_layers(*parts: str) -> set[str]:
    return {f"blk.{layer}.{part}.weight" for layer in range(3) for part in parts}


def test_products_are_those_of_the_inputs_in_transformers(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    make_imatrix(tiny_llama(tmp_path), path, **SHORT | {"context": 16})
    network = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    ids = tokenizer(TEXT.read_text().removesuffix("\n"), add_special_tokens=False)["input_ids"]
    windows = torch.tensor(ids[:-1])
    windows = torch.cat([torch.tensor([tokenizer.bos_token_id]), windows])[: 20 * 16]
    windows = windows.reshape(20, 16)
    windows[:, 0] = tokenizer.bos_token_id
    found: dict[str, NDArray[np.float64]] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(_module: Any, given: tuple[Any, ...]) -> None:
            x = given[0].reshape(-1, given[0].shape[-1]).double()
            found[name] = (x.T @ x / len(x)).numpy()

        return hook

    for number, layer in enumerate(network.model.layers):
        for part, module in (
            ("attn_q", layer.self_attn.q_proj),
            ("attn_output", layer.self_attn.o_proj),
            ("ffn_up", layer.mlp.up_proj),
            ("ffn_down", layer.mlp.down_proj),
        ):
            module.register_forward_pre_hook(record(f"blk.{number}.{part}.weight"))
    with torch.inference_mode():
        network(windows)
    hessians = read_importance(str(path)).hessians
    assert found.keys() == of_layers("attn_q", "attn_output", "ffn_up", "ffn_down")
    for name, expected in found.items():
        scale = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
        error = np.abs(hessians[name].read() - expected) / np.maximum(scale, 1e-12)
        assert error.max() < 1e-4, name


def test_the_diagonal_has_the_sums_of_squares_and_equal_inputs_are_stored_once(
    measured: Path,
) -> None:
    found = read_importance(str(measured))
    assert found.hessians.keys() == found.values.keys()
    for layer in range(3):
        q, k, v, gate, up, down = (
            found.hessians[f"blk.{layer}.{part}.weight"]
            for part in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down")
        )
        assert q is k is v
        assert gate is up
        assert len({id(each) for each in (q, gate, down)}) == 3
    assert {each.name for each in found.hessians.values()} == of_layers(
        "attn_k", "attn_output", "ffn_gate", "ffn_down"
    )
    for name, hessian in found.hessians.items():
        assert hessian.count == 20 * 64
        matrix = hessian.read()
        np.testing.assert_array_equal(matrix, matrix.T)
        squares = found.values[name].reshape(1, hessian.columns)[0]
        np.testing.assert_allclose(matrix.diagonal(), squares, rtol=1e-5)
        values = np.linalg.eigvalsh(matrix.astype(np.float64))
        assert values.min() > -1e-5 * values.max(), name


def test_columns_of_a_directory_are_in_the_order_of_gguf(tmp_path: Path) -> None:
    # The output of linear attention has its columns in another order there.
    source = make_checkpoint("qwen35", tmp_path).path
    convert(source, tmp_path / "model.gguf", dtype="f32")
    found = []
    for name, model in (("ours", source), ("theirs", tmp_path / "model.gguf")):
        make_imatrix(model, tmp_path / f"{name}.gguf", **SHORT | {"context": 16, "chunks": 4})
        found.append(read_importance(str(tmp_path / f"{name}.gguf")).hessians)
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    assert "blk.0.ssm_out.weight" in ours
    for name, hessian in ours.items():
        expected = theirs[name].read()
        error = np.abs(hessian.read() - expected).max() / expected.diagonal().max()
        assert error < 1e-4, name


def read_as_llama_cpp(path: Path) -> dict[str, list[float]]:
    """Return what llama-quantize looks for in an importance matrix, with ggml as the reader."""
    return {
        name: values.tolist()
        for name, values in read_float_tensors(path).items()
        if name.endswith((".in_sum", ".in_sum2", ".counts"))
    }


def test_other_programs_find_what_they_find_without_products(
    measured: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain" / "imatrix.gguf"
    plain.parent.mkdir()
    make_imatrix(TINY, plain, **SHORT | {"hessian": False})
    assert len(read_as_llama_cpp(measured)) == 2 * 21
    assert read_as_llama_cpp(measured) == read_as_llama_cpp(plain)
    products = read_float_tensors(measured)["blk.1.ffn_down.weight.in_products"]
    mean = read_importance(str(measured)).hessians["blk.1.ffn_down.weight"].read()
    np.testing.assert_array_equal(products / np.float32(20 * 64), mean[np.triu_indices(len(mean))])
    with_keys, without = (gguf.GGUFReader(path).fields for path in (measured, plain))
    added = {"weightctl.in_products.tensors", "weightctl.in_products.stored"}
    assert {key for key in with_keys if not key.startswith("GGUF.")} == added | {
        key for key in without if not key.startswith("GGUF.")
    }


def test_a_file_with_products_can_be_listed_and_quantizes_alike_without_feedback(
    measured: Path, tmp_path: Path, weightctl: Run
) -> None:
    listed = weightctl("ls", measured, "--flat")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "blk.2.ffn_down.weight.in_products" in listed.stdout
    # The output records the path of the importance matrix.
    imatrix, made = tmp_path / "imatrix.gguf", []
    for hessian in (True, False):
        make_imatrix(TINY, imatrix, **SHORT | {"hessian": hessian}, force=True)
        options = {"quant": "Q4_K", "imatrix": imatrix, "feedback": False, "force": True}
        convert(TINY, tmp_path / "out.gguf", **options)
        made.append((tmp_path / "out.gguf").read_bytes())
    assert made[0] == made[1]


def test_a_stopped_run_continues_with_the_same_products(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"

    def stop(stage: str, _done: float) -> None:
        if stage == "layer 3 of 3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_imatrix(TINY, out, **SHORT, progress=stop)
    # A run without products does not take the state of one with them for its own.
    plain = make_imatrix(TINY, tmp_path / "plain.gguf", **SHORT | {"hessian": False})
    assert plain.resumed == 0
    made = make_imatrix(TINY, out, **SHORT)
    assert (made.resumed, made.hessians) == (2, 21)
    assert out.read_bytes() == measured.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.gguf", "plain.gguf"]


@pytest.mark.long
def test_a_killed_run_continues_with_the_same_products(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run_ready(KILLED, TINY, out, TEXT, imports=["torch"])
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert {f"products-{number}" for number in range(8)} <= set(os.listdir(left))
    assert make_imatrix(TINY, out, **SHORT).resumed == 2
    assert out.read_bytes() == measured.read_bytes()
    assert [*tmp_path.iterdir()] == [out]


def test_a_state_whose_products_were_cut_off_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"

    def damage(stage: str, _done: float) -> None:
        if stage == "layer 3 of 3":
            (state,) = tmp_path.iterdir()
            os.truncate(state / "products-1", 100)

    with pytest.raises(FormatError, match="products-1: the file was changed") as caught:
        make_imatrix(TINY, out, **SHORT, progress=damage)
    assert caught.value.hint == "remove its directory, and run the same command again"
    assert not out.exists()


def test_the_output_matrix_has_products_on_request(tmp_path: Path) -> None:
    made = make_imatrix(TINY, tmp_path / "out.gguf", **SHORT | {"chunks": 1}, process_output=True)
    assert made.hessians == 22
    hessian = read_importance(str(tmp_path / "out.gguf")).hessians["output.weight"]
    assert (hessian.name, hessian.columns, hessian.count) == ("output.weight", 256, 64)


def test_tensors_of_several_matrices_get_no_products_and_a_note_says_so(tmp_path: Path) -> None:
    short = SHORT | {"context": 16, "chunks": 1}
    made = make_imatrix(mixture_directory(tmp_path), tmp_path / "experts.gguf", **short)
    found = read_importance(str(tmp_path / "experts.gguf"))
    absent = found.values.keys() - found.hessians.keys()
    assert absent == {
        f"blk.{n}.ffn_{part}_exps.weight" for n in range(2) for part in ("down", "gate", "up")
    }
    assert made.notes[-1].startswith("6 tensors such as `blk.0.ffn_down_exps.weight` got no")
    assert made.hessians == len(found.hessians) == 10
    heads = make_imatrix(latent(tmp_path), tmp_path / "heads.gguf", **short)
    found = read_importance(str(tmp_path / "heads.gguf"))
    assert "blk.0.attn_k_b.weight" in found.values.keys() - found.hessians.keys()
    assert "such as `blk.0.attn_k_b.weight` got no products" in heads.notes[-1]


def test_what_cannot_have_products_is_refused_before_the_run(
    measured: Path, tmp_path: Path, weightctl: Run
) -> None:
    for out, merge, reason, hint in (
        ("out.dat", [], "the older format cannot have products", "use another suffix"),
        ("out.gguf", [str(measured)], "products of columns are not merged", "repeat --text-file"),
    ):
        with pytest.raises(ConversionError, match=reason) as caught:
            make_imatrix(TINY, tmp_path / out, **SHORT, merge=merge)
        assert hint in caught.value.hint
    done = weightctl("imatrix", TINY, "-o", tmp_path / "out.dat", "--hessian")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the older format cannot have products")
    assert [*tmp_path.iterdir()] == []


def test_products_of_merged_files_are_left_out_with_a_note(
    measured: Path, tmp_path: Path, weightctl: Run
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("imatrix", "-o", out, "--merge", measured, "--context", "64")
    assert done.returncode == 0
    assert f"{measured}: the products of 21 tensors are left out" in done.stderr
    assert read_importance(str(out)).hessians == {}
    ours, theirs = (read_sums(str(path), 64) for path in (out, measured))
    assert ours.entries.keys() == theirs.entries.keys()


def test_the_command_counts_the_tensors_with_products(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl(
        "imatrix", TINY, "-o", "out.gguf", "--text-file", TEXT, "--context", "64", "--chunks", "1",
        "--hessian", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "out.gguf: 21 tensors, 21 with products of columns, measured on 1 chunk of 64 tokens\n"
    )


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    name = "a" * 52
    (tmp_path / "products").write_bytes(bytes(12))
    sums = ImportanceSums(16, {name: ColumnSums(np.ones((1, 2)), np.ones(1, np.int64))})
    assert b"".join(write_gguf(sums))
    sums.products = {name: str(tmp_path / "products")}
    with pytest.raises(ConversionError, match="has 64 bytes; GGUF allows at most 63"):
        b"".join(write_gguf(sums))


def triangle_of(taken: list[tuple[list[str], NDArray[np.float32]]], name: str) -> Any:
    return next(part for names, part in taken if name in names)


def take(sums: ProductSums) -> list[tuple[list[str], NDArray[np.float32]]]:
    return [(names, np.concatenate([*parts])) for names, parts in sums.take()]


def test_products_follow_the_order_of_columns_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_STRIP", 3)
    monkeypatch.setattr(products, "_SUMMED", 4)
    order = [3, 0, 6, 1, 2, 5, 4]
    sums = ProductSums({"plain": None, "other": order, "same": order})
    drawn = np.random.default_rng(3).integers(-5, 5, (2, 2, 5, 7)).astype(np.float32)
    for each in drawn:
        left = torch.tensor(each)
        for name in ("plain", "unwanted", "other", "same"):
            sums.add(name, left)
    taken = take(sums)
    assert [names for names, _ in taken] == [["plain"], ["other", "same"]]
    x = drawn.reshape(-1, 7)
    for name, columns in (("plain", x), ("same", x[:, order])):
        expected = (columns.T @ columns)[np.triu_indices(7)]
        np.testing.assert_array_equal(triangle_of(taken, name), expected)
    assert take(sums) == []


def test_weights_that_do_not_always_read_the_same_values_are_an_error() -> None:
    first, second = torch.ones(2, 3), torch.ones(2, 3)
    sums = ProductSums({"a": None, "b": None})
    for name in "ab":
        sums.add(name, first)
    sums.add("a", second)
    with pytest.raises(EngineError, match="`b` read the same values as `a` in one run"):
        sums.add("b", first)
    sums = ProductSums({"a": None, "b": None})
    for name, left in (("a", first), ("a", second), ("b", second)):
        sums.add(name, left)
    with pytest.raises(EngineError, match="`b` read the same values as `a`"):
        take(sums)


def test_products_that_are_too_large_are_an_error() -> None:
    sums = ProductSums({"a": None})
    sums.add("a", torch.tensor([[1e25, 1.0]]))
    with pytest.raises(EngineError, match="the products of the inputs of `a` are NaN or too large"):
        take(sums)
