"""What people type first for a task works, or the answer names the command that does it."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from commands import run_command
from documented import make_example_files
from each import each

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The task, what is typed after `weightctl`, and a part of the answer. A text that begins with `!`
# is part of an error or its hint; others are part of an output with the exit code 0 or, for
# findings, 1.
TRIES = (
    ("see which models are here", "ls", "this directory"),
    ("see which models are here", "list", "!`weightctl ls` lists the models on this machine"),
    ("see which models are here", "models", "!`weightctl ls` lists the models on this machine"),
    ("look into a file", "model.gguf", "30 tensors, 1.94 M parameters"),
    ("look into a file", "info model.gguf", "!`weightctl ls MODEL` lists"),
    ("look into a file", "inspect model.gguf", "!`weightctl ls MODEL` lists"),
    ("look into a directory", "ls model", "30 tensors, 1.94 M parameters"),
    ("look into a model of the cache", "ls org/tiny", "30 tensors, 1.94 M parameters"),
    ("look into a model of the Hub", "ls org/absent", "!use `hf://org/absent`"),
    ("look into a model of the Hub", "ls hf:org/absent", "!did you mean `hf://org/absent`?"),
    ("look into a model of the cache", "ls tiny", "!did you mean `org/tiny`?"),
    ("look into a model of Ollama", "absent:1b", "!`weightctl ls` lists the models"),
    (
        "look into a model of Ollama",
        "ls absent:1b",
        "!`weightctl ls` lists the models on this machine",
    ),
    ("look into a model of ModelScope", "ls modelscope://org/x", "!use `modelscope download`"),
    ("count parameters", "ls model --params", "!`weightctl ls MODEL --depth 1` shows size"),
    ("count layers", "ls model --layers", "!`weightctl ls MODEL --depth 1` shows size"),
    ("see metadata", "ls model.gguf --meta", "llama.context_length"),
    ("see metadata", "metadata model.gguf", "!`weightctl ls MODEL --meta`"),
    ("see the tokenizer", "tokenizer model.gguf", "!`weightctl ls MODEL --meta`"),
    ("get data for a script", "ls model -o json", "!--json prints results as JSON"),
    ("get data for a script", "ls model --format csv", "!--json prints results as JSON"),
    ("know whether it fits", "ls model --fit 8GB", "fits into 8GB"),
    ("know whether it fits", "ls model --vram 8GB", "!`weightctl ls MODEL --fit 24GiB`"),
    ("know whether it fits", "fit model 8GB", "!`weightctl ls MODEL --fit 24GiB`"),
    ("know whether it fits", "ls model --fit 8", "!write 8GB"),
    ("see values", "show model.gguf", "!`weightctl ls MODEL` lists the names of tensors"),
    ("see values", "show model.gguf attn_q", "!`*attn_q*` matches 3 tensors"),
    ("see values", "show model.gguf *attn_q* :1,:2", "blk.2.attn_q.weight  256x256"),
    ("see values", "cat model", "!`weightctl show MODEL TENSOR`"),
    ("see statistics", "stats model", "!`weightctl stat MODEL`"),
    ("know that a file is safe", "scan downloaded.pt", "!`weightctl ls MODEL --scan`"),
    ("know that a file is safe", "ls downloaded.pt --scan", "posix.system  dangerous"),
    ("know that a file is whole", "hash model", "!`weightctl ls MODEL --hash`"),
    ("know that a file is whole", "check model", "no findings"),
    ("quantize", "convert model --quant Q4_K_M", "model -> model-Q4_K_M.gguf"),
    ("quantize", "quantize model q.gguf Q4_K_M", "!convert MODEL OUT.gguf --quant Q4_K_M"),
    ("quantize", "convert model q1.gguf -q Q4_K_M", "!use --quant Q4_K_M"),
    ("quantize", "convert model -q Q4_K_M", "!did you mean --quant Q4_K_M?"),
    ("quantize", "convert model q2.gguf --quant 4bit", "!did you mean Q4_K_M (for GGUF)"),
    ("quantize", "convert model q3.gguf --quant nf4", "!did you mean BNB-NF4"),
    ("quantize", "convert model q4.gguf --quant int8", "!did you mean Q8_0 (for GGUF)"),
    ("quantize for vLLM", "convert model fp8 --quant fp8", "weights stored as FP8"),
    ("quantize for vLLM", "convert model x.gguf --quant fp8", "!use a path without a suffix"),
    ("quantize for MLX", "convert model m --quant mlx", "!did you mean MLX-4bit"),
    ("quantize for MLX", "convert model mlx --quant MLX-4bit", "weights stored as MLX-4bit"),
    ("make a GGUF file", "convert model gguf", "!did you mean `model.gguf`?"),
    ("make a GGUF file", "convert org/tiny --to gguf", "-> tiny.gguf (gguf)"),
    ("make a directory of a GGUF file", "convert model.gguf hf --to hf", "!leave out --to"),
    ("make a directory of a GGUF file", "convert model.gguf hf", "llama, GGUF -> Hugging Face"),
    ("undo a quantization", "convert model.gguf x --dequantize", "!--dtype bf16"),
    ("undo a quantization", "dequantize model.gguf x", "!--dtype bf16"),
    ("store another type", "convert model f16 --dtype half", "BF16 -> F16"),
    ("store another type", "convert model f8 --dtype float8", "!did you mean float8_e4m3fn"),
    ("get weights out of a training run", "convert training.pt w.safetensors", "27 tensors"),
    ("merge a LoRA adapter", "merge model adapter", "!OUT is missing"),
    ("merge a LoRA adapter", "merge model adapter", "!the output comes last"),
    ("merge a LoRA adapter", "merge adapter model x", "!the model comes first"),
    ("merge a LoRA adapter", "convert model x --lora adapter", "!`weightctl merge MODEL"),
    ("merge a LoRA adapter", "merge model adapter merged.gguf", "LoRA adapter adapter: 6 weights"),
    ("get an adapter", "extract model tuned lora.gguf", "!the adapter is a directory"),
    ("get an adapter", "extract model tuned lora", "rank 32"),
    ("split for two GPUs", "shard model out --gpus 2", "!--tp N splits layers for N ranks"),
    ("join shards", "shard --join a b", "!`weightctl shard --gather DIR OUT` joins"),
    ("join shards", "shard a b", "!--gather joins shards"),
    ("use several processes", "convert model x.gguf --workers 4", "!--on processes:N"),
    ("use several processes", "convert model x.gguf --on 4", "!use processes:4"),
    ("find NaNs", "stat model --nan", "!`weightctl verify MODEL --check finite`"),
    ("split for two GPUs", "shard model ranks --tp 2", "2 ranks: tp 2"),
    ("split into files", "split model", "!--max-shard-size 5GB"),
    ("compare two models", "compare model tuned", "!`weightctl diff MODEL OTHER`"),
    ("compare two models", "diff model tuned --values", "2 of 9"),
    ("know that it still works", "verify model.gguf model", "!use --against model"),
    ("fail a job", "diff model tuned --tolerance 0.1", "!`weightctl verify MODEL --against"),
    ("fail a job", "verify model --against tuned --max-rmse 8", "!write 0.08, or 8%"),
    (
        "fail a job",
        "verify model --against tuned --max-rmse 1% --check values",
        "6 problems in values",
    ),
    (
        "know that it still works",
        "perplexity model",
        "!`weightctl verify MODEL --against ORIGINAL`",
    ),
    ("know that it still works", "verify model.gguf --against model", "no problems found"),
    ("change the name", "edit model.gguf --name x", "!--set general.name=TEXT"),
    ("change the name", "edit model.gguf --set general.name x", "!write KEY=VALUE"),
    ("change the name", "edit model.gguf --set name=x -n", "did you mean `general.name`?"),
    ("see the chat template", "ls model --template", "!tokenizer.chat_template"),
    ("see the license", "license model", "!`weightctl ls MODEL` shows the license"),
    ("change metadata", "set model.gguf general.name x", "!`weightctl edit MODEL --set"),
    ("rename tensors", "rename model.gguf", "!`weightctl edit MODEL --rename"),
    ("remove tensors", "prune model", "!--exclude PATTERN"),
    ("measure an importance matrix", "imatrix model text.txt -o x", "!use --text-file text.txt"),
    ("measure an importance matrix", "imatrix model --output x", "!did you mean `--out`"),
    ("measure an importance matrix", "imatrix model", "!weightctl imatrix [MODEL] -o FILE"),
    ("make a GGUF file", "convert_hf_to_gguf model", "!`weightctl convert MODEL OUT`"),
    ("make a GGUF file", "convert model --outfile x.gguf", "!the output is an argument"),
    ("quantize", "llama-quantize model q.gguf", "!convert MODEL OUT.gguf --quant Q4_K_M"),
    ("quantize", "create mine --quantize q4_K_M", "!convert MODEL OUT.gguf --quant Q4_K_M"),
    ("quantize to 5 bits", "convert model x.gguf --quant 5", "!use --bpw 5"),
    ("quantize to 5 bits", "convert model --quant 5bpw", "!use --bpw 5"),
    ("quantize to 5 bits", "convert model x.gguf --bits 5", "!--bpw 5"),
    ("quantize for vLLM", "convert model x --quant fp8_e4m3", "!use --quant FP8_DYNAMIC"),
    ("quantize for vLLM", "convert model x --quant e4m3", "!did you mean FP8_DYNAMIC"),
    ("quantize for vLLM", "convert model x --quant bnb-4bit", "!did you mean BNB-NF4"),
    ("fill a memory", "convert model x.gguf --vram 1MB", "!OUT.gguf --fit 24GiB`"),
    ("know whether it fits", "ls model --fit 8GB --num-ctx 8192", "!--context N"),
    ("merge a LoRA adapter", "merge model adapter x --scale 0.5", "!MODEL ADAPTER:0.5 OUT"),
    (
        "change the chat template",
        "edit model.gguf --chat-template x",
        "!tokenizer.chat_template=@FILE",
    ),
    (
        "change the chat template",
        "edit model.gguf --set chat_template=x -n",
        "did you mean `tokenizer.chat_template`?",
    ),
    ("delete a model", "rm model.gguf", "!weightctl does not delete models"),
    ("look into a model of the cache", "cache ls", "!`weightctl ls` lists the models"),
    (
        "check a training run",
        "verify model --against model --config model",
        "!--config DIR` makes a",
    ),
    ("run it", "run model.gguf", "!weightctl does not chat"),
    ("upload it", "push model hf://me/x", "!`weightctl convert MODEL hf://ORG/NAME` uploads"),
    ("download it", "pull hf://me/x", "!`weightctl convert hf://ORG/NAME OUT` downloads"),
    ("know the version", "version", "!`weightctl --version`"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example files, in a home with a model in the Hub's cache."""
    made = tmp_path_factory.mktemp("home") / "here"
    made.mkdir()
    make_example_files(made)
    repository = made.parent / ".cache/huggingface/hub/models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    shutil.copytree(made / "model", repository / "snapshots" / COMMIT)
    return made


@each("task, typed, answer", TRIES)
def test_what_is_typed_first_works_or_is_answered(
    task: str, typed: str, answer: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder.parent))
    done = run_command(*shlex.split(typed), cwd=folder)
    if answer.startswith("!"):
        assert (done.returncode, answer[1:] in done.stderr) == (2, True), (task, done.stderr)
    else:
        printed = " ".join((done.stdout + done.stderr).split())
        is_done = done.returncode in {0, 1} and " ".join(answer.split()) in printed
        assert is_done, (task, done.stderr)
