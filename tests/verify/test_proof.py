"""A proof tells honest quantizations from all others, and names what is not of the source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from importances import imatrix_dat
from llama_cpp import ggml_needs_importance, ggml_quantize
from weightctl import convert, open_weights
from weightctl.codecs import codec, definition
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.kernels import levels
from weightctl.verify import verify
from weightctl.verify.checks.proof import CONFIDENCE
from weightctl.verify.proof import codes
from weightctl.verify.proof.codes import find_doubtful, find_layout, judge_blocks
from weightctl.verify.proof.grids import has_grid, judge_grids
from weightctl.verify.proof.verdicts import ProofFigures, Verdict
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from weightctl.dtype import Encoding

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL, IMPORTANCE = FIXTURES / "tiny-llama", FIXTURES / "imatrix" / "tiny-llama.gguf"
JUDGED = [each for each in ENCODINGS.values() if find_layout(each) is not None]
GRIDS = [each for each in ENCODINGS.values() if has_grid(each)]
# Where the codes are those of the stored scales, and nothing else is possible.
AT_STORED_SCALES = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}


def draw(seed: int, rows: int = 24, width: int = 1024) -> NDArray[np.float32]:
    """Return rows of values as models have them, with some of other sizes."""
    random = np.random.default_rng(seed)
    values = random.standard_t(5, (rows, width)) * 0.02
    values[0] *= 1e-4
    values[1] = np.abs(values[1])
    values[2, ::7] *= 30
    values[3] = 0
    values[4, 256:512] = 0.125
    return values.astype(np.float32)


def weigh(seed: int, spread: float, width: int = 1024) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return np.exp(random.normal(0, spread, width)).astype(np.float32)


def in_blocks(
    encoding: Encoding, values: NDArray[np.float32], raw: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    return values.reshape(-1, encoding.block), raw.reshape(-1, encoding.size)


def test_no_block_of_ggml_is_called_wrong() -> None:
    offenders: list[str] = []
    for encoding in JUDGED:
        for seed, spread in enumerate([None, 0.5, 1.5, 3.0]):
            importance = None if spread is None else weigh(seed, spread)
            if importance is None and ggml_needs_importance(encoding.name):
                continue
            values = draw(seed)
            raw = ggml_quantize(encoding.name, values, importance)
            found = judge_blocks(*in_blocks(encoding, values, raw), encoding)
            unusual = np.count_nonzero(found.unusual)
            # A few blocks have extreme scales if the importance of columns differs by thousands, or
            # if one value is 30 times as large as the others.
            most = 0.05 if spread == 3.0 else 0.002
            if found.wrong.any() or unusual > max(1, most * len(found.unusual)):
                offenders.append(f"{encoding}, spread {spread}: {found.wrong.sum()}, {unusual}")
    assert offenders == []


def masks(encoding: Encoding) -> NDArray[np.uint8]:
    """Return the bits of a block that are codes."""
    layout = find_layout(encoding)
    assert layout is not None
    block = np.zeros(1, definition(encoding).block_dtype)  # type: ignore[attr-defined]  # of blocks
    for name in layout.fields:
        block[name].view(np.uint8)[...] = 0xFF
    return np.unpackbits(block.view(np.uint8))


def flip(raw: NDArray[np.uint8], bits: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Return blocks in each of which one bit is changed."""
    made = raw.copy()
    places = np.arange(len(raw)), bits // 8
    made[places] ^= (128 >> bits % 8).astype(np.uint8)
    return made


def test_a_flipped_bit_of_a_code_is_found_in_each_block() -> None:
    offenders: list[str] = []
    for encoding in JUDGED:
        random = np.random.default_rng(7)
        values = draw(9)[5:]
        raw = np.empty((len(values), encoding.row_bytes(values.shape[1])), np.uint8)
        codec(encoding).encode(values, weigh(3, 1.0), raw)
        blocks, stored = in_blocks(encoding, values, raw)
        codes = np.flatnonzero(masks(encoding))
        changed = flip(stored, random.choice(codes, len(stored)))
        missed = np.count_nonzero(~judge_blocks(blocks, changed, encoding).wrong)
        # A code beside its own can be right for another scale that the values allow.
        if missed > (0 if encoding.name in AT_STORED_SCALES else 0.05 * len(stored)):
            offenders.append(f"{encoding}: {missed} of {len(stored)}")
    assert offenders == []


