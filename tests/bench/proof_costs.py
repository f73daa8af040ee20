"""What a proof costs: time beside that of the conversion, memory, and bytes of a sampled one.

    python tests/bench/proof_costs.py FOLDER [ROUNDS]

FOLDER needs 6 GB. A llama of 1.1e9 random weights in BF16 is converted to each type, without and
with an importance matrix, and the file is proved, in turn; medians of ROUNDS are printed. Then an
8e9 llama of zeros, in a file with holes, is read from a web server of this machine by a sampled
proof.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from importances import imatrix_dat  # noqa: E402
from servers.base import PlainServer  # noqa: E402
from weightctl import open_weights  # noqa: E402
from weightctl.weights.tree import header_of  # noqa: E402

TINY = ROOT / "fixtures" / "tiny-llama"
TYPES = ("Q4_K_M", "Q6_K", "Q2_K", "Q3_K_M", "Q5_K_M", "Q8_0", "IQ4_XS")
MEDIUM = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24}
LARGE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
LARGE |= {"vocab_size": 128256}


def list_shapes(size: dict[str, int], kv: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = size["hidden_size"], size["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (size.get("vocab_size", 512), hidden),
        "lm_head.weight": (size.get("vocab_size", 512), hidden),
        "model.norm.weight": (hidden,),
    }
    of_layer = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    for layer in range(size["num_hidden_layers"]):
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def write_model(folder: Path, size: dict[str, int], heads: int, kv_heads: int, head: int) -> int:
    """Write a model; its weights are random, or holes if it is large. Return their number."""
    folder.mkdir()
    config = json.loads((TINY / "config.json").read_text()) | size
    config |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    shapes = list_shapes(size, kv_heads * head)
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * count]}
        end += 2 * count
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    random = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        if size is LARGE:
            file.truncate(8 + len(raw) + end)
            return end // 2
        for shape in shapes.values():
            values = random.standard_normal(int(np.prod(shape)), np.float32)
            values *= np.float32(0.02)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    return end // 2


def run(*arguments: object) -> tuple[float, int, str]:
    """Return seconds, peak memory in MB, and what a command prints."""
    command = ["/usr/bin/time", "-f", "%e %M", sys.executable, "-m", "weightctl"]
    command += map(str, arguments)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    seconds, memory = done.stderr.strip().rpartition("\n")[2].split()
    if done.returncode:
        sys.exit(done.stderr)
    return float(seconds), int(memory) // 1024, done.stdout


def measure_types(folder: Path, rounds: int) -> None:
    source, out, matrix = folder / "model", folder / "out.gguf", folder / "matrix.dat"
    count = write_model(source, MEDIUM, 32, 4, 64)
    run("convert", source, out, "--dtype", "bf16", "--quiet")
    random = np.random.default_rng(1)
    tensors = header_of(open_weights(out)).tensors
    imatrix_dat(
        matrix,
        {
            name: (np.exp(random.normal(0, 1.5, info.shape[-1])).astype(np.float32), 1)
            for name, info in tensors.items()
            if len(info.shape) > 1
        },
    )
    print(f"{count:,} weights; seconds are medians of {rounds}")
    print("| type | importance | convert s | prove s | ratio | MB | verdicts |")
    print("| --- | --- | --: | --: | --: | --: | --- |")
    for quant in TYPES:
        for weighted in (False, True):
            made, proved = list[float](), list[float]()
            most, verdicts = 0, ""
            for _ in range(rounds):
                importance = ["--imatrix", matrix] if weighted else []
                options = ["--quant", quant, "--force", "--quiet", *importance]
                made.append(run("convert", source, out, *options)[0])
                seconds, memory, text = run(
                    "verify", out, "--against", source, "--prove", "--check", "proof"
                )
                proved.append(seconds)
                most = max(most, memory)
                verdicts = ", ".join(re.findall(r"\d+ (?:reproduced|proved|within|not)", text))
            one, other = statistics.median(made), statistics.median(proved)
            print(
                f"| {quant} | {'yes' if weighted else 'no'} | {one:.2f} | {other:.2f} | "
                f"{other / one:.2f} | {most} | {verdicts} |",
                flush=True,
            )
    shutil.rmtree(source)


def measure_sample(folder: Path) -> None:
    source, out = folder / "large", folder / "out.gguf"
    count = write_model(source, LARGE, 32, 8, 128)
    run("convert", source, out, "--quant", "Q4_K_M", "--force", "--quiet")
    with PlainServer(root=folder) as server:
        url = f"{server.url}/large/model.safetensors"
        for share in ("1%", "5%"):
            seconds, memory, text = run(
                "verify", out, "--against", url, "--prove", "--check", "proof",
                "--sample", share, "--json",
            )  # fmt: skip
            network = json.loads(text)["network"]
            print(
                f"--sample {share} of {count:,} weights: {network['bytes_read'] / 2 / count:.1%} "
                f"of the bytes in {network['requests']:,} requests, {seconds:.0f} s, {memory} MB"
            )


def main() -> None:
    folder = Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    measure_types(folder, rounds)
    measure_sample(folder)


if __name__ == "__main__":
    main()
