"""Statements say what files are and how they were made, and are refused for other files."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from commands import run_command as weightctl
from weightctl import convert
from weightctl.errors import ConversionError, OutputError, WeightctlError
from weightctl.verify import verify
from weightctl.write.attestation import attest_conversion, check_attestation, write_attestation

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL, IMPORTANCE = FIXTURES / "tiny-llama", FIXTURES / "imatrix" / "tiny-llama.gguf"


def write_keys(directory: Path, name: str, curve: ec.EllipticCurve) -> tuple[Path, Path]:
    private = ec.generate_private_key(curve)
    paths = directory / f"{name}.pem", directory / f"{name}.pub"
    paths[0].write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    paths[1].write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return paths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a source, files that were made of it, and statements on them."""
    where = tmp_path_factory.mktemp("attested")
    shutil.copytree(MODEL, where / "source")
    file = convert(where / "source", where / "q4.gguf", quant="Q4_K_M", imatrix=IMPORTANCE)
    attest_conversion(file, str(where / "q4.intoto.json"))
    directory = convert(where / "source", where / "w4", quant="W4A16")
    attest_conversion(directory, str(where / "w4.intoto.json"))
    split = convert(where / "source", where / "split.gguf", dtype="bf16", max_shard_size="2MB")
    attest_conversion(split, str(where / "split.intoto.json"))
    write_keys(where, "own", ec.SECP256R1())
    write_keys(where, "foreign", ec.SECP384R1())
    return where


@pytest.fixture
def there(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "there"))


def problems(
    model: Path, statement: Path, source: Path | str | None = None, **more: Any
) -> list[str]:
    report = verify(model, source, attestation=statement, **more)
    assert [*report.results] == ["attestation"]
    return [str(each) for each in report.problems]


def change(path: Path) -> None:
    """Change a bit of the last byte, which is one of a tensor or a document."""
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def first_part(directory: Path) -> Path:
    return min(directory.glob("split-*.gguf"))


def prove(there: Path, *more: str, model: str = "q4.gguf") -> int:
    arguments = ("verify", model, "--against", "source", "--prove", "-q", *more)
    return weightctl(*arguments, cwd=there).returncode