def test_kernels_pass_over_right_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    offenders: list[str] = []
    random = np.random.default_rng(11)
    for encoding in JUDGED:
        values = draw(10)
        raw = np.empty((len(values), encoding.row_bytes(values.shape[1])), np.uint8)
        codec(encoding).encode(values, weigh(3, 1.5), raw)
        blocks, stored = in_blocks(encoding, values, raw)
        bits = random.integers(8 * encoding.size, size=len(stored))
        odd = blocks.copy()
        odd[::3, 5], odd[1::3, 7], odd[2::3] = np.nan, np.inf, 0
        cases = {
            "honest": (blocks, stored),
            "flipped": (blocks, flip(stored, bits)),
            "exchanged": (blocks, np.roll(stored, 1, axis=0)),
            "random": (blocks, random.integers(256, size=stored.shape, dtype=np.uint8)),
            "larger": (blocks * np.float32(1.05), stored),
            "odd": (odd, stored),
        }
        for name, (own, made) in cases.items():
            with monkeypatch.context() as patch:
                patch.setattr(codes, "code_examiner", lambda *_: None)
                expected = judge_blocks(own, made, encoding)
            if not expected.wrong[~np.isfinite(own).all(axis=1)].all():
                offenders.append(f"{encoding}, {name}: a value that is not finite has a code")
            for level in range(len(levels())):
                found = judge_blocks(own, made, encoding, level)
                if any(np.any(a != b) for a, b in zip(found, expected, strict=True)):
                    offenders.append(f"{encoding}, {name}, {levels()[level]}")
                doubtful = find_doubtful(own, made, encoding, level)
                if name == "honest" and len(doubtful) > 0.15 * len(made):
                    offenders.append(f"{encoding}: {len(doubtful)} of {len(made)} are doubtful")
    assert offenders == []


# What the fixed seeds find: the importance can explain the rest.
FOUND_IN_GRIDS = {
    "IQ1_S": 0.6, "IQ1_M": 0.5, "IQ2_XXS": 0.7, "IQ2_XS": 0.8, "IQ2_S": 0.9, "IQ3_XXS": 0.85,
    "IQ3_S": 0.95,
}  # fmt: skip


def test_no_group_of_ggml_is_called_wrong_and_most_flipped_bits_of_groups_are() -> None:
    offenders: list[str] = []
    for encoding in GRIDS:
        for seed, spread in enumerate([0.5, 1.5, 3.0, None]):
            importance = weigh(seed, 1.0 if spread is None else spread)
            values = draw(seed)
            if spread is None:
                # Columns that are never used, one that is used most, and values with few bits.
                importance[::5], importance[7] = 0, 1e6
                values = rounded(values)
            raw = ggml_quantize(encoding.name, values, importance)
            found = judge_grids(*in_blocks(encoding, values, raw), encoding)
            if found.wrong.any() or np.count_nonzero(found.unusual) > 0.2 * len(found.unusual):
                offenders.append(
                    f"{encoding}, {spread}: {found.wrong.sum()}, {found.unusual.sum()}"
                )
        values, random = draw(9)[5:], np.random.default_rng(7)
        raw = ggml_quantize(encoding.name, values, weigh(3, 1.0))
        blocks, stored = in_blocks(encoding, values, raw)
        block = np.zeros(1, definition(encoding).block_dtype)  # type: ignore[attr-defined]
        for field in block.dtype.names:
            if field not in {"scale", "scales"}:
                block[field].view(np.uint8)[...] = 0xFF
        bits = np.flatnonzero(np.unpackbits(block.view(np.uint8)))
        changed = flip(stored, random.choice(bits, len(stored)))
        share = np.mean(judge_grids(blocks, changed, encoding).wrong)
        if share < FOUND_IN_GRIDS[encoding.name]:
            offenders.append(f"{encoding}: {share:.3f} of the flipped bits are found")
    assert offenders == []


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proofs")


