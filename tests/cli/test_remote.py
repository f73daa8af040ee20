"""Commands read checkpoints by URL: from the Hub, web servers and buckets."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFWriter

from commands import TINY
from commands import run_command as weightctl
from each import usual
from hub_fixtures import MODEL, put_directory
from importances import imatrix_gguf
from terminal import on_a_terminal
from tested_stores import BUCKET, serve, serve_s3
from weightctl import convert, gather, open_weights, save, shard
from weightctl.errors import FormatError
from weightctl.plan.plan import Plan
from weightctl.storage.location import parse_location
from weightctl.verify import verify
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Completed
    from servers.base import PlainServer
    from servers.hub import HubServer
    from servers.s3 import S3Server

    Run = Callable[..., Completed]


URL = f"hf://{MODEL}"
COMMANDS = ["ls {}", "verify {}", "convert {} out.gguf", "diff {} other", "shard {} out --tp 2"]


@pytest.fixture
def web(no_hub: Path) -> Iterator[PlainServer]:
    del no_hub
    from servers.base import PlainServer

    with PlainServer() as server:
        for path in TINY.iterdir():
            server.put(f"/model/{path.name}", path.read_bytes())
        yield server


@pytest.fixture
def bucket(no_hub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("HOME", str(no_hub))
    from servers.s3 import KEY, S3Server

    with S3Server() as server:
        made = server.create_bucket("models")
        for path in TINY.iterdir():
            made.put(f"llama/{path.name}", path.read_bytes())
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret)
        yield server


@pytest.fixture(params=["hf", "http", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of the same model in each storage."""
    if request.param == "hf":
        request.getfixturevalue("hub_model")
        return URL
    if request.param == "s3":
        request.getfixturevalue("bucket")
        return "s3://models/llama"
    return f"{request.getfixturevalue('web').url}/model/model.safetensors"