def test_a_statement_of_a_conversion_says_how_it_was_made(made: Path) -> None:
    statement = json.loads((made / "q4.intoto.json").read_bytes())
    schema = json.loads(files("weightctl").joinpath("schemas/attestation.json").read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for name in ("q4", "w4", "split"):
        validator.validate(json.loads((made / f"{name}.intoto.json").read_bytes()))
    predicate = statement["predicate"]
    assert [each["name"] for each in statement["subject"]] == ["q4.gguf"]
    assert predicate["source"]["name"] == "source"
    assert {each["name"] for each in predicate["source"]["files"]} >= {
        "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip
    assert predicate["recipe"] == "Q4_K_M"
    assert predicate["importance"] is True
    assert predicate["proof"] is None
    assert predicate["options"] == {"imatrix": "tiny-llama.gguf", "quant": "Q4_K_M"}
    assert [each["role"] for each in predicate["consulted"]] == ["the importance matrix"]
    assert str(made) not in json.dumps(statement)
    # The parts of a split file, and all files of a directory.
    listed = {"split": [*made.glob("split-*.gguf")], "w4": [*(made / "w4").iterdir()]}
    for name, paths in listed.items():
        subject = json.loads((made / f"{name}.intoto.json").read_bytes())["subject"]
        assert [each["name"] for each in subject] == sorted(path.name for path in paths)


def test_the_same_conversion_has_the_same_statement(there: Path) -> None:
    (there / "again").mkdir()
    weightctl(
        "convert", "source", "again/q4.gguf", "--quant", "Q4_K_M", "--imatrix", str(IMPORTANCE),
        "-q", "--attest", "again.intoto.json", cwd=there,
    )  # fmt: skip
    assert (there / "again.intoto.json").read_bytes() == (there / "q4.intoto.json").read_bytes()


def test_statements_are_checked_for_files_directories_and_parts(made: Path) -> None:
    source = made / "source"
    assert problems(made / "q4.gguf", made / "q4.intoto.json", source) == []
    assert problems(made / "w4", made / "w4.intoto.json", source) == []
    assert problems(first_part(made), made / "split.intoto.json", source) == []


def rename(there: Path) -> Path:
    return (there / "q4.gguf").rename(there / "other.gguf")


def test_a_file_can_be_renamed(there: Path) -> None:
    assert problems(rename(there), there / "q4.intoto.json", there / "source") == []
    made = convert(there / "other.gguf", there / "q8.gguf", quant="Q8_0", allow_requantize=True)
    attest_conversion(made, str(there / "q8.intoto.json"))
    other = (there / "other.gguf").rename(there / "another.gguf")
    assert problems(there / "q8.gguf", there / "q8.intoto.json", other) == []


def add_module(there: Path) -> None:
    (there / "w4" / "modeling.py").write_text("import os\n")


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a changed byte": (lambda there: change(there / "q4.gguf"), "q4", "q4.gguf: its bytes differ"),
    "a byte of a part": (
        lambda there: change(max(there.glob("split-*.gguf"))), "split", "its bytes differ",
    ),
    "a byte beside tensors": (
        lambda there: change(there / "w4" / "tokenizer.json"), "w4", "tokenizer.json: its bytes",
    ),
    "a missing file": (
        lambda there: (there / "w4" / "tokenizer.json").unlink(), "w4",
        "tokenizer.json: the file is missing, but the statement names it",
    ),
    "an added file": (add_module, "w4", "modeling.py: the statement does not name this file"),
    "a changed source": (
        lambda there: change(there / "source" / "model.safetensors"), "q4",
        "model.safetensors: its bytes differ from the statement on the source",
    ),
    "another source": (
        lambda there: (there / "source" / "generation_config.json").unlink(), "q4",
        "generation_config.json: the file is missing, but the statement on the source names it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused_with_the_reason(case: str, there: Path) -> None:
    spoil, name, reason = REFUSED[case]
    spoil(there)
    model = {"q4": there / "q4.gguf", "w4": there / "w4", "split": first_part(there)}[name]
    found = problems(model, there / f"{name}.intoto.json", there / "source")
    assert len(found) == 1
    assert reason in found[0]


def test_a_proof_without_problems_writes_each_form(there: Path) -> None:
    assert prove(there, "--attest", "proof.intoto.json", "--sample", "20%") == 0
    statement = json.loads((there / "proof.intoto.json").read_bytes())
    schema = json.loads(files("weightctl").joinpath("schemas/attestation.json").read_text())
    Draft202012Validator(schema).validate(statement)
    proof = statement["predicate"]["proof"]
    assert proof["sample"].keys() == {"share", "confidence", "seed"}
    assert sum(proof["counts"].values()) == len(proof["tensors"]) == 30
    assert problems(there / "q4.gguf", there / "proof.intoto.json", there / "source") == []
    for form in (".oms.json", ".sig"):
        key = ("--key", "own.pem") if form == ".sig" else ()
        prove(there, "--attest", f"q4{form}", *key)
        assert problems(there / "q4.gguf", there / f"q4{form}") == []
    # What is not from the source has no statement.
    convert(there / "source", there / "other.gguf", quant="Q8_0")
    change(there / "other.gguf")
    assert prove(there, "--attest", "other.intoto.json", model="other.gguf") == 1
    assert not (there / "other.intoto.json").exists()


def test_a_proof_with_problems_writes_no_statement_and_says_so(there: Path) -> None:
    change(there / "q4.gguf")
    ran = weightctl(
        "verify", "q4.gguf", "--against", "source", "--prove", "--attest", "new.intoto.json",
        "--quiet", cwd=there,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == "warning: new.intoto.json was not written, because 1 problem was found\n"
    assert not (there / "new.intoto.json").exists()


def test_a_signature_is_that_of_the_key_and_a_foreign_one_is_refused(there: Path) -> None:
    model, signed = there / "q4.gguf", there / "signed.intoto.json"
    prove(there, "--attest", signed.name, "--key", "own.pem")
    assert problems(model, signed, there / "source", key=there / "own.pub") == []
    report = verify(model, attestation=signed)
    assert report.results["attestation"].verdict == "partial"
    (found,) = problems(model, signed, key=there / "foreign.pub")
    assert "it is signed with another key than" in found
    (found,) = problems(model, there / "q4.intoto.json", key=there / "own.pub")
    assert found.endswith("it is not signed")
    # The author's key, and other content.
    bundle = json.loads(signed.read_bytes())
    envelope = bundle["dsseEnvelope"]
    letter = envelope["payload"][100]
    envelope["payload"] = envelope["payload"].replace(letter, "A" if letter != "A" else "B", 1)
    signed.write_text(json.dumps(bundle))
    (found,) = problems(model, signed, key=there / "own.pub")
    assert "changed after it was signed" in found or "damaged" in found
    # A signed statement on other bytes.
    prove(there, "--attest", "again.sig", "--key", "foreign.pem")
    change(model)
    (found,) = problems(model, there / "again.sig", key=there / "foreign.pub")
    assert "its bytes differ from the statement" in found


DAMAGED: dict[str, tuple[object, str]] = {
    "an unknown predicate": (
        {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1"},
        "the predicate `https://slsa.dev/provenance/v1` is not",
    ),
    "a bill of materials": ({"bomFormat": "CycloneDX"}, "the predicate `None` is not"),
    "a list": ([1], "damaged"),
    "a number": (7, "damaged"),
    "a signature without content": ({"dsseEnvelope": {}}, "damaged"),
    "signed bytes": ({"dsseEnvelope": {"payload": "AAAA"}}, "damaged"),
    "no files": (
        {
            "_type": "https://in-toto.io/Statement/v1",
            "predicateType": "https://weightctl/derivation/v1",
        },
        "damaged",
    ),
    "files of another form": (
        {
            "_type": "https://in-toto.io/Statement/v1", "subject": [["a"]], "predicate": 3,
            "predicateType": "https://weightctl/derivation/v1",
        },
        "damaged",
    ),
    "shards": (
        {
            "_type": "https://in-toto.io/Statement/v1", "subject": [],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {
                "resources": [], "serialization": {"method": "shards", "hash_type": "blake3"},
            },
        },
        "it has blake3 of shards, not sha256 of files",
    ),
    "a manifest with another digest": (
        {
            "_type": "https://in-toto.io/Statement/v1", "subject": [{"name": "x"}],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {
                "resources": [], "serialization": {"method": "files", "hash_type": "sha256"},
            },
        },
        "the digest of the model is not that of its files",
    ),
}  # fmt: skip


def test_damaged_and_unknown_statements_are_refused_with_the_reason(there: Path) -> None:
    offenders: list[str] = []
    for name, (content, reason) in DAMAGED.items():
        (there / "bad.intoto.json").write_text(json.dumps(content))
        found = problems(there / "q4.gguf", there / "bad.intoto.json")
        if len(found) != 1 or reason not in found[0]:
            offenders.append(f"{name}: {found}")
    (there / "bad.intoto.json").write_text("{" * 100_000)
    found = problems(there / "q4.gguf", there / "bad.intoto.json")
    assert "not valid JSON" in found[0]
    assert offenders == []


def test_options_of_statements_are_refused_before_the_work(there: Path) -> None:
    given = convert(there / "source", there / "new.gguf", quant="Q8_0", dry_run=True)
    cases: dict[str, tuple[str, str | None]] = {
        "does not have the suffix of a statement": ("x.json", None),
        ".sig is the suffix of a file that is signed": ("x.sig", None),
        ".cdx.json is the suffix of a file that is not signed": ("x.cdx.json", "own.pem"),
        "not a file with a private key": ("x.sig", "own.pub"),
        "q4.intoto.json exists": ("q4.intoto.json", None),
    }
    for text, (path, key) in cases.items():
        with pytest.raises(WeightctlError, match=text):
            attest_conversion(given, str(there / path), key=key and str(there / key))
    with pytest.raises(ConversionError, match="statement on a proof"):
        verify(there / "q4.gguf", there / "source", attest=there / "x.intoto.json")
    with pytest.raises(ConversionError, match="--key applies only to statements"):
        verify(there / "q4.gguf", key=there / "own.pub")
    skipped = verify(there / "q4.gguf", checks=["attestation"]).results["attestation"].skipped
    assert "there is no statement" in skipped
    found = weightctl(
        "convert", "source", "-", "--to", "gguf", "--quant", "Q8_0", "--attest", "x.intoto.json",
        cwd=there,
    )  # fmt: skip
    assert found.returncode == 2
    assert "reads the output again" in found.stderr
    with pytest.raises(OutputError, match="reads the output again"):
        check_attestation("x.intoto.json", None, (), force=False, output="s3://bucket/x.gguf")
    assert not (there / "x.intoto.json").exists()


def test_the_bill_of_materials_is_valid(there: Path) -> None:
    """The published JSON schema of CycloneDX 1.6 accepts it."""
    import cyclonedx.schema._res as published
    from referencing import Registry, Resource

    folder = Path(next(iter(published.__path__)))
    schemas = {
        path.name: json.loads(path.read_text("utf-8"))
        for path in folder.glob("*.schema.json")
        if path.name.startswith(("bom-1.6.", "jsf", "spdx"))
    }
    registry: Any = Registry().with_resources(
        (each["$id"], Resource.from_contents(each)) for each in schemas.values()
    )
    schema = schemas["bom-1.6.SNAPSHOT.schema.json"]
    prove(there, "--attest", "q4.cdx.json")
    weightctl(
        "convert", "source", "new", "--quant", "FP8", "--attest", "new.cdx.json", "-q", cwd=there
    )
    for name in ("q4.cdx.json", "new.cdx.json"):
        bom = json.loads((there / name).read_bytes())
        validator_for(schema)(schema, registry=registry).validate(bom)
        model = bom["metadata"]["component"]
        assert model["type"] == "machine-learning-model"
        assert model["pedigree"]["ancestors"][0]["name"] == "source"


@pytest.mark.usefixtures("hub_model")
def test_a_source_on_the_hub_has_its_commit_and_the_sha256_that_the_hub_states(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weightctl.write.attestation._MOST_READ", 1000)
    url, statement = "hf://org/tiny-llama", tmp_path / "q8.intoto.json"
    attest_conversion(convert(url, tmp_path / "q8.gguf", quant="Q8_0"), str(statement))
    source = json.loads(statement.read_bytes())["predicate"]["source"]
    assert source["name"] == url
    assert len(source["revision"]) == 40
    known = {each["name"]: "digest" in each for each in source["files"]}
    # Git's hash of a file that is not in the large storage is not its SHA-256.
    assert known["model.safetensors"]
    assert known["generation_config.json"]
    assert not known["tokenizer.json"]
    assert problems(tmp_path / "q8.gguf", statement, made / "source") == []
    assert problems(tmp_path / "q8.gguf", statement, url) == []


def test_a_model_in_memory_has_no_statement(tmp_path: Path) -> None:
    values = {"a.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(OutputError, match="the model has none"):
        write_attestation(str(tmp_path / "x.intoto.json"), "", [], {})
    attest_conversion(convert(values, tmp_path / "x.gguf"), str(tmp_path / "x.cdx.json"))
    bom = json.loads((tmp_path / "x.cdx.json").read_bytes())
    assert [each["name"] for each in bom["metadata"]["component"]["components"]] == ["x.gguf"]


@pytest.mark.long
def test_model_signing_accepts_what_is_written_and_its_signatures_are_checked(there: Path) -> None:
    signing = pytest.importorskip("model_signing.signing")
    verifying = pytest.importorskip("model_signing.verifying")
    payloads = pytest.importorskip("model_signing._signing.signing")
    hashing = pytest.importorskip("model_signing.hashing")
    key, public = str(there / "own.pem"), str(there / "own.pub")
    made = {
        "q4.gguf": convert(there / "source", there / "q4.gguf", quant="Q4_K_M", force=True),
        "w4": convert(there / "source", there / "w4", quant="W4A16", force=True),
    }
    (there / "w4" / ".cache").mkdir()
    (there / "w4" / ".cache" / "x").write_text("x")
    for name, conversion in made.items():
        model, signature, manifest = there / name, there / "m.sig", there / "m.oms.json"
        attest_conversion(conversion, str(signature), key=key, force=True)
        attest_conversion(conversion, str(manifest), force=True)
        config = verifying.Config().use_elliptic_key_verifier(public_key=public)
        config.verify(model, signature)
        parsed = payloads.dsse_payload_to_manifest(json.loads(manifest.read_bytes()))
        assert parsed == hashing.Config().set_ignored_paths(paths=[".cache"]).hash(model)
        # And the other way round.
        theirs = there / "theirs.sig"
        signing.Config().use_elliptic_key_signer(private_key=key).sign(model, theirs)
        assert problems(model, theirs, key=public) == []
        (found,) = problems(model, theirs, key=there / "foreign.pub")
        assert "it is signed with another key than" in found
        part = model if model.is_file() else model / "model.safetensors"
        change(part)
        (found,) = problems(model, theirs, key=public)
        assert "its bytes differ from the statement" in found
        with pytest.raises(ValueError, match="Hash mismatch"):
            config.verify(model, signature)
    change(there / "w4" / ".cache" / "x")
    assert any(each.startswith(".cache/x: its bytes") for each in problems(there / "w4", theirs))
