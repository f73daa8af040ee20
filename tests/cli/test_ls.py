"""The output of `ls` for people and scripts."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tracemalloc
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_checkpoints
from build import F32, Gguf, Tensor, safetensors_of
from commands import TINY
from commands import run_command as weightctl
from lazy import torch
from terminal import on_a_terminal, without_color
from weightctl import Plan, WeightData, convert
from weightctl.cli.outline import outline
from weightctl.cli.overview import document
from weightctl.families import FAMILIES
from weightctl.families.diffusion import list_diffusion_families
from weightctl.formats.open.opening import open_weights
from weightctl.inspection.contents import Contents
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import text
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import Checkpoint, header_of, root_of
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from conftest import Completed

    Run = Callable[..., Completed]


def tree_of(shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    return as_checkpoint(
        {
            name: WeightData.from_numpy(np.zeros(shape, np.float32), name)
            for name, shape in shapes.items()
        }
    )


def labels(
    names: Iterable[str] | dict[str, tuple[int, ...]], limit: int | None = None
) -> list[str]:
    shapes = names if isinstance(names, dict) else dict.fromkeys(names, (2, 2))
    weights = tree_of(shapes)
    lines = outline(
        root_of(weights), header_of(weights).tensors, lambda i: (i.shape, 1, i.nbytes), limit
    )
    return [f"{'  ' * line.depth}{line.label} x{line.times}" for line in lines]


def test_layers_that_are_alike_are_folded() -> None:
    assert labels(f"layers.{i}.{j}.weight" for i in range(12) for j in "ab") == [
        "layers.[0-11] x12",
        "  a.weight x1",
        "  b.weight x1",
    ]


def test_an_odd_layer_is_shown_apart() -> None:
    shapes = {f"layers.{i}.{j}": (2, 2) for i in range(6) for j in "ab"} | {"layers.3.a": (4, 4)}
    assert labels(shapes) == [
        "layers x1",
        "  [0-2,4-5] x5",
        "    a x1",
        "    b x1",
        "  3 x1",
        "    a x1",
        "    b x1",
    ]


def test_layers_that_differ_only_in_types_are_one_line_with_all_types_and_sizes() -> None:
    types = {f"layers.{i}.{j}": "AB"[i in {1, 3} and j == "b"] for i in range(4) for j in "ab"}
    lines = outline(
        build_tree(types),
        types,
        lambda kind: (kind, 1, 10 if kind == "A" else 15),
        loosen=lambda _: None,
    )
    assert [(line.label, line.times, line.entries, line.tensors, line.sizes) for line in lines] == [
        ("layers.[0-3]", 4, (), 8, (90,)),
        ("a", 1, ("A",), 1, (10,)),
        ("b", 1, ("A", "B"), 1, (10, 15)),
    ]


def test_experts_inside_layers_are_folded_too() -> None:
    names = [
        f"layers.{i}.experts.{e}.{part}"
        for i in range(2)
        for e in range(8)
        for part in ("up", "down")
    ]
    assert labels([*names, "layers.0.norm", "layers.1.norm"]) == [
        "layers.[0-1] x2",
        "  experts.[0-7] x8",
        "    up x1",
        "    down x1",
        "  norm x1",
    ]


def test_a_branch_with_one_thing_below_shares_its_line() -> None:
    assert labels(["a.b.c.weight"]) == ["a.b.c.weight x1"]


def test_depth_cuts_the_tree() -> None:
    assert labels(
        [f"model.layers.{i}.{j}" for i in range(2) for j in "ab"] + ["model.norm"], 1
    ) == ["model x1"]


def test_numbered_tensors_fold() -> None:
    assert labels(["scale.0", "scale.1", "scale.2"]) == ["scale.[0-2] x3"]


def test_ls_shows_the_model_at_a_glance() -> None:
    lines = weightctl("ls", TINY).stdout.splitlines()
    assert lines[0] == f"{TINY}: llama, safetensors"
    assert lines[1] == "30 tensors, 1.94 M parameters, 3.87 MB, 16.00 bits per weight"
    assert lines[2] == "file 3.87 MB, BF16, context length 512"
    assert any(
        re.fullmatch(r"  layers\.\[0-2\]  x3 +3 x 9 tensors +3\.35 MB", line) for line in lines
    )
    assert all(len(line) <= 80 for line in lines[1:])


def test_the_title_has_the_path_as_typed_and_the_name_where_it_is_another(tmp_path: Path) -> None:
    small_checkpoints.write(
        tmp_path, "here", {"a": small_checkpoints.numbers("F32", 2)}, _name_or_path="org/Model"
    )
    small_checkpoints.split(tmp_path)

    def title(path: str) -> str:
        return weightctl("ls", path, cwd=tmp_path).stdout.splitlines()[0]

    assert title("here/") == "here/: org/Model, safetensors"
    assert title("split") == "split: safetensors, 2 files"
    small_checkpoints.write(
        tmp_path, "same", {"a": small_checkpoints.numbers("F32", 2)}, _name_or_path="same"
    )
    assert title("./same") == "./same: safetensors"


def test_quiet_leaves_out_the_summary() -> None:
    done = weightctl("ls", TINY, "--quiet")
    assert done.stdout.startswith("lm_head.weight ")
    assert done.stderr == ""


def test_flat_gives_each_tensor_a_line_to_cut() -> None:
    lines = [line.split() for line in weightctl("ls", TINY, "--flat").stdout.splitlines()]
    assert len(lines) == 30
    assert ["model.layers.2.self_attn.k_proj.weight", "64x256", "BF16", "32.8", "kB"] in lines


def test_json_says_where_each_tensor_is() -> None:
    listed = json.loads(weightctl("ls", TINY, "--json").stdout)
    assert listed["format"] == "safetensors"
    assert listed["architecture"] == "llama"
    assert listed["totals"]["parameters"] == 1_935_104
    (norm,) = [each for each in listed["tensors"] if each["name"] == "model.norm.weight"]
    raw = Path(norm["file"]).read_bytes()
    from weightctl import open_weights

    expected = open_weights(TINY)["model.norm.weight"].data().view()
    assert raw[norm["offset"] : norm["offset"] + norm["bytes"]] == expected
    assert (norm["shape"], norm["encoding"]) == ([256], "BF16")


def test_a_reader_that_stops_early_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    save(Plan.copy(tree_of({f"t{i}.{i % 7}x": (1,) for i in range(9000)}), "safetensors"),
         target(str(path)))  # fmt: skip
    done = subprocess.run(
        f"{sys.executable} -m weightctl ls --flat {path} | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "0"


def test_tied_names_are_shown_and_counted_once(tmp_path: Path) -> None:
    weights = tree_of({"embed.weight": (8, 4)})
    tied = as_checkpoint(
        {"embed.weight": weights["embed.weight"].data()}, {"head.weight": text("embed.weight")}
    )
    path = tmp_path / "tied.safetensors"
    save(Plan.copy(tied, "safetensors"), target(str(path)))
    shown = weightctl("ls", path).stdout
    assert "1 tensor, 32 parameters" in shown
    assert re.search(r"head\.weight = embed\.weight +tied", shown)


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    save(Plan.copy(tree_of({"a\x1b[2Jb\nc": (1,)}), "safetensors"), target(str(path)))
    for arguments in ([], ["--flat"], ["--json"]):
        shown = weightctl("ls", path, *arguments).stdout
        assert "\x1b" not in shown
        assert "a\\x1b[2Jb" in shown or "a\\u001b[2Jb" in shown


@pytest.mark.parametrize("columns", [80, 200])
def test_lines_fit_a_terminal(columns: int, tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    names = {f"a_rather_long_name_{'x' * 40}_{kind}.weight_of_something": (8, 8) for kind in "abc"}
    save(Plan.copy(tree_of(names), "safetensors"), target(str(path)))
    shown = without_color(on_a_terminal(columns, "ls", path))
    lines = shown.splitlines()
    # A name that leaves no room for the shape has a line of its own.
    assert len(lines) == (10 if columns == 80 else 7)
    assert all(len(line) <= columns for line in lines[1:])
    assert ("…" in shown) == (columns == 80)
    assert "weight_of_something" in shown


def test_color_is_for_terminals_that_want_it() -> None:
    assert "\x1b[" in on_a_terminal(80, "ls", TINY)
    assert "\x1b[" not in on_a_terminal(80, "ls", TINY, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(80, "ls", TINY, TERM="dumb")
    assert "\x1b[" in on_a_terminal(80, "ls", "nowhere")
    assert "\x1b[" not in on_a_terminal(80, "ls", "nowhere", NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(80, "ls", "nowhere", TERM="dumb")
    assert "\x1b[" not in on_a_terminal(80, "ls", TINY, "--color", "never", FORCE_COLOR="1")
    assert "\x1b[" in on_a_terminal(80, "ls", TINY, "--color", "always", NO_COLOR="1")
    assert "\x1b[" in weightctl("ls", TINY, FORCE_COLOR="1").stdout
    assert "\x1b[" in weightctl("ls", "nowhere", "--color", "always").stderr
    assert "is not one of" in weightctl("ls", TINY, "--color", "red").stderr
    for options in ([], ["--flat"], ["-l"], ["--hash"], ["--meta"], ["--json"]):
        done = weightctl("ls", TINY, *options)
        assert "\x1b" not in done.stdout + done.stderr


def test_an_encoding_without_the_letters_is_not_a_traceback(
    weightctl_process: Run, tmp_path: Path
) -> None:
    path = tmp_path / "名前.safetensors"
    save(Plan.copy(tree_of({"重み": (1,)}), "safetensors"), target(str(path)))
    done = weightctl_process("ls", path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\\u91cd\\u307f" in done.stdout


def test_a_missing_file_is_an_error_with_a_hint(tmp_path: Path) -> None:
    done = weightctl("ls", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path / 'nothing'}: No such file or directory")
    assert "hint: " in done.stderr


def test_an_unknown_option_is_a_usage_error() -> None:
    assert weightctl("ls", "--bogus").returncode == 2


def test_version_is_that_of_the_package() -> None:
    import weightctl as package

    shown = weightctl("--version").stdout.splitlines()
    assert shown[0] == f"weightctl {package.__version__}"


def test_version_says_which_kernels_serve(weightctl_process: Run) -> None:
    from weightctl.kernels import active, levels

    none = "none; NumPy is used instead (no C compiler was found during installation)"
    assert weightctl_process("--version").stdout.splitlines()[1] == f"kernels: {active() or none}"
    switched = weightctl_process("--version", WEIGHTCTL_KERNELS="off").stdout.splitlines()[1]
    assert switched.startswith("kernels: none; NumPy is used instead (")
    assert ("no C compiler" in switched) is not bool(levels())


def test_version_says_which_level_is_none(weightctl_process: Run) -> None:
    from weightctl.kernels import levels

    shown = weightctl_process("--version", WEIGHTCTL_KERNELS="nonsense").stdout.splitlines()[1]
    assert ("'nonsense' is not supported here" in shown) is bool(levels())


def test_wide_letters_keep_columns_and_lines_whole(tmp_path: Path) -> None:
    tensors = {
        "重み" * 30: small_checkpoints.numbers("F32", 2),
        "b" * 70: small_checkpoints.numbers("F32", 3),
    }
    small_checkpoints.write(tmp_path, "wide", tensors)
    shown = on_a_terminal(80, "ls", "wide", "--quiet", cwd=tmp_path, NO_COLOR="1")
    wide, below, name, last = shown.splitlines()
    cells = sum(2 if unicodedata.east_asian_width(char) == "W" else 1 for char in wide)
    assert cells in {79, 80}
    assert "…" in wide
    assert name == "b" * 70
    assert len(below) == len(last) <= 80


def test_several_checkpoints_follow_one_another(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.tied(tmp_path)
    shown = weightctl("ls", "small", "tied", "--depth", "1", cwd=tmp_path).stdout
    first, second = shown.split("\n\ntied: ")
    assert first.startswith("small: llama, safetensors\n8 tensors")
    assert second.startswith("safetensors\n1 tensor, ")


def test_a_checkpoint_without_tensors_is_listed(tmp_path: Path) -> None:
    small_checkpoints.write(tmp_path, "bare", {})
    done = weightctl("ls", "bare", cwd=tmp_path)
    assert done.stdout == "bare: safetensors\n0 tensors, 0 parameters, 0 B\nfile 42 B\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_the_supported_families_are_listed_without_a_model() -> None:
    done = weightctl("ls", "--families")
    assert done.returncode == 0
    text, diffusion = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert [line.split("  ")[0] for line in text] == ["family", *(sorted(FAMILIES))]
    assert [line.split("  ")[0] for line in diffusion] == [
        "diffusion family",
        *sorted(list_diffusion_families()),
    ]
    assert re.search(r"^mixtral +mixtral +llama +yes +yes$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [("--families", "--json"), ("--json", "--families")])
def test_the_supported_families_are_listed_as_json(arguments: tuple[str]) -> None:
    families = json.loads(weightctl("ls", *arguments).stdout)["families"]
    assert [each["family"] for each in families] == sorted(FAMILIES)
    (found,) = (each for each in families if each["family"] == "mixtral")
    assert found == {
        "family": "mixtral",
        "model_types": ["mixtral"],
        "gguf_architecture": "llama",
        "transformers_classes": ["MixtralForCausalLM"],
        "runs_in_verify": True,
        "vllm_layout": True,
    }


# The facts in the summary of a listing: file size, quantization, context length, license.


def summary(path: Path) -> list[str]:
    done = weightctl("ls", path)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\n\n")[0].splitlines()


def listed(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(weightctl("ls", path, "--json").stdout)
    return document


def write_gguf(path: Path, **values: tuple[str, object]) -> Path:
    stated = {key.replace("__", "."): value for key, value in values.items()}
    path.write_bytes(Gguf().file([Tensor("token_embd.weight", (4, 16), F32, bytes(256))], stated))
    return path


@pytest.mark.parametrize(
    ("number", "name"),
    [(15, "Q4_K_M"), (7, "Q8_0"), (27, "IQ3_M"), (28, "IQ2_S"), (1024, "F32"), (999, "F32")],
)
def test_a_gguf_shows_its_file_type_context_length_and_license(
    tmp_path: Path, number: int, name: str
) -> None:
    path = write_gguf(
        tmp_path / "a.gguf",
        general__architecture=("string", "llama"),
        general__file_type=("u32", number),
        general__license=("string", "apache-2.0"),
        llama__context_length=("u32", 8192),
    )
    size = path.stat().st_size
    line = f"file {size} B, {name}, context length 8,192, license apache-2.0"
    assert summary(path)[2] == line
    found = listed(path)
    assert (found["file_bytes"], found["quantization"]) == (size, name)
    assert (found["context_length"], found["license"]) == (8192, "apache-2.0")


def test_a_directory_shows_its_scheme_and_the_license_of_its_readme(tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    (path / "README.md").write_text("---\nlicense: other\nlicense_name: example-terms\n---\nText\n")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    line = summary(path)[-1]
    assert line.endswith(", AWQ 4-bit, context length 4,096, license example-terms")


def test_what_a_checkpoint_does_not_state_is_left_out(tmp_path: Path) -> None:
    path = small_checkpoints.split(tmp_path)
    assert summary(path)[-1] == "262 kB in 2 files, BF16"
    found = listed(path)
    assert (found["context_length"], found["license"]) == (None, None)


@pytest.mark.parametrize("stated", ["a lot", True, -1, [2048], None])
def test_a_context_length_that_is_not_one_is_left_out(tmp_path: Path, stated: object) -> None:
    tensors = {"a": small_checkpoints.numbers("F32", 2)}
    path = small_checkpoints.write(tmp_path, "m", tensors, max_position_embeddings=stated)
    assert listed(path)["context_length"] is None


def test_a_license_cannot_move_the_cursor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", general__license=("string", "\x1b[2J" + "x" * 1000))
    done = weightctl("ls", path)
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80


def test_patterns_do_not_change_the_quantization(tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    found = json.loads(weightctl("ls", path, "--include", "*embed*", "--json").stdout)
    assert found["quantization"] == "AWQ 4-bit"


def write_config(folder: Path) -> None:
    config = {
        "model_type": "llama", "_name_or_path": "org/Big", "hidden_size": 16, "vocab_size": 32,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


def test_a_foreign_file_beside_a_config_is_not_called_by_that_name(tmp_path: Path) -> None:
    write_config(tmp_path)
    vae = tmp_path / "vae.safetensors"
    vae.write_bytes(safetensors_of({"conv.weight": small_checkpoints.numbers("F32", 8, 3, 3, 3)}))
    other = write_gguf(tmp_path / "other.gguf", general__architecture=("string", "qwen2"))
    assert summary(vae)[0] == f"{vae}: safetensors"
    assert summary(other)[0] == f"{other}: qwen2, gguf"
    for path in (vae, other):
        found = listed(path)
        assert (found["name"], found["context_length"], found["license"]) == (None, None, None)


@pytest.mark.parametrize("name", ["model.safetensors", "mine.safetensors"])
def test_a_file_that_a_config_describes_has_its_name(tmp_path: Path, name: str) -> None:
    write_config(tmp_path)
    path = tmp_path / name
    tensors = {"model.embed_tokens.weight": small_checkpoints.numbers("F32", 32, 16)}
    path.write_bytes(safetensors_of(tensors))
    assert summary(path)[0] == f"{path}: org/Big, llama, safetensors"
    assert summary(path)[-1].endswith("F32, context length 4,096, license mit")


@pytest.mark.parametrize("make", [small_checkpoints.small, small_checkpoints.awq])
def test_ls_and_verify_count_the_same_parameters(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    parameters = listed(path)["totals"]["parameters"]
    verified = weightctl("verify", path, "--check", "finite").stdout
    assert f" {parameters:,} parameters, " in verified


def test_scales_of_activations_are_not_parameters(tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    before = listed(path)["totals"]["parameters"]
    scale = {"model.layers.0.self_attn.k_scale": small_checkpoints.numbers("F32", 1)}
    (path / "more.safetensors").write_bytes(safetensors_of(scale))
    weight_map = dict.fromkeys(scale, "more.safetensors")
    weight_map |= {each["name"]: "model.safetensors" for each in listed(path)["tensors"]}
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = listed(path)
    assert found["totals"]["tensors"] == 16
    assert found["totals"]["parameters"] == before


# `ls --fit`: whether a model fits into a memory, and how many layers fit.


def test_a_model_that_fits_is_shown_with_what_needs_the_memory() -> None:
    done = weightctl("ls", TINY, "--fit", "24GiB", "--context", "8192")
    note = "note: the model is made for 512 tokens, and the context has 8,192\n"
    assert (done.returncode, done.stderr) == (0, note)
    assert "fits into 24GiB with a context of 8,192 tokens" in done.stdout
    # 3 layers with 2 KV heads of 32 elements: keys and values of 2 bytes.
    line = next(each for each in done.stdout.splitlines() if "KV cache" in each)
    assert " ".join(line.split()) == (
        "KV cache, full attention 6.29 MB 3 layers, 8,192 tokens, F16"
    )


def test_a_model_that_does_not_fit_is_a_finding() -> None:
    done = weightctl("ls", TINY, "--fit", "9MB", "-q")
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit into 9MB with a context of 512 tokens\n")
    assert "1 of 3 layers and the output fit: --n-gpu-layers 2" in done.stdout


def test_the_document_has_the_estimate() -> None:
    options = ("--fit", "1GB", "--context", "1000", "--kv-type", "q8_0", "--json")
    fit = json.loads(weightctl("ls", TINY, *options).stdout)["fit"]
    # The context is rounded up to 1,024 tokens; 32 elements of Q8_0 take 34 bytes.
    nbytes = 3 * 1024 * 2 * 2 * 34
    assert fit["caches"] == [{"kind": "gqa", "layers": 3, "tokens": 1024, "bytes": nbytes}]
    assert (fit["fits"], fit["fitting_layers"], fit["gpu_layers"]) == (True, 3, 4)
    parts = ("weights", "compute", "overhead")
    assert fit["bytes"] == nbytes + sum(fit[each] for each in parts)
    assert fit["overhead"] == 50_000_000


def test_a_larger_memory_holds_at_least_as_many_layers() -> None:
    from weightctl import open_weights
    from weightctl.families import recognize
    from weightctl.families.memory import MemoryOptions, estimate_memory

    found = estimate_memory(recognize(open_weights(TINY)), MemoryOptions.of(4096))
    fitting = [found.fit(memory).gpu_layers for memory in range(0, 30_000_000, 500_000)]
    assert fitting == sorted(fitting)
    assert {*fitting} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--fit 24", "has no unit"),
        ("--fit 24GB --kv-type q4_k", "has no KV cache of type Q4_K"),
        ("--fit 24GB --kv-type q9", "q9"),
        ("--fit 24GB --context 99999999999", "is not possible"),
        ("--context 512", "can only be used with --fit"),
        ("--kv-type f16", "can only be used with --fit"),
        ("--fit 24GB --flat", "cannot be combined"),
        ("--fit 24GB --scan", "cannot be combined"),
    ],
)
def test_options_without_a_meaning_are_refused(options: str, message: str) -> None:
    done = weightctl("ls", TINY, *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_an_unsupported_family_is_refused(minilm: Path, tmp_path: Path) -> None:
    config = json.loads((minilm / "config.json").read_text()) | {"model_type": "unknown"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(minilm / "model.safetensors")
    done = weightctl("ls", tmp_path, "--fit", "24GB")
    assert done.returncode == 2
    assert "model family that weightctl does not support" in done.stderr


def test_no_torch_or_numpy_is_loaded() -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[1:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", program, "ls", str(TINY), "--fit", "1GB"]
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == 0


# The list with one tensor per line: details, order, digests, and selection.


def names(done: Completed) -> list[str]:
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_details_say_where_each_tensor_is(tmp_path: Path) -> None:
    path = small_checkpoints.split(tmp_path)
    heading, *lines = weightctl("ls", path, "-l").stdout.splitlines()
    assert heading.split() == ["tensor", "shape", "type", "size", "offset", "align", "file"]
    for line in lines:
        name, *_, offset, alignment, file = line.split()
        raw = (path / file).read_bytes()[int(offset) :]
        seed = 3 if name == "lm_head.weight" else 0
        assert raw == small_checkpoints.numbers("BF16", 4096, 16, seed=seed)[2]
        assert int(offset) % int(alignment) == 0
        assert int(offset) % (2 * int(alignment)) != 0


def test_quiet_details_have_no_heading(tmp_path: Path) -> None:
    lines = weightctl("ls", small_checkpoints.split(tmp_path), "-lq").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model.embed_tokens.weight", "lm_head.weight"]


def test_lines_can_be_sorted(tmp_path: Path) -> None:
    tensors = {
        f"layers.{n}.w": small_checkpoints.numbers("F32", size)
        for n, size in ((10, 2), (2, 9), (1, 4))
    }
    path = small_checkpoints.write(tmp_path, "unsorted", tensors)
    in_file = ["layers.10.w", "layers.2.w", "layers.1.w"]
    assert names(weightctl("ls", path, "--sort", "offset")) == in_file
    assert names(weightctl("ls", path, "--sort", "name")) == in_file[::-1]
    assert names(weightctl("ls", path, "--sort", "size")) == [
        "layers.2.w",
        "layers.1.w",
        "layers.10.w",
    ]
    document = json.loads(weightctl("ls", path, "--sort", "size", "--json").stdout)
    assert document["tensors"][0]["name"] == "layers.2.w"


def test_a_wrong_order_is_a_usage_error_that_names_the_right_ones() -> None:
    done = weightctl("ls", TINY, "--sort", "color")
    assert done.returncode == 2
    assert "'name', 'size', 'offset'" in done.stderr


def test_hashes_are_of_the_bytes() -> None:
    document = json.loads(weightctl("ls", TINY, "--hash", "--json").stdout)
    for tensor in document["tensors"]:
        raw = Path(tensor["file"]).read_bytes()[tensor["offset"] :][: tensor["bytes"]]
        assert tensor["sha256"] == hashlib.sha256(raw).hexdigest()
    lines = weightctl("ls", TINY, "--hash").stdout.splitlines()
    digests = {tensor["name"]: tensor["sha256"] for tensor in document["tensors"]}
    assert {line.split()[0]: line.split()[5] for line in lines} == digests


def test_equal_tensors_are_found_by_their_hashes(tmp_path: Path) -> None:
    done = weightctl("ls", small_checkpoints.small(tmp_path), "--hash")
    (line,) = [each for each in done.stdout.splitlines() if "layers.1.input_layernorm" in each]
    assert line.endswith("  = model.layers.0.input_layernorm.weight")
    assert done.stderr == "note: 2 tensors have the same bytes as another (=)\n"


def test_tensors_without_elements_and_of_other_shapes_are_not_equal(tmp_path: Path) -> None:
    tensors = {
        "a": small_checkpoints.numbers("F32", 0),
        "b": small_checkpoints.numbers("F32", 0),
        "c": small_checkpoints.numbers("F32", 2, 3),
        "d": small_checkpoints.numbers("F32", 3, 2),
    }
    done = weightctl("ls", small_checkpoints.write(tmp_path, "odd", tensors), "--hash")
    assert " = " not in done.stdout
    assert done.stderr == ""


def test_a_file_hashes_as_its_twin_in_the_other_byte_order(tmp_path: Path) -> None:
    little, big = (
        small_checkpoints.gguf(tmp_path),
        small_checkpoints.gguf(tmp_path, "big.gguf", ">"),
    )
    assert little.read_bytes() != big.read_bytes()
    assert weightctl("ls", little, "--hash").stdout == weightctl("ls", big, "--hash").stdout


def test_a_narrow_terminal_shows_the_beginning_of_hashes(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    wide = on_a_terminal(200, "ls", "small", "--hash", cwd=tmp_path)
    narrow = without_color(on_a_terminal(80, "ls", "small", "--hash", cwd=tmp_path))
    digest = hashlib.sha256(small_checkpoints.numbers("BF16", 32, 16)[2]).hexdigest()
    assert digest in wide
    assert digest not in narrow
    assert digest[:12] in narrow
    assert all(len(line) <= 80 for line in narrow.splitlines())


@pytest.mark.parametrize("option", ["--flat", "-l", "--hash"])
def test_several_checkpoints_follow_one_another_in_a_flat_list(tmp_path: Path, option: str) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.tied(tmp_path)
    shown = weightctl("ls", "small", "tied", option, cwd=tmp_path).stdout
    first, second = shown.split("\n\n")
    assert first.startswith("small:\n")
    assert second.startswith("tied:\n")


def test_an_error_in_one_checkpoint_leaves_the_others(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.tied(tmp_path)
    done = weightctl("ls", "small", "missing", "tied", "--json", cwd=tmp_path)
    assert done.returncode == 2
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["path"] for each in documents] == ["small", "missing", "tied"]
    assert ["error" in each for each in documents] == [False, True, False]
    assert done.stderr.startswith("error: missing: No such file or directory\n")


def test_names_are_chosen_as_listings_show_them(tmp_path: Path) -> None:
    path = small_checkpoints.mixture(tmp_path)
    done = weightctl("ls", path, "--flat", "--include", "*.experts.[0-1,7].w?.*",
                     "--exclude", "*.1.*")  # fmt: skip
    assert names(done) == [
        f"model.layers.0.block_sparse_moe.experts.{expert}.w{part}.weight"
        for expert in (0, 7)
        for part in (1, 2, 3)
    ]


def test_totals_are_of_what_is_chosen(tmp_path: Path) -> None:
    path = small_checkpoints.small(tmp_path)
    shown = weightctl("ls", path, "--include", "*norm*", "--include", "*q_proj*").stdout
    assert "5 of 8 tensors, 560 parameters, 1.12 kB, 16.00 bits per weight" in shown
    document = json.loads(weightctl("ls", path, "--include", "*norm*", "--json").stdout)
    assert document["totals"]["parameters"] == 48
    assert len(document["tensors"]) == 3


@pytest.mark.parametrize("pattern", ["*mlp.up_proj.weight", "*mlp*qzeros"])
def test_a_weight_in_parts_is_chosen_by_its_name_or_a_part(tmp_path: Path, pattern: str) -> None:
    shown = weightctl("ls", small_checkpoints.awq(tmp_path), "--include", pattern).stdout
    assert "2 of 7 tensors" in shown
    assert "512x256" in shown


def test_a_weight_in_parts_is_left_out_by_its_name(tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    shown = weightctl("ls", path, "--exclude", "*_proj.weight").stdout
    assert "AWQ" not in shown.partition("\n\n")[2]
    assert "_proj" not in weightctl("ls", path, "--flat", "--exclude", "*_proj.weight").stdout
    assert "AWQ 4-bit" in weightctl("ls", path, "--exclude", "*.scales").stdout
    assert ".scales" not in weightctl("ls", path, "--flat", "--exclude", "*.scales").stdout


@pytest.mark.parametrize("view", [[], ["--flat"], ["--json"]])
def test_choosing_nothing_is_not_an_error(view: list[str]) -> None:
    done = weightctl("ls", TINY, "--include", "nothing*", *view)
    assert done.returncode == 0
    assert done.stderr.endswith(": none of the 30 tensors matches --include and --exclude\n")
    assert "weight " not in done.stdout.replace("per weight", "")


# The roles of tensors in a listing: quantized weights, experts, ties, buffers, adapters.


def meanings(path: Path, *options: str) -> dict[str, Any]:
    done = weightctl("ls", path, "--json", *options)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_weight_in_three_tensors_is_one_line_with_its_bits(tmp_path: Path) -> None:
    shown = weightctl("ls", small_checkpoints.awq(tmp_path)).stdout
    assert re.search(r"mlp\.up_proj\.weight +512x256 +AWQ 4-bit, 4\.16 bits +68\.1 kB", shown)
    assert "qweight" not in shown
    assert "7 tensors (stored as 15)" in shown
    assert "AWQ 4-bit 204 kB (85.8 %), F16 33.8 kB (14.2 %)" in shown


def test_parameters_are_counted_on_what_the_tensors_stand_for(tmp_path: Path) -> None:
    totals = meanings(small_checkpoints.awq(tmp_path))["totals"]
    parameters = 64 * 256 + 2 * (512 * 256 + 256 * 256 + 256)
    assert totals["parameters"] == parameters
    assert totals["bits_per_weight"] == 8 * totals["bytes"] / parameters


def test_parts_say_in_flat_listings_what_they_are_part_of(tmp_path: Path) -> None:
    lines = weightctl("ls", small_checkpoints.awq(tmp_path), "--flat").stdout.splitlines()
    assert len(lines) == 15
    (line,) = [each for each in lines if "layers.1.mlp.up_proj.scales" in each]
    assert line.endswith("part of model.layers.1.mlp.up_proj.weight")


def test_json_has_the_weights_and_their_parts(tmp_path: Path) -> None:
    found = meanings(small_checkpoints.awq(tmp_path))
    assert found["logical"][0] == {
        "name": "model.layers.0.mlp.up_proj.weight",
        "shape": [512, 256],
        "scheme": "AWQ 4-bit",
        "bits_per_weight": 4.15625,
        "parts": [f"model.layers.0.mlp.up_proj.{part}" for part in ("qweight", "scales", "qzeros")],
    }
    roles = {tensor["name"]: tensor["role"] for tensor in found["tensors"]}
    assert roles["model.layers.0.mlp.up_proj.qzeros"] == "part"
    assert roles["model.embed_tokens.weight"] == "weight"


def test_experts_fold_like_layers_and_an_odd_one_is_shown_apart(tmp_path: Path) -> None:
    shown = weightctl("ls", small_checkpoints.mixture(tmp_path)).stdout
    assert re.search(r"experts\.\[0-7\]  x8 +8 x 3 tensors", shown)
    assert re.search(r"\[0-4,6-7\]  x7 +7 x 3 tensors", shown)


def test_buffers_are_marked_and_are_not_parameters(tmp_path: Path) -> None:
    path = small_checkpoints.small(tmp_path)
    assert re.search(r"rotary_emb\.inv_freq +8 +F32 +32 B +buffer", weightctl("ls", path).stdout)
    found = meanings(path)
    assert found["totals"]["parameters"] == 32 * 16 + 2 * (16 + 16 * 16) + 16
    assert found["totals"]["bits_per_weight"] == 16
    (role,) = {each["role"] for each in found["tensors"] if each["name"].endswith("inv_freq")}
    assert role == "buffer"


def test_a_tied_name_is_marked_and_takes_nothing(tmp_path: Path) -> None:
    path = small_checkpoints.tied(tmp_path)
    lines = weightctl("ls", path, "--flat").stdout.splitlines()
    assert lines[1].split() == [
        "lm_head.weight", "8x4", "F32", "-", "tied", "to", "model.embed_tokens.weight",
    ]  # fmt: skip
    found = meanings(path)
    assert found["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
    assert (found["totals"]["tensors"], found["totals"]["parameters"]) == (1, 32)


def test_an_adapter_is_recognized(tmp_path: Path) -> None:
    path = small_checkpoints.adapter(tmp_path)
    shown = weightctl("ls", path).stdout
    assert "LoRA adapter: rank 8, alpha 16, 4 matrices, base model example/base\n" in shown
    assert meanings(path)["adapter"] == {
        "ranks": [8],
        "matrices": 4,
        "base": "example/base",
        "alpha": 16,
    }


# The metadata of a checkpoint, as a table and as single values.


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return small_checkpoints.gguf(tmp_path)


def test_metadata_is_a_table_of_keys_types_and_values(gguf: Path) -> None:
    shown = weightctl("ls", gguf, "--meta").stdout
    title, amounts, _, _, _, *lines = shown.splitlines()
    assert title.endswith(": Small Model 1M, llama, gguf")
    assert amounts.startswith("3 tensors, ")
    table = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert table["llama.rope.freq_base"] == ["f32", "10000"]
    assert table["llama.attention.causal"] == ["bool", "true"]
    assert table["tokenizer.ggml.scores"] == ["array[f32]", "[3] 0.5, -inf, -3.25"]
    assert table["tokenizer.ggml.empty"] == ["array[i32]", "[0]"]
    assert "token_embd" not in shown


def test_long_values_are_shortened_and_lines_stay_lines(gguf: Path) -> None:
    shown = weightctl("ls", gguf, "--meta").stdout
    for key, start in (("tokens", r"\[500\] tok0\\n, tok1\\n"), ("chat_template", r"{% for m")):
        (value,) = re.findall(rf"{key} +\S+ +({start}.*)", shown)
        assert len(value) == 120
        assert value.endswith("…")


@pytest.mark.parametrize("columns", [80, 200])
def test_values_are_shortened_to_the_terminal(gguf: Path, columns: int) -> None:
    shown = on_a_terminal(columns, "ls", gguf.name, "--meta", cwd=gguf.parent, NO_COLOR="1")
    assert max(map(len, shown.splitlines())) == columns


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("general.name", "Small Model 1M\n"),
        ("tokenizer.chat_template", "{% for m in messages %}\n" * 40 + "\n"),
        ("general.file_type", "7\n"),
        ("llama.context_length", "1099511627776\n"),
        ("llama.attention.causal", "true\n"),
        ("tokenizer.ggml.scores", '[0.5, "-inf", -3.25]\n'),
        ("tokenizer.ggml.empty", "[]\n"),
    ],
)
def test_the_value_of_a_key_is_all_that_is_printed(gguf: Path, key: str, shown: str) -> None:
    assert weightctl("ls", gguf, "--meta", key).stdout == shown
    assert weightctl("ls", "--meta", key, gguf).stdout == shown
    assert weightctl("ls", f"--meta={key}", gguf).stdout == shown


def test_the_value_of_a_key_keeps_its_type_in_json(gguf: Path) -> None:
    done = weightctl("ls", gguf, "--meta", "tokenizer.ggml.scores", "--json")
    assert json.loads(done.stdout) == {"type": "array[f32]", "value": [0.5, "-inf", -3.25]}


def test_json_has_the_metadata_with_long_arrays_abbreviated(gguf: Path) -> None:
    metadata = json.loads(weightctl("ls", gguf, "--json").stdout)["metadata"]
    assert metadata["general.file_type"] == {"type": "u32", "value": 7}
    assert metadata["tokenizer.ggml.scores"] == {
        "type": "array[f32]", "value": [0.5, "-inf", -3.25]
    }  # fmt: skip
    assert metadata["tokenizer.ggml.tokens"] == {
        "type": "array[string]", "count": 500, "first": [f"tok{n}\n" for n in range(8)]
    }  # fmt: skip


def test_json_of_a_large_vocabulary_decodes_its_first_tokens_only(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(Gguf().file(values={"a": ("array[string]", ["token"] * 100_000)}))
    contents = Contents(open_weights(path), (), ())
    tracemalloc.start()
    try:
        made = document(str(path), contents, [], digests=None, whole_metadata=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made["metadata"]["a"]["count"] == 100_000
    assert peak < 100_000


def test_json_without_metadata_has_an_empty_object(tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    path.write_bytes(safetensors_of({"a": small_checkpoints.numbers("F32", 2)}))
    assert json.loads(weightctl("ls", path, "--json").stdout)["metadata"] == {}


def test_json_keeps_an_empty_text_of_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(Gguf().file(values={"general.name": ("string", "")}))
    made = json.loads(weightctl("ls", tmp_path / "m.gguf", "--json").stdout)
    assert made["metadata"]["general.name"] == {"type": "string", "value": ""}
    assert made["name"] is None


def test_json_has_the_metadata_whole_where_it_is_asked_for(gguf: Path) -> None:
    metadata = json.loads(weightctl("ls", gguf, "--json", "--meta").stdout)["metadata"]
    assert metadata["general.file_type"] == {"type": "u32", "value": 7}
    assert len(metadata["tokenizer.ggml.tokens"]["value"]) == 500


def test_a_path_behind_meta_is_not_a_key(gguf: Path) -> None:
    assert "general.name" in weightctl("ls", "--meta", gguf).stdout
    assert "general.name" in weightctl("ls", "--meta", "small.gguf", cwd=gguf.parent).stdout
    done = weightctl("ls", "--meta", "smal.gguf", cwd=gguf.parent)
    assert done.stderr.startswith("error: smal.gguf: No such file")


def test_an_unknown_key_suggests_the_nearest(gguf: Path) -> None:
    done = weightctl("ls", gguf, "--meta", "general.nam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no metadata key `general.nam`" in done.stderr
    assert "hint: did you mean `general.name`?" in done.stderr


def test_a_base_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    convert(TINY, tmp_path / "base.gguf")
    done = weightctl("ls", tmp_path / "base.gguf", "--meta", "tokenizer.chat_template")
    assert done.returncode == 2
    assert "base.gguf: the model has no chat template" in done.stderr
    assert "its tokenizer has tokenizer.ggml.model, tokenizer.ggml.pre" in done.stderr
    assert "and 5 more" in done.stderr


def test_several_checkpoints_give_their_values_in_order(tmp_path: Path) -> None:
    small_checkpoints.gguf(tmp_path)
    small_checkpoints.tied(tmp_path)
    done = weightctl("ls", "small.gguf", "tied", "small.gguf", "--meta", "general.name",
                     cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == "Small Model 1M\n" * 2
    assert done.stderr.startswith("error: tied: there is no metadata key `general.name`")


def test_a_checkpoint_without_metadata_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    path.write_bytes(safetensors_of({"a": small_checkpoints.numbers("F32", 2)}))
    done = weightctl("ls", path, "--meta")
    assert done.returncode == 0
    assert done.stderr == f"note: {path}: the header has no metadata\n"


def test_metadata_and_lists_of_tensors_are_asked_for_apart(gguf: Path) -> None:
    done = weightctl("ls", gguf, "--meta", "--flat")
    assert done.returncode == 2
    assert "--meta shows metadata" in done.stderr


def test_a_value_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    metadata = {"evil": "a\x1b[2Jb\nc", "na\x1b[2Jme": "x"}
    path.write_bytes(safetensors_of({"a": small_checkpoints.numbers("F32", 2)}, metadata))
    assert "\x1b[2J" not in on_a_terminal(80, "ls", path, "--meta")
    assert "a\\x1b[2Jb\nc\n" in on_a_terminal(80, "ls", path, "--meta", "evil")
    # A script gets it as it is.
    assert weightctl("ls", path, "--meta", "evil").stdout == "a\x1b[2Jb\nc\n"


# Values in a checkpoint that are not tensors are listed.


class Unknown:
    """Of a module that nobody else has."""

    def __init__(self) -> None:
        self.rate = 0.5
        self.kernel = torch.ones(2, 3)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    def save(root: Any) -> Path:
        torch.save(root, tmp_path / "a.pt")
        return tmp_path / "a.pt"

    return save


def test_values_stand_in_the_tree(saved: Callable[[Any], Path]) -> None:
    root = {"w": torch.ones(2), "epoch": 3, "args": {"lr": 0.1, "betas": (0.9, 0.99), "seed": None}}
    done = weightctl("ls", saved(root))
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == [
        "1 tensor, 4 values, 2 parameters, 8 B, 32.00 bits per weight",
        "file 1.53 kB, F32",
        "",
        "w        2  F32    8 B",
        "epoch       int         3",
        "args",
        "  lr        float       0.1",
        "  betas     tuple       [0.9, 0.99]",
        "  seed      None",
    ]


def test_an_object_of_an_unknown_class_is_named(saved: Callable[[Any], Path]) -> None:
    done = weightctl("ls", saved({"a": Unknown()}))
    name = f"{Unknown.__module__}.Unknown"
    assert (
        f"note: an object of a class that weightctl does not import is not read: {name}"
        in done.stderr
    )
    assert done.stdout.splitlines()[4:] == [
        f"a         1 tensor  object  24 B  {name}",
        "  kernel       2x3  F32     24 B",
        "  rate              float         0.5",
    ]


def test_groups_that_differ_in_a_value_are_shown_apart(saved: Callable[[Any], Path]) -> None:
    done = weightctl("ls", saved({"groups": [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]}))
    assert [line.split() for line in done.stdout.splitlines()[4:]] == [
        ["groups"], ["[0-1].lr", "x2", "float", "0.1"], ["2.lr", "float", "0.2"],
    ]  # fmt: skip


def test_json_has_the_values(saved: Callable[[Any], Path]) -> None:
    root = {"epoch": 3, "name": "größe", "sizes": [1, 2], "dtype": torch.float16, "none": None}
    found = json.loads(weightctl("ls", saved(root), "--json").stdout)["values"]
    assert found == [
        {"name": "epoch", "kind": "int", "value": 3},
        {"name": "name", "kind": "str", "value": "größe"},
        {"name": "sizes", "kind": "list", "value": [1, 2]},
        {"name": "dtype", "kind": "torch.dtype", "value": "torch.float16"},
        {"name": "none", "kind": "None", "value": None},
    ]


def test_patterns_choose_values_too(saved: Callable[[Any], Path]) -> None:
    root = {"model": {"w": torch.ones(2)}, "args": {"lr": 0.1, "model": "x"}}
    done = weightctl("ls", saved(root), "--include", "args.*")
    assert [line.split()[0] for line in done.stdout.splitlines()[4:]] == ["args", "lr", "model"]


def test_a_bare_tensor_has_no_name(saved: Callable[[Any], Path]) -> None:
    assert "(unnamed)  2x3  F32  24 B" in weightctl("ls", saved(torch.ones(2, 3))).stdout


def test_a_value_cannot_move_the_cursor(saved: Callable[[Any], Path]) -> None:
    done = weightctl("ls", saved({"a": "\x1b[2Jboo\n"}))
    assert "\x1b" not in done.stdout
    assert r"\x1b[2Jboo\n" in done.stdout


@pytest.fixture
def lightning(saved: Callable[[Any], Path]) -> Path:
    epochs = {f"metric{number}": {"best": number, "last": 0.5} for number in range(30)}
    return saved({
        "state_dict": {"w": torch.ones(2)},
        "pytorch-lightning_version": "2.1.0",
        "loops": {"fit_loop": {"total": 3, "current": 2}},
        "hyper_parameters": epochs,
        "args": {"lr": 0.1, "seed": None},
    })  # fmt: skip


def test_long_branches_of_values_fold_into_one_line(lightning: Path) -> None:
    done = weightctl("ls", lightning)
    assert [" ".join(line.split()) for line in done.stdout.splitlines()[4:]] == [
        "state_dict.w 2 F32 8 B",
        "pytorch-lightning_version str 2.1.0",
        "loops 2 values",
        "hyper_parameters 60 values",
        "args",
        "lr float 0.1",
        "seed None",
    ]
    assert done.stderr == "note: 62 values folded; --values lists them\n"


def test_all_values_are_shown_where_they_are_asked_for(lightning: Path) -> None:
    done = weightctl("ls", lightning, "--values")
    assert done.stderr == ""
    assert sum("best" in line for line in done.stdout.splitlines()) == 30
    assert "folded" not in weightctl("ls", lightning, "--quiet").stderr
    assert len(json.loads(weightctl("ls", lightning, "--json").stdout)["values"]) == 65


@pytest.mark.parametrize("option", ["--flat", "--meta", "--scan"])
def test_values_go_with_the_tree_only(lightning: Path, option: str) -> None:
    done = weightctl("ls", lightning, "--values", option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint: " in done.stderr