def prove(path: Path, source: Path = MODEL, **more: Any) -> tuple[ProofFigures, list[str]]:
    """Return the figures of a proof, and its problems as text."""
    report = verify(path, source, checks=["metadata"], prove=True, **more)
    figures = report.figures(ProofFigures)
    assert figures is not None, report.results["proof"].skipped
    return figures, [str(each) for each in report.problems]


def verdicts(figures: ProofFigures) -> dict[str, Verdict]:
    return {each.name: each.verdict for each in figures.tensors}


RECIPES = ("Q2_K", "Q3_K_M", "Q4_0", "Q4_1", "Q5_0", "Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS", "IQ3_S")


def test_what_convert_writes_is_reproduced_and_its_recipe_named(scratch: Path) -> None:
    offenders: list[str] = []
    for recipe in (*RECIPES, "MXFP4", "TQ2_0"):
        out = scratch / f"{recipe}.gguf"
        convert(MODEL, out, quant=recipe)
        figures, problems = prove(out)
        made = figures.counts, figures.recipe, figures.additions, problems
        if made != ({"reproduced": 30}, recipe, (), []):
            offenders.append(f"{recipe}: {made}")
    for dtype in ("f32", "bf16", "f16"):
        out = scratch / f"{dtype}.gguf"
        convert(MODEL, out, dtype=dtype)
        figures, problems = prove(out)
        if figures.counts != {"reproduced": 30} or problems:
            offenders.append(f"{dtype}: {figures.counts}, {problems}")
    assert offenders == []


def test_with_an_importance_matrix_files_are_proved_and_with_the_matrix_reproduced(
    scratch: Path,
) -> None:
    offenders: list[str] = []
    for recipe in (*RECIPES, "IQ2_XS"):
        out = scratch / f"{recipe}-weighted.gguf"
        convert(MODEL, out, quant=recipe, imatrix=IMPORTANCE, force=True)
        figures, problems = prove(out)
        again, others = prove(out, imatrix=IMPORTANCE)
        weighted = [each for each in figures.tensors if ENCODINGS[each.encoding].takes_importance]
        told = {each.verdict for each in weighted if find_layout(ENCODINGS[each.encoding])}
        # Codes of types with grids are not the nearest ones.
        rest = {each.verdict for each in weighted} - told - {Verdict.REPRODUCED}
        if (
            problems
            or others
            or not told <= {Verdict.PROVED, Verdict.REPRODUCED}
            or not rest <= {Verdict.BOUNDED}
            or again.counts != {"reproduced": 30}
            or figures.recipe != recipe
            or ({figures.uses_importance, again.uses_importance} != {True} and recipe != "Q8_0")
        ):
            offenders.append(f"{recipe}: {figures.counts}, {again.counts}, {problems}")
    assert offenders == []


# The ends of the names of scales.
SCALES = ("weight_scale", "weight_scale_inv", "scales", "absmax", "SCB")
SCHEMES = (
    "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "W8A16", "W4A16", "NVFP4A16", "NVFP4", "MXFP4",
    "GPTQ", "GPTQ-8bit", "AWQ", "MLX-4bit", "MLX-8bit", "MLX-mxfp4", "BNB-NF4", "BNB-INT8",
)  # fmt: skip


def test_the_schemes_of_serving_engines_are_reproduced_and_changed_bytes_are_found(
    scratch: Path,
) -> None:
    offenders: list[str] = []
    for scheme in (*SCHEMES, "W4A16:group=64,symmetric=no"):
        out = scratch / scheme
        convert(MODEL, out, quant=scheme, force=True)
        figures, problems = prove(out)
        if problems or figures.counts != {"reproduced": 30}:
            offenders.append(f"{scheme}: {figures.counts}, {problems}")
        sampled, problems = prove(out, sample=0.2)
        if problems or sampled.counts.keys() != {"reproduced", "proved"}:
            offenders.append(f"{scheme}, a sample: {sampled.counts}, {problems}")
        target = out / "model.safetensors"
        header = header_of(open_weights(target))
        # The codes of the layer's matrix are its largest tensor.
        mine = {name: each for name, each in header.tensors.items() if ".0.mlp.down_proj" in name}
        codes = max(mine, key=lambda name: mine[name].nbytes)
        scales = next(name for name in mine if name.endswith(SCALES))
        stored = target.read_bytes()
        for part, place in ((codes, 777), (scales, 0)):
            raw = bytearray(stored)
            raw[header.extents[part].offset + place] ^= 0x44 if part == codes else 0x01
            target.write_bytes(raw)
            figures, found = prove(out)
            wrong = [each.name for each in figures.tensors if each.verdict is Verdict.OTHER]
            if len(wrong) != 1 or not any("layers.0.mlp.down_proj" in each for each in found):
                offenders.append(f"{scheme}: a changed byte of {part} was not found: {found}")
    assert offenders == []


