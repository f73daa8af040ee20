"""KL divergence and perplexity of each scheme, rounded to nearest and with `--search`.

Run with `python tests/bench/quality.py`; `--model FOLDER` (repeatable) names other models, such as
that of `quality_model.py`. Each is compared with the round-to-nearest of compressed-tensors for the
schemes that it has. All models compute in float32 with dequantized weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
FIXTURE = ROOT / "fixtures" / "tiny-llama"
WINDOW = 256
SCHEMES = (
    "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "W8A16", "W4A16", "W4A16:symmetric=no",
    "NVFP4A16", "MXFP4", "GPTQ", "AWQ", "MLX-4bit", "MLX-8bit", "BNB-NF4", "BNB-INT8",
)  # fmt: skip
# The settings of the schemes in compressed-tensors.
LIBRARY: dict[str, dict[str, Any]] = {
    "FP8": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    "FP8_DYNAMIC": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "W8A16": {"num_bits": 8, "strategy": "group", "group_size": 128},
    "W4A16": {"num_bits": 4, "strategy": "group", "group_size": 128},
    "W4A16:symmetric=no": {
        "num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": False,
    },
}  # fmt: skip


def round_in_library(weight: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    """Return a weight as compressed-tensors rounds it to nearest."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    arguments = QuantizationArgs(**settings)
    rows, columns = weight.shape
    size = {"tensor": rows * columns, "channel": columns}.get(settings["strategy"], 128)
    blocks = weight.reshape(-1, size)
    shape = {"tensor": (1,)}.get(settings["strategy"], (rows, columns // size))
    low, high = (edge.reshape(shape) for edge in (blocks.amin(-1), blocks.amax(-1)))
    scales, zeros = calculate_qparams(low, high, arguments)
    made: torch.Tensor = fake_quantize(weight, scales.to(weight.dtype), zeros, arguments)
    return made


def measure(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of the probabilities of all tokens."""
    with torch.no_grad():
        logits = torch.cat([model(each[None]).logits[0] for each in tokens])
    return logits.double().log_softmax(-1)


def compare(folder: Path, schemes: list[str]) -> None:
    """Print a line for each scheme."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from written_models import convert, values_in

    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    ids = tokenizer((FIXTURE / "held-out.txt").read_text(), return_tensors="pt").input_ids[0]
    tokens = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    wanted = (tokens[:, 1:]).reshape(-1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    original = {name: value.clone() for name, value in model.state_dict().items()}

    def evaluate(values: dict[str, torch.Tensor]) -> tuple[float, float]:
        model.load_state_dict(values)
        found = measure(model, tokens)
        divergence = (expected.exp() * (expected - found)).sum(-1).mean()
        return float(divergence), perplexity(found)

    def perplexity(found: torch.Tensor) -> float:
        likely = found.reshape(*tokens.shape, -1)[:, :-1].reshape(len(wanted), -1)
        return float(-likely.gather(1, wanted[:, None]).mean())

    expected = measure(model, tokens)
    print(f"{folder.name}: {perplexity(expected):.4f} nats a token, {wanted.numel()} tokens")
    print(
        "| type | library: KL | nearest: KL | search: KL | smaller | nearest: nats | search: nats |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for scheme in schemes:
        results: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as out:
            for search in (False, True):
                convert(folder, Path(out) / "made", scheme, search=search, force=True)
                results.append(evaluate(values_in(Path(out) / "made")))
                quantized = values_in(Path(out) / "made")
        library = ""
        if scheme in LIBRARY:
            changed = {
                name: round_in_library(value.bfloat16(), LIBRARY[scheme]).float()
                if not torch.equal(quantized[name], value)
                else value
                for name, value in original.items()
            }
            library = f"{evaluate(changed)[0]:.5f}"
        (near, near_nats), (best, best_nats) = results
        print(
            f"| {scheme} | {library} | {near:.5f} | {best:.5f} | {100 * (1 - best / near):.0f} % "
            f"| {near_nats:.4f} | {best_nats:.4f} |",
            flush=True,
        )


def main() -> None:
    """Compare models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a directory; repeatable")
    parser.add_argument("--only", action="append", choices=SCHEMES, help="repeatable")
    arguments = parser.parse_args()
    for folder in arguments.model or [FIXTURE]:
        compare(folder, list(arguments.only or SCHEMES))


if __name__ == "__main__":
    main()