def test_ls_lists_a_url(url: str) -> None:
    done = weightctl("ls", url, "--depth", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{url}: llama, safetensors\n30 tensors, 1.94 M parameters")


def test_ls_estimates_the_memory_of_a_model_at_a_url(url: str) -> None:
    done = weightctl("ls", url, "--fit", "1GB", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits into 1GB with a context of 512 tokens\n")


def test_diff_compares_a_url_with_a_path(url: str) -> None:
    done = weightctl("diff", url, TINY, "--hash")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 tensors, no difference" in done.stdout


def test_convert_makes_the_same_tensors_from_a_url(url: str, tmp_path: Path) -> None:
    weightctl("convert", TINY, "local.gguf", "--names", "keep", cwd=tmp_path)
    done = weightctl("convert", url, "remote.gguf", "--names", "keep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = weightctl("diff", "local.gguf", "remote.gguf", "--hash", cwd=tmp_path)
    assert found.returncode == 0, found.stdout


def test_convert_translates_the_config_and_the_tokenizer_of_a_url(url: str, tmp_path: Path) -> None:
    done = weightctl("convert", url, "out.gguf", "--quant", "Q8_0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = weightctl("ls", "out.gguf", "--meta", "tokenizer.ggml.model", cwd=tmp_path).stdout
    assert shown == "gpt2\n"


def test_shard_and_gather_read_a_url(url: str, tmp_path: Path) -> None:
    done = weightctl("shard", url, "cut", "--tp", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weightctl("shard", "--gather", "cut", "whole", cwd=tmp_path)
    found = weightctl("diff", tmp_path / "whole", TINY, "--hash")
    assert found.returncode == 0, found.stdout + found.stderr


def test_verify_checks_a_url(url: str) -> None:
    done = weightctl("verify", TINY, "--against", url, "--skip", "forward")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 tensors compared, all values are equal" in done.stdout


def test_check_reads_the_files_at_a_url(url: str) -> None:
    done = weightctl("check", url)
    assert done.returncode == 0, done.stderr
    assert ": no findings (" in done.stdout


def test_check_does_not_correct_files_at_a_url(web: PlainServer) -> None:
    web.put("/model/generation_config.json", b'{"eos_token_id": 9999}')
    done = weightctl("check", f"{web.url}/model/model.safetensors", "--fix")
    assert done.returncode == 2
    assert "generation_config.json is not on this machine" in done.stderr


def test_verify_does_not_start_readers_of_local_files(url: str) -> None:
    done = weightctl("verify", url, "--check", "structure")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "safetensors: the files are not on this machine" in done.stdout


def test_shards_at_a_url_are_gathered(hub: HubServer, tmp_path: Path) -> None:
    weightctl("shard", TINY, "cut", "--tp", "2", cwd=tmp_path)
    repository = hub.create("org/cut")
    for path in filter(type(tmp_path).is_file, (tmp_path / "cut").rglob("*")):
        repository.put(str(path.relative_to(tmp_path / "cut")), path.read_bytes())
    done = weightctl("shard", "--gather", "hf://org/cut", "whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert weightctl("diff", tmp_path / "whole", TINY, "--hash").returncode == 0


def test_an_importance_matrix_is_read_from_a_url(hub_model: HubServer, tmp_path: Path) -> None:
    writer = GGUFWriter(str(tmp_path / "imatrix.gguf"), "")
    writer.add_string("general.type", "imatrix")
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    writer.add_array("imatrix.datasets", ["text"])
    name = "blk.0.ffn_down.weight"
    writer.add_tensor(f"{name}.in_sum2", np.ones((1, 512), np.float32))
    writer.add_tensor(f"{name}.counts", np.full((1, 1), 512, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    hub_model.repositories[MODEL].put("imatrix.gguf", (tmp_path / "imatrix.gguf").read_bytes())
    done = weightctl(
        "convert", f"{URL}/model.safetensors", "out.gguf", "--quant", "Q4_K_M",
        "--imatrix", f"{URL}/imatrix.gguf", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    weighted = [each["name"] for each in json.loads(done.stdout)["tensors"] if each["weighted"]]
    assert weighted == [name]


def test_scan_reads_all_files_of_a_model(hub_model: HubServer) -> None:
    hub_model.repositories[MODEL].put("a/b/old.bin", b"\x80\x04cos\nsystem\n.")
    done = weightctl("ls", "--scan", URL)
    assert done.returncode == 1
    assert done.stdout == (
        f"{URL}/a/b/old.bin: os.system  dangerous  (byte 2)\n"
        "7 files, 1 pickle, no code in templates or configs: 1 dangerous, 0 unknown, 0 known\n"
    )


def test_a_sarif_report_has_the_url(hub_model: HubServer, tmp_path: Path) -> None:
    hub_model.repositories[MODEL].put("a b.bin", b"\x80\x04cos\nsystem\n.")
    weightctl("ls", "--scan", URL, "--sarif", "found.sarif", cwd=tmp_path)
    found = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"][0]
    place = found["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": f"{URL}/a%20b.bin"}


@pytest.mark.usefixtures("hub_model")
@pytest.mark.parametrize("command", ["ls {}", "verify {}", "ls --scan {}", "diff {} {}"])
def test_a_file_that_does_not_exist_is_an_error(command: str) -> None:
    path = f"{URL}/nope.gguf"
    done = weightctl(*command.format(path, path).split())
    assert done.returncode == 2
    assert done.stderr == f"error: {path}: No such file or directory\nhint: check the URL\n"


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_model_without_access_is_an_error(hub: HubServer, command: str) -> None:
    put_directory(hub, "org/gated", TINY)
    hub.repositories["org/gated"].gated = True
    done = weightctl(command, "hf://org/gated")
    assert done.returncode == 2
    assert "the model org/gated requires that you accept its conditions" in done.stderr


@pytest.mark.parametrize("command", [*COMMANDS, "{}"])
def test_the_name_of_a_model_on_the_hub_gets_its_url(command: str, tmp_path: Path) -> None:
    done = weightctl(*command.format("org/name-1.5").split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: org/name-1.5: No such file or directory\n"
        "hint: check the path; for a model on Hugging Face, use `hf://org/name-1.5`\n"
    )


def test_a_missing_file_in_a_directory_that_exists_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    done = weightctl("ls", "org/name", cwd=tmp_path)
    assert done.stderr.splitlines()[1] == "hint: check the path"


def test_a_model_is_written_to_the_hub_and_listed(xet_hub: HubServer, matrices: Path) -> None:
    del xet_hub
    done = weightctl("convert", matrices, "hf://org/new", "--dtype", "bf16", "--private")
    assert done.returncode == 0, done.stderr
    assert "sent" in done.stdout
    assert "BF16" in weightctl("ls", "hf://org/new").stdout


def test_the_summary_of_an_edit_says_how_much_was_sent(
    monkeypatch: pytest.MonkeyPatch, ports: Callable[[str], int]
) -> None:
    with serve("gs", monkeypatch, ports) as store:
        for path in TINY.iterdir():
            store.put(f"in/{path.name}", path.read_bytes())
        done = weightctl("convert", f"{store.url}/in", f"{store.url}/out", "--rename", "^model=m")
        assert done.returncode == 0, done.stderr
        # Google Cloud Storage copies no ranges of objects.
        assert re.search(r"over the network, 3\.9\d MB sent", done.stdout), done.stdout


def test_the_url_of_a_pull_request_is_shown(xet_hub: HubServer, matrices: Path) -> None:
    done = weightctl("convert", matrices, "hf://org/new", "--pr")
    url = f"{xet_hub.url}/org/new/discussions/1"
    assert f"pull request: {url}" in done.stdout
    done = weightctl("convert", matrices, "hf://org/new", "--pr", "--json")
    assert json.loads(done.stdout)["pull_request"].startswith(xet_hub.url)


def test_a_patch_is_made_from_a_url_and_applied_to_it(url: str, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.safetensors"
    raw = bytearray((TINY / "model.safetensors").read_bytes())
    raw[-1000:-900] = bytes(100)
    tuned.write_bytes(raw)
    for command in (f"diff {url} {tuned} --patch patch", f"apply {url} patch out"):
        done = weightctl(*command.split(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out").read_bytes() == raw
    assert (tmp_path / "patch").stat().st_size < 10_000


# Commands that read URLs show no secrets, and count the bytes and requests.


# A is a URL with a password and a signature; NONE is another, of a file that does not exist.
WITH_SECRETS = [
    "ls A --depth 1",
    "ls A --json",
    "ls A -l",
    "ls A --scan --json",
    "ls NONE",
    "verify NONE",
    "convert NONE out.gguf",
    "diff A A",
    "diff A A --json",
    "verify A --skip forward",
    "verify A --skip forward --json",
    "verify A --against A --skip forward",
    "convert A out.safetensors --dtype f16",
    "convert A out.safetensors --dtype f16 --json",
    "convert A out.safetensors --dry-run",
    "convert A out.gguf --quant q4_k --imatrix A",
    "shard A out --tp 2",
    "shard A out --tp 2 --json",
    "shard A --tp auto",
    "shard A --tp 7 out",
    "shard --gather A out",
]


# With one of each pair whose output has the same source.
USUAL_WITH_SECRETS = [
    each for each in WITH_SECRETS if "--json" not in each and "verify A --skip" not in each
]


@pytest.mark.parametrize("command", usual(USUAL_WITH_SECRETS, WITH_SECRETS))
def test_passwords_and_signatures_are_not_shown(
    web: PlainServer, tmp_path: Path, command: str
) -> None:
    host = web.url.removeprefix("http://")
    secret = f"http://user:PASSWORD@{host}/model/{{}}.safetensors?X-Amz-Signature=SIGNATURE"
    urls = {"A": secret.format("model"), "NONE": secret.format("none")}
    done = weightctl(*(urls.get(word, word) for word in command.split()), cwd=tmp_path)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for raw in (done.stdout.encode(), done.stderr.encode(), *written):
        assert b"PASSWORD" not in raw
        assert b"SIGNATURE" not in raw
    assert web.exchanges(path="X-Amz-Signature=SIGNATURE")


def test_the_signature_is_sent(web: PlainServer) -> None:
    done = weightctl("ls", f"{web.url}/model/model.safetensors?X-Amz-Signature=SIGNATURE")
    assert done.returncode == 0
    assert "X-Amz-Signature=SIGNATURE" in web.exchanges(path="/model.safetensors")[0].target


def test_anonymous_sends_no_token_to_the_hub(hub_model: HubServer) -> None:
    done = weightctl("ls", URL, "--anonymous", HF_TOKEN="hf_test_reader")
    assert done.returncode == 0
    assert all("authorization" not in each.headers for each in hub_model.log)


def test_anonymous_sends_no_signature_to_a_bucket(no_hub: Path) -> None:
    from servers.s3 import S3Server

    with S3Server() as server:
        made = server.create_bucket("models")
        made.public_read = True
        made.put("model.safetensors", (TINY / "model.safetensors").read_bytes())
        done = weightctl(
            "ls", "s3://models/model.safetensors", "--anonymous", AWS_ENDPOINT_URL=server.url,
            AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="wrong", AWS_SECRET_ACCESS_KEY="wrong",
            HOME=str(no_hub),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all("authorization" not in each.headers for each in server.log)


@pytest.mark.parametrize(
    "command",
    [
        "ls {}",
        "ls --scan {}",
        "diff {} {}",
        "convert {} out.safetensors --dtype f16",
        "shard {} out --tp 2",
        "shard {} --tp auto",
        "verify {} --check names",
    ],
)
def test_json_counts_what_went_over_the_network(
    hub_model: HubServer, tmp_path: Path, command: str
) -> None:
    done = weightctl(*command.format(URL, URL).split(), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["network"] == {
        "requests": hub_model.requests,
        "bytes_read": hub_model.links.bytes_sent + _body_bytes(hub_model),
        "bytes_sent": 0,
        "retries": 0,
    }


def _body_bytes(hub: HubServer) -> int:
    """Return the bytes that the Hub itself sent, without the bodies of redirects."""
    return sum(each.sent for each in hub.log if each.status < 300)


def test_json_about_local_files_has_no_network() -> None:
    assert "network" not in json.loads(weightctl("ls", TINY, "--json").stdout)


@pytest.mark.usefixtures("hub_model")
def test_the_summary_of_convert_has_what_went_over_the_network(tmp_path: Path) -> None:
    done = weightctl("convert", URL, "out.safetensors", "--dtype", "f16", cwd=tmp_path)
    line = next(line for line in done.stdout.splitlines() if "over the network" in line)
    assert line.startswith("4.0")
    assert line.endswith(" requests")


@pytest.mark.usefixtures("hub_model")
def test_the_progress_bar_shows_the_time_left_and_the_rate_of_the_network(tmp_path: Path) -> None:
    shown = on_a_terminal(
        120, "convert", URL, "out.gguf", "--quant", "Q4_K_M", cwd=tmp_path, NO_COLOR="1"
    )
    assert re.search(r"[\d-]:[\d-]{2}:[\d-]{2} left network [\d.]+ [kMG]?B/s", shown)


def test_the_progress_bar_shows_the_rate_of_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_s3(monkeypatch):
        shown = on_a_terminal(120, "convert", TINY, f"s3://{BUCKET}/out.safetensors", NO_COLOR="1")
    assert re.search(r"network [\d.]*[1-9][\d.]* [kMG]B/s", shown)


def test_the_progress_bar_of_local_files_does_not(tmp_path: Path) -> None:
    shown = on_a_terminal(120, "convert", TINY, "out.gguf", "--quant", "Q4_K_M", cwd=tmp_path)
    assert "━" in shown
    assert "network" not in shown


def test_the_progress_bar_names_the_work_and_counts_the_bytes_of_the_input(tmp_path: Path) -> None:
    shown = on_a_terminal(80, "convert", TINY, "out.gguf", "--quant", "Q4_K_M", cwd=tmp_path)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"converting +[0-9]+% .*/3\.9 MB .* left", plain)


def test_a_request_that_was_repeated_is_in_the_summary(
    hub_model: HubServer, tmp_path: Path
) -> None:
    from servers.base import Answer

    hub_model.inject(Answer(503), path="/resolve/", times=1)
    done = weightctl("convert", URL, "out.safetensors", "--dtype", "f16", cwd=tmp_path)
    assert "requests, 1 repeated\n" in done.stdout


# A `file://` URL means the same as its path, wherever a path is taken.


# HERE is a directory, and `~` a space.
FILE_URL_COMMANDS = [
    "ls HERE/a~b/model",
    "ls HERE/a~b/model/model.safetensors --long",
    "ls HERE/a~b/model --scan --sarif HERE/new/a~b.sarif --allow-file HERE/allow.txt",
    "diff HERE/a~b/model HERE/a~b/model/model.safetensors --values",
    "convert HERE/a~b/model HERE/new/a~b.gguf --report HERE/new/report.json --quant Q8_0",
    "convert HERE/a~b/model HERE/new/directory/ --dtype f16",
    "convert HERE/a~b/model HERE/new/recipe.gguf --quant HERE/recipe.toml",
    "convert HERE/a~b/model HERE/new/matrix.gguf --quant Q4_K --imatrix HERE/matrix.gguf",
    "convert HERE/a~b/model HERE/new/out.safetensors --rename HERE/a=b.toml",
    "convert HERE/a~b/model HERE/new/out.safetensors --set license=@HERE/text.txt",
    "convert HERE/a~b/model HERE/new/out.safetensors --dtype f16 --on processes:1",
    "shard HERE/a~b/model HERE/new/ranks --tp 2 --plan HERE/plan.toml",
    "shard HERE/a~b/model HERE/new/ranks --tp 2 --on processes:1",
    "shard HERE/a~b/model --tp auto --plan HERE/plan.toml",
    "shard HERE/ranks HERE/new/whole --gather",
    "verify HERE/a~b/model --skip forward --report HERE/new/a~b.html --report HERE/new/b.md",
    "verify HERE/a~b/model --skip forward --against HERE/a~b/model",
    "verify HERE/a~b/model --check forward --text-file HERE/text.txt",
]
# The worker of a conversion is in the default tests.
OF_SHARDS_IN_WORKERS = ["shard HERE/a~b/model HERE/new/ranks --tp 2 --on processes:1"]
_TIMES = re.compile(r"\b\d+(\.\d+)? (m?s|[kMG]?B/s)\b|\d+\.\d+\S*|\b[\d-]+[T ]\d\d:\d\d\S*")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, its shards, and files that options take."""
    tmp_path = tmp_path_factory.mktemp("here")
    (tmp_path / "new").mkdir()
    model = tmp_path / "a b" / "model"
    model.mkdir(parents=True)
    for path in TINY.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    shard(model, tmp_path / "ranks", tp=2)
    (tmp_path / "plan.toml").write_text("[tensors]\n'o_proj' = 'replicate'\n")
    (tmp_path / "recipe.toml").write_text("default = 'Q8_0'\n")
    (tmp_path / "a=b.toml").write_text("[rename]\n'^model' = 'decoder'\n")
    (tmp_path / "text.txt").write_text("a text of some words\n")
    (tmp_path / "allow.txt").write_text("torch.nn.*\n")
    entry = (np.ones((1, 512), np.float32), np.ones(1, np.float32))
    imatrix_gguf(tmp_path / "matrix.gguf", {"blk.0.ffn_down.weight": entry})
    return tmp_path


def contents(path: Path) -> str | bytes:
    """Return the bytes of a checkpoint, or the text of a report without times."""
    is_text = path.suffix not in {".gguf", ".safetensors"}
    return _TIMES.sub("", path.read_text()) if is_text else path.read_bytes()


def run(words: str, place: str, space: str, here: Path) -> tuple[object, ...]:
    """Run a command; return what it prints and writes, without times, and remove what it wrote."""
    named = (word.replace("HERE", place).replace("~", space) for word in words.split())
    done = weightctl(*named, cwd=here)
    new = here / "new"
    files = {str(path.relative_to(new)): path for path in new.rglob("*") if path.is_file()}
    written = {name: contents(path) for name, path in files.items()}
    for path in sorted(new.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert "file://" not in done.stdout + done.stderr
    return done.returncode, _TIMES.sub("", done.stdout), _TIMES.sub("", done.stderr), written


@pytest.mark.parametrize(
    "words",
    usual(
        [words for words in FILE_URL_COMMANDS if words not in OF_SHARDS_IN_WORKERS],
        FILE_URL_COMMANDS,
    ),
)
def test_a_command_does_the_same_with_a_file_url(words: str, here: Path) -> None:
    by_path = run(words, str(here), " ", here)
    assert by_path[0] == 0, by_path[2]
    assert bool(by_path[-1]) == ("HERE/new" in words)
    assert run(words, f"file://{here}", "%20", here) == by_path


@pytest.mark.parametrize(
    "words",
    [
        "verify HERE/ranks --report URL/a.html",
        "convert HERE/ranks HERE/new/a.gguf --report URL/a.json",
        "ls HERE/ranks --scan --sarif URL/a.sarif",
    ],
)
def test_a_report_is_not_written_to_another_url(words: str, here: Path) -> None:
    done = weightctl(*words.replace("HERE", str(here)).replace("URL", "s3://bucket").split())
    assert done.returncode == 2
    assert "is a URL; this file can only be written to a local path" in done.stderr
    assert not [*(here / "new").iterdir()]


@pytest.mark.parametrize("url", ["file://host/a", "file://", "file://a"])
def test_a_url_of_another_machine_is_an_error(url: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_location(url)
    assert caught.value.hint == "use file:///PATH, with three slashes and the whole path"


def test_a_url_may_name_this_machine() -> None:
    assert parse_location("file://localhost/a%20b") == ("file", "/a b")


def test_functions_take_file_urls(here: Path) -> None:
    model, new = f"file://{here}/a%20b/model", f"file://{here}/new"
    save(Plan.copy(open_weights(model), "safetensors"), f"{new}/saved.safetensors")
    convert(model, f"{new}/a.gguf", quant=f"file://{here}/recipe.toml")
    shard(model, f"{new}/ranks", tp=2, rules=f"file://{here}/plan.toml")
    gather(f"{new}/ranks", f"{new}/whole.safetensors")
    tensors = header_of(open_weights(here / "a b" / "model")).tensors.keys()
    for name in ("saved.safetensors", "whole.safetensors"):
        assert header_of(open_weights(here / "new" / name)).tensors.keys() == tensors
    found = verify(f"{new}/a.gguf", model, checks=["values"])
    assert not found.problems
    assert not found.results["values"].skipped