def test_an_adapter_merged_before_packing_is_found_in_the_schemes(scratch: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    source = write_changed(scratch / "merged-for-schemes", name, merge_lora)
    offenders: list[str] = []
    for scheme in SCHEMES:
        out = scratch / "merged-scheme"
        convert(source, out, quant=scheme, force=True)
        figures, _ = prove(out)
        wrong = {each.name for each in figures.tensors if each.verdict is Verdict.OTHER}
        # Engines join these, so they have one scale of the whole weight.
        if name not in wrong or not wrong <= {name, name.replace("up", "gate")}:
            offenders.append(f"{scheme}: {wrong}, {figures.counts}")
    assert offenders == []


def test_a_file_made_by_way_of_float16_is_recognized(scratch: Path) -> None:
    source = scratch / "float32"
    shutil.copytree(MODEL, source)
    tensors = {
        name: np.asarray(node.data().astype("f32")) for name, node in open_weights(MODEL).items()
    }
    random = np.random.default_rng(1)
    exact = {
        name: (array * (1 + 1e-4 * random.standard_normal(array.shape))).astype(np.float32)
        for name, array in tensors.items()
    }
    convert(exact, source / "model.safetensors", force=True)
    between, out = scratch / "between.gguf", scratch / "through.gguf"
    convert(source, between, dtype="f16")
    convert(between, out, quant="Q4_K_M", imatrix=IMPORTANCE)
    figures, problems = prove(out, source)
    assert problems == []
    assert figures.through == "F16"
    assert figures.counts.keys() == {"reproduced", "proved"}


def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def merge_lora(array: NDArray[np.float32]) -> NDArray[np.float32]:
    random = np.random.default_rng(3)
    left, right = random.standard_normal((2, 2, max(array.shape))) * 0.02
    return array + (left[:, : array.shape[0]].T @ right[:, : array.shape[1]]).astype(np.float32)


def tune_row(array: NDArray[np.float32]) -> NDArray[np.float32]:
    made = array.copy()
    made[5] *= 1 + 0.02 * np.random.default_rng(4).standard_normal(array.shape[1])
    return made


def swap_rows(array: NDArray[np.float32]) -> NDArray[np.float32]:
    made = array.copy()
    made[[3, 9]] = made[[9, 3]]
    return made


CHANGES: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "a LoRA adapter was merged": merge_lora,
    "a row was tuned": tune_row,
    "two rows were exchanged": swap_rows,
}


