"""Importance matrices are those of llama-imatrix, as far as floating-point rounding allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from graphics import on_a_gpu
from imatrix_models import CHUNKS, CONTEXT, GOLDENS, TEXT, latent, mixture, tiny_llama
from weightctl import DType, convert, open_weights
from weightctl.calibrate import make_imatrix
from weightctl.calibrate.chunks import CalibrationText, cut_chunks
from weightctl.device import DeviceRef
from weightctl.formats.imatrix.sums import read_sums, write_dat, write_gguf
from weightctl.verify.subject import Subject
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MODELS = {"tiny-llama": tiny_llama, "mixture": mixture}
WITHIN = 1e-3


class Measured:
    """A model in F32, and what weightctl measures of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.golden = GOLDENS / f"{name}.gguf"
        self.model = MODELS[name](folder)
        self.path = folder / "imatrix.gguf"
        make_imatrix(
            self.model, self.path, text_files=[str(TEXT)], context=CONTEXT, chunks=CHUNKS,
            process_output=True,
        )  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return Measured(request.param, tmp_path_factory.mktemp(request.param))


def test_sums_are_equal_within_a_thousandth_and_counts_exactly(measured: Measured) -> None:
    assert_sums_of(measured.golden, measured.path, WITHIN)


def test_files_have_the_same_tensors_and_metadata(measured: Measured) -> None:
    ours, golden = (header_of(open_weights(path)) for path in (measured.path, measured.golden))
    assert ours.tensors == golden.tensors
    assert ours.metadata | {"imatrix.datasets": None} == golden.metadata | {
        "imatrix.datasets": None
    }


def assert_sums_of(golden: Path, ours: Path, within: float) -> None:
    found, expected = (read_sums(str(path), CONTEXT) for path in (ours, golden))
    assert [*found.entries] == [*expected.entries]
    for name, (squares, counts) in expected.entries.items():
        np.testing.assert_allclose(found.entries[name].squares, squares, within, err_msg=name)
        np.testing.assert_array_equal(found.entries[name].counts, counts, name)


def test_latent_attention_has_the_sums_of_the_products_with_latent_vectors(tmp_path: Path) -> None:
    ours = tmp_path / "imatrix.gguf"
    model = latent(tmp_path)
    make_imatrix(model, ours, text_files=[str(TEXT)], context=CONTEXT, chunks=CHUNKS)
    assert_sums_of(GOLDENS / "latent.gguf", ours, 1e-5)
    entries = read_sums(str(ours), CONTEXT).entries
    # One for each head and number of a query's plain part, and of a latent vector.
    assert entries["blk.1.attn_k_b.weight"].squares.shape == (1, 4 * 24)
    assert entries["blk.1.attn_v_b.weight"].squares.shape == (1, 4 * 32)
    quantized = tmp_path / "quantized.gguf"
    convert(model, quantized, quant="Q4_0", imatrix=str(ours))


def blocks_of(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the blocks of each quantized tensor of a file, [blocks, bytes]."""
    source, found = source_of(open_weights(path)), {}
    for name, info in source.header.tensors.items():
        if info.encoding.dtype is None:
            found[name] = np.empty((info.nbytes // info.encoding.size, info.encoding.size), "u1")
            source.read_into(name, 0, found[name].reshape(-1).data)
    return found


def test_q4_k_m_with_either_file_has_equal_errors_and_few_other_blocks(
    measured: Measured, tmp_path: Path
) -> None:
    made = {}
    for name, imatrix in (("ours", measured.path), ("theirs", measured.golden)):
        made[name] = tmp_path / f"{name}.gguf"
        convert(measured.model, made[name], quant="Q4_K_M", imatrix=str(imatrix))
    ours, theirs = (blocks_of(path) for path in made.values())
    assert len(ours) >= 16
    differing = sum((ours[name] != theirs[name]).any(1).sum() for name in ours)
    # The search for scales compares sums that differ in their last bits: measured, 1.5 %.
    assert differing < 0.03 * sum(map(len, ours.values()))
    trees = [open_weights(path) for path in (measured.model, *made.values())]
    for name in ours:
        exact, *quantized = (tree[name].data().astype(DType.float32).to_numpy() for tree in trees)
        errors = [np.square(each - exact).sum() for each in quantized]
        assert errors[0] == pytest.approx(errors[1], 2e-3), name


def test_the_older_format_has_the_same_means() -> None:
    golden = read_sums(str(GOLDENS / "tiny-llama.gguf"), CONTEXT)
    assert b"".join(write_gguf(golden)) == (GOLDENS / "tiny-llama.gguf").read_bytes()
    written = np.frombuffer(write_dat(golden)[4:], np.uint8)
    expected = np.frombuffer((GOLDENS / "tiny-llama.dat").read_bytes()[4:], np.uint8)
    assert len(written) == len(expected)
    assert (written != expected).mean() < 0.01


def test_the_first_token_of_each_chunk_is_the_one_that_begins_a_text(tmp_path: Path) -> None:
    encoder = Subject(tiny_llama(tmp_path)).encoder
    assert encoder is not None
    encoder.first = [7]
    text = CalibrationText("", TEXT.read_text()[:2000])
    ids = encoder.ids(text.content)
    chunks = cut_chunks(encoder, [text], 16, 3)
    assert chunks.shape == (3, 16)
    assert chunks[:, 0].tolist() == [7, 7, 7]
    assert chunks[:, 1:].tolist() == [ids[at : at + 15] for at in (0, 16, 32)]


@on_a_gpu
def test_a_graphics_processor_measures_the_same(measured: Measured, tmp_path: Path) -> None:
    make_imatrix(
        measured.model, tmp_path / "cuda.gguf", text_files=[str(TEXT)], context=CONTEXT,
        chunks=CHUNKS, process_output=True, device=DeviceRef.GPU(0),
    )  # fmt: skip
    ours, golden = (
        read_sums(str(path), CONTEXT) for path in (tmp_path / "cuda.gguf", measured.golden)
    )
    for name, (squares, _) in golden.entries.items():
        np.testing.assert_allclose(ours.entries[name].squares, squares, WITHIN, err_msg=name)
