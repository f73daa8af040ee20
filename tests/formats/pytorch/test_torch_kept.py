"""What a conversion of a PyTorch checkpoint cannot keep is refused or named; the rest is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lazy import torch
from weightctl import open_weights
from weightctl.errors import ConversionError
from weightctl.formats.base import LEVELS_KEY
from weightctl.plan.arrangement import select
from weightctl.plan.plan import Plan
from weightctl.weights.info import Leaf
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]


def wave() -> torch.Tensor:
    return torch.randn(3, dtype=torch.complex64)


@pytest.fixture
def source(tmp_path: Path) -> Callable[[Any], Path]:
    def saved(root: Any) -> Path:
        torch.save(root, tmp_path / "a.pt")
        return tmp_path / "a.pt"

    return saved


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True)


UNREAD = {"w": torch.ones(2), "conj": {"x": wave().conj()}, "neg": wave().conj().imag}


@pytest.mark.parametrize("name", ["b.pt", "b.safetensors", "b.gguf"])
@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--max-shard-size", "1kB"]])
def test_tensors_that_cannot_be_read_are_never_left_out_in_silence(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path, name: str, more: list[str]
) -> None:
    done = weightctl("convert", source(UNREAD), tmp_path / name, *more)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-4:] == [
        "error: some tensors cannot be read:",
        "  `conj.x`: of an unsupported type",
        "  `neg`: of an unsupported type",
        "hint: to leave them out, use --exclude (exclude in Python)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(
    "chosen", [["--exclude", "conj.*", "--exclude", "neg"], ["--include", "w"]]
)
def test_the_others_can_be_had_by_themselves(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path, chosen: list[str]
) -> None:
    done = weightctl("convert", source(UNREAD), tmp_path / "b.pt", *chosen)
    assert done.returncode == 0
    assert "not kept" not in done.stderr
    assert list(loaded(tmp_path / "b.pt")) == ["w"]


def test_the_library_refuses_tensors_that_cannot_be_read(
    source: Callable[[Any], Path], tmp_path: Path
) -> None:
    root = {"w": torch.ones(2), "m": torch.ones(2, device="meta"), "below": {"w": torch.ones(1)}}
    weights = open_weights(source(root))
    plan = Plan.copy(weights, "safetensors")
    with pytest.raises(ConversionError, match="`m`: meta, without data") as caught:
        save(plan, tmp_path / "b.safetensors")
    assert caught.value.hint == "to leave it out, use --exclude m (exclude in Python)"
    assert not (tmp_path / "b.safetensors").exists()
    save(select(plan, exclude=["m"]), tmp_path / "b.safetensors")
    save(Plan.copy(weights["below"], "safetensors"), tmp_path / "c.safetensors")


class Unknown:
    """A class that weightctl does not know."""

    def __init__(self) -> None:
        self.kernel = torch.ones(2)


LOST = {
    "w": torch.ones(2),
    "dev": torch.device("cpu"),
    "raw": b"abc",
    "odd": "\ud800",
    "object": Unknown(),
    "list": [None, {"deep": b"1", "epoch": 3}],
    "seed": 1 << 5000,
}


def test_values_that_no_metadata_keeps_are_named(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path
) -> None:
    path = source(LOST)
    done = weightctl("convert", path, tmp_path / "b.pt", "--json")
    lost = "not kept: dev (torch.device), raw (bytes), odd (str), list.1.deep (bytes), seed (int)"
    assert f"note: {lost}\n" in done.stderr
    assert lost in json.loads(done.stdout)["notes"]
    assert loaded(tmp_path / "b.pt")["list"] == [None, {"epoch": 3}]
    chosen = ["--exclude", "raw", "--exclude", "list.*"]
    done = weightctl("convert", path, tmp_path / "c.pt", *chosen)
    assert "note: not kept: dev (torch.device), odd (str), seed (int)\n" in done.stderr
    done = weightctl("convert", path, tmp_path / "d.pt", "--include", "w")
    assert "not kept" not in done.stderr


def test_of_many_values_that_are_not_kept_some_are_named(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path
) -> None:
    root = {"w": torch.ones(2), "x" * 5000: b"1", **{str(number): b"1" for number in range(7)}}
    done = weightctl("convert", source(root), tmp_path / "b.pt")
    names = ", ".join(f"{number} (bytes)" for number in range(4))
    assert f"note: not kept: {'x' * 79}… (bytes), {names} and 3 more\n" in done.stderr


def test_a_value_that_somebody_has_set_stays_in_the_pickle(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path
) -> None:
    path = source({"w": torch.ones(2), "args": {"epoch": 3, "seed": None, "best": 0.5}})
    settings = ["args.epoch:str=abc", "args.seed=five", "args.best:array[u8]=[1, 2]"]
    changes = [each for setting in settings for each in ("--set", setting)]
    assert weightctl("convert", path, tmp_path / "b.pt", *changes).returncode == 0
    assert loaded(tmp_path / "b.pt")["args"] == {"epoch": "abc", "seed": "five", "best": [1, 2]}


VALUES: dict[str, Any] = {
    "w": torch.ones(2),
    "v": torch.ones(3),
    "epoch": 3,
    "args": {
        "lr": 0.1, "betas": (0.9, 0.99), "seed": None, "names": ["a", "größe"], "none": [],
        "ema": {}, "size": torch.Size([1, 2]), "dtype": torch.float16, "wave": 1 - 2j,
        "large": 1 << 100, "is": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ["b.safetensors", "b.gguf", "b.pt"])
@pytest.mark.parametrize("parts", [1, 2])
def test_values_stand_in_the_tree_of_every_format(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path, name: str, parts: int
) -> None:
    path = source(VALUES)
    split = ["--max-shard-size", "12B"] if parts > 1 else []
    assert weightctl("convert", path, tmp_path / name, *split).returncode == 0
    out = next(tmp_path.glob("b-00001-of-*")) if parts > 1 else tmp_path / name
    leaves = open_weights(path).header.leaves
    assert open_weights(out).header.leaves == leaves
    assert weightctl("convert", out, tmp_path / "c.pt", "--exclude", "args.*").returncode == 0
    assert set(loaded(tmp_path / "c.pt")) == {"w", "v", "epoch"}


def written(path: Path, metadata: dict[str, str]) -> Path:
    """Write a safetensors file with one tensor, `w`, and this metadata."""
    header: dict[str, Any] = {"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    raw = json.dumps({"__metadata__": metadata, **header}).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    return path


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ("no JSON", {}),
        ("[" * 100_000, {}),
        ('{"a": 1}', {}),
        ('{"a": "os.system", "b": "dict", "w": "int", "": "str", "pytorch.levels": "str"}', {}),
        ('{"a": "int", "gone": "int"}', {"a": Leaf("str", "text")}),
        (json.dumps(dict.fromkeys(["." * 80_000, "a"], "None")), {"a": Leaf("str", "text")}),
    ],
)
def test_levels_of_no_sense_are_not_values(
    tmp_path: Path, levels: str, expected: dict[str, Leaf]
) -> None:
    path = written(
        tmp_path / "a.safetensors", {LEVELS_KEY: levels, "a": "text", "b": "x", "w": "1"}
    )
    assert open_weights(path).header.leaves == expected


@pytest.mark.parametrize("suffix", [".pth.tar", ".PTH.TAR", ".pth"])
def test_parts_keep_the_whole_suffix(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path, suffix: str
) -> None:
    path = source({"a": torch.ones(1000), "b": torch.ones(1000)})
    out = tmp_path / f"v1.out{suffix}"
    assert weightctl("convert", path, out, "--max-shard-size", "5kB").returncode == 0
    parts = [f"v1.out-0000{number}-of-00002{suffix}" for number in (1, 2)]
    index = f"v1.out{suffix}.index.json"
    assert {each.name for each in tmp_path.iterdir()} == {"a.pt", *parts, index}
    for name in (*parts, index):
        assert list(open_weights(tmp_path / name).header.tensors) == ["a", "b"]
    # The error for the whole name refers to the parts, and a new output replaces all of them.
    assert parts[0] in weightctl("ls", out).stderr
    assert weightctl("convert", path, out).returncode == 2
    assert weightctl("convert", path, out, "--force").returncode == 0
    assert {each.name for each in tmp_path.iterdir()} == {"a.pt", out.name}
    assert "multi-file checkpoint" in weightctl("convert", path, tmp_path / parts[0]).stderr


def test_an_alignment_from_somebody_s_dict_is_kept_as_gguf_has_it(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path
) -> None:
    path = source({"w": torch.ones(2), "general": {"alignment": 64}})
    assert weightctl("convert", path, tmp_path / "b.gguf").returncode == 0
    header = open_weights(tmp_path / "b.gguf").header
    assert (header.alignment, header.metadata["general.alignment"].type) == (64, "u32")
    assert weightctl("convert", tmp_path / "b.gguf", tmp_path / "c.pt").returncode == 0
    assert loaded(tmp_path / "c.pt")["general"] == {"alignment": 64}


@pytest.mark.parametrize(
    ("alignment", "message"), [(48, "48 (i64)"), ("64", "'64' (string)"), (64.0, "64.0 (f64)")]
)
def test_an_alignment_that_cannot_be_is_shown_with_its_type(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path, alignment: Any, message: str
) -> None:
    path = source({"w": torch.ones(2), "general.alignment": alignment})
    done = weightctl("convert", path, tmp_path / "b.gguf")
    assert done.returncode == 2
    assert (
        f"`general.alignment` is {message}; a GGUF alignment must be a power of two" in done.stderr
    )


def test_numbers_without_a_dtype_of_ours_are_not_cast(
    weightctl: Run, source: Callable[[Any], Path], tmp_path: Path
) -> None:
    half = torch.ones(2, dtype=torch.complex64).to(torch.complex32)
    scaled = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    path = source({"half": half, "w": torch.ones(2), "scaled": scaled})
    done = weightctl("convert", path, tmp_path / "b.pt", "--dtype", "f16")
    assert (
        "`scaled` is stored as quantized values with a scale, which weightctl cannot write"
        in done.stderr
    )
    choice = ["--dtype", "f16", "--exclude", "scaled*"]
    assert weightctl("convert", path, tmp_path / "b.pt", *choice).returncode == 0
    back = loaded(tmp_path / "b.pt")
    assert (back["half"].dtype, back["w"].dtype) == (torch.complex32, torch.float16)