def write_changed(
    out: Path, name: str, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> Path:
    """Write the model with a changed matrix, in BF16, and return its directory."""
    shutil.copytree(MODEL, out)
    tensors = {
        each: np.asarray(node.data().astype("f32")) for each, node in open_weights(MODEL).items()
    }
    tensors[name] = rounded(np.ascontiguousarray(change(tensors[name]), np.float32))
    convert(tensors, out / "model.safetensors", dtype="bf16", force=True)
    return out


def test_changes_before_quantization_are_found_in_each_type(scratch: Path) -> None:
    name, where = "model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"
    offenders: list[str] = []
    for what, change in CHANGES.items():
        changed = write_changed(scratch / what.replace(" ", "-"), name, change)
        for recipe in (*RECIPES, "MXFP4"):
            for imatrix in (None, IMPORTANCE):
                out = scratch / "changed.gguf"
                convert(changed, out, quant=recipe, imatrix=imatrix, force=True)
                figures, problems = prove(out)
                wrong = [each.name for each in figures.tensors if each.verdict is Verdict.OTHER]
                if recipe == "IQ3_S" and imatrix is not None and change is tune_row:
                    # The importance can explain so few changed codes.
                    assert verdicts(figures)[where] is Verdict.BOUNDED
                    continue
                if wrong != [where] or not any(where in each for each in problems):
                    offenders.append(f"{what}, {recipe}, {imatrix}: {wrong}, {problems}")
    assert offenders == []


def test_exchanged_and_tuned_rows_are_found_in_the_schemes(scratch: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    offenders: list[str] = []
    for change in (swap_rows, tune_row):
        source = write_changed(scratch / f"{change.__name__}-for-schemes", name, change)
        for scheme in ("FP8", "W4A16", "AWQ", "MLX-4bit", "BNB-NF4"):
            out = scratch / "changed-scheme"
            convert(source, out, quant=scheme, force=True)
            figures, problems = prove(out)
            # A row that was exchanged is not a factor of rows, as AWQ has.
            found = {each.name: each.wrong_rows for each in figures.tensors
                     if each.verdict is Verdict.OTHER}  # fmt: skip
            rows = {(3, 9), (5,)}
            if found.keys() != {name} or found[name] not in rows or not problems:
                offenders.append(f"{change.__name__}, {scheme}: {found}, {figures.counts}")
    assert offenders == []


def test_one_other_row_of_a_reproduced_file_is_not_called_the_rounding_of_a_build(
    scratch: Path,
) -> None:
    def tune(array: NDArray[np.float32]) -> NDArray[np.float32]:
        made = array.copy()
        noise = np.random.default_rng(4).standard_normal(array.shape[1])
        made[229] += 0.01 * noise * np.sqrt(np.mean(made[229] ** 2))
        return made

    where = "blk.0.attn_output.weight"
    source = write_changed(scratch / "one-row", "model.layers.0.self_attn.o_proj.weight", tune)
    offenders: list[str] = []
    for recipe in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        out = scratch / "one-row.gguf"
        # The codes are those of some scale, so only the bytes tell.
        convert(source, out, quant=recipe, force=True)
        figures, _ = prove(out)
        found = {each.name: each.wrong_rows for each in figures.tensors
                 if each.verdict is Verdict.OTHER}  # fmt: skip
        if found != {where: (229,)}:
            offenders.append(f"{recipe}: {found}")
    assert offenders == []


def test_changed_bits_of_a_reproduced_file_are_located(scratch: Path) -> None:
    offenders: list[str] = []
    random = np.random.default_rng(5)
    for recipe in RECIPES:
        out = scratch / "bits.gguf"
        convert(MODEL, out, quant=recipe, force=True)
        raw = bytearray(out.read_bytes())
        header = header_of(open_weights(out))
        name = "blk.2.attn_output.weight"
        info, start = header.tensors[name], header.extents[name].offset
        row = 11
        place = (
            start
            + row * info.nbytes // info.shape[0]
            + int(random.integers(info.nbytes // info.shape[0]))
        )
        raw[place] ^= 1 << int(random.integers(8))
        out.write_bytes(raw)
        figures, problems = prove(out)
        found = {
            each.name: each.wrong_rows for each in figures.tensors if each.verdict is Verdict.OTHER
        }
        if found.keys() != {name} or not any(name in each for each in problems):
            offenders.append(f"{recipe}: {found}, {problems}")
    assert offenders == []


def test_what_does_not_follow_from_the_source_is_listed(scratch: Path) -> None:
    out = scratch / "added.gguf"
    settings = {"general.name": "another", "tokenizer.chat_template": "{{ 1 }}"}
    convert(MODEL, out, quant="Q8_0", metadata=settings)
    figures, problems = prove(out)
    assert set(figures.additions) == settings.keys()
    assert any("chat_template" in each for each in problems)
    assert not any("general.name" in each for each in problems)


def test_another_token_is_found(scratch: Path) -> None:
    changed = scratch / "other-token"
    shutil.copytree(MODEL, changed)
    path = changed / "tokenizer.json"
    document = json.loads(path.read_text())
    vocabulary = document["model"]["vocab"]
    one, other = sorted(vocabulary)[100:102]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(document))
    out = scratch / "other-token.gguf"
    convert(changed, out, quant="Q4_K_M")
    figures, problems = prove(out)
    assert "tokenizer.ggml.tokens" in figures.additions
    assert any("token" in each for each in problems)


def test_scaled_matrices_are_not_decidable(scratch: Path) -> None:
    out = scratch / "scaled"
    convert(MODEL, out, quant="AWQ:scaled=yes", imatrix=IMPORTANCE)
    report = verify(out, MODEL, prove=True)
    figures = report.figures(ProofFigures)
    assert figures is not None
    assert report.problems == []
    assert report.results["proof"].verdict == "partial"
    assert any(each.verdict is Verdict.UNDECIDED for each in figures.tensors)
    assert any("AWQ" in note for note in report.notes)


def test_a_sample_reads_as_many_rows_as_its_statement_needs(scratch: Path) -> None:
    source, out = scratch / "tall", scratch / "tall.gguf"
    source.mkdir()
    random = np.random.default_rng(0)
    rows = 4096
    tensors = {"a.weight": (random.standard_normal((rows, 256)) * 0.02).astype(np.float32)}
    convert(tensors, source / "model.safetensors")
    convert(source / "model.safetensors", out, quant="Q4_K", names="keep")
    figures, problems = prove(out, source / "model.safetensors", sample=0.01)
    (tensor,) = figures.tensors
    assert problems == []
    wrong = 41
    chance = 1.0
    for place in range(wrong):
        chance *= (rows - tensor.checked - place) / (rows - place)
    assert chance < 1 - CONFIDENCE
    assert tensor.checked < rows / 5
    assert (figures.most_wrong, figures.confidence) == (0.01, CONFIDENCE)


def test_a_sample_of_types_that_are_compared_by_distance_reads_its_rows_only(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = scratch / "by-distance.gguf"
    convert(MODEL, out, quant="IQ3_S", imatrix=IMPORTANCE)
    monkeypatch.setattr("weightctl.verify.checks.proof.measure_pair", None)
    figures, problems = prove(out, sample=0.2)
    assert problems == []
    assert figures.counts["within the bound"]


def test_the_importance_of_embeddings_is_used(scratch: Path) -> None:
    shapes = {name: info.shape for name, info in header_of(open_weights(MODEL)).tensors.items()}
    width = shapes["model.embed_tokens.weight"][-1]
    matrix, out = scratch / "embedding.dat", scratch / "embedding.gguf"
    imatrix_dat(matrix, {"token_embd.weight": (weigh(5, 1.5, width), 1)})
    convert(MODEL, out, quant="Q4_K", imatrix=matrix, tensor_types={"token_embd": "IQ3_S"})
    figures, problems = prove(out, imatrix=str(matrix))
    assert problems == []
    assert verdicts(figures)["token_embd.weight"] is Verdict.REPRODUCED


def test_the_importance_matrix_of_another_model_is_refused(scratch: Path) -> None:
    out = scratch / "weighted-by-another.gguf"
    convert(MODEL, out, quant="Q4_K_M")
    for values in (64, 256 * 3 + 1):
        matrix = imatrix_dat(
            scratch / "another.dat", {"blk.0.attn_q.weight": (np.ones(values, np.float32), 1)}
        )
        report = verify(out, MODEL, checks=["metadata"], prove=True, imatrix=matrix)
        (problem,) = report.results["proof"].problems
        assert f"has {values} values for `blk.0.attn_q.weight`" in problem.text
        assert "made with this model" in problem.hint


def test_requests_without_a_proof_are_refused(scratch: Path) -> None:
    out = scratch / "plain.gguf"
    convert(MODEL, out, quant="Q8_0")
    with pytest.raises(ConversionError, match="--sample applies only to a proof"):
        verify(out, MODEL, sample=0.1)
    with pytest.raises(ConversionError, match="--imatrix applies only to a proof"):
        verify(out, MODEL, imatrix=IMPORTANCE)
    with pytest.raises(ConversionError, match="must be between 0 and 1"):
        verify(out, MODEL, prove=True, sample=0.0)
    with pytest.raises(ConversionError, match="needs a reference"):
        verify(out, prove=True)
    with pytest.raises(ConversionError, match="does not compare"):
        verify(out, MODEL, prove=True, compare=True)
