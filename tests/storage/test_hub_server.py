"""The Hub server of the tests works as huggingface_hub's client expects."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import obstore
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    constants,
    hf_hub_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from obstore.store import HTTPStore
from safetensors.numpy import save

from servers.hub import READER, WRITER, HubServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers.hub import HubRepository

MODEL = "writer/model"
TENSORS = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"format": "pt"})


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    # hf_xet would write its log to the home directory.
    monkeypatch.setenv("HF_XET_LOG_DEST", f"{tmp_path}/")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    disable_progress_bars()
    yield
    enable_progress_bars()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    (tmp_path / "xet").mkdir()
    with HubServer(xet_directory=str(tmp_path / "xet"), page_size=3) as running:
        yield running


@pytest.fixture
def repository(server: HubServer) -> HubRepository:
    made = server.create(MODEL)
    made.put("config.json", b'{"a": 1}')
    made.put("model.safetensors", TENSORS)
    return made


@pytest.fixture
def api(server: HubServer) -> HfApi:
    return HfApi(endpoint=server.url, token=WRITER)


def ask(server: HubServer, method: str, path: str, token: str | None = None) -> Any:
    """Send a request without following redirects."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, path, headers=headers | {"Connection": "close"})
    with connection.getresponse() as answer:
        answer.read()
    return answer


def test_files_are_listed_over_pages(
    server: HubServer, repository: HubRepository, api: HfApi
) -> None:
    for name in ("x/1.txt", "x/2.txt", "x/y/3.txt"):
        repository.put(name, b"x")
    listed = [each.path for each in api.list_repo_tree(MODEL, recursive=True)]
    files = ["config.json", "model.safetensors", "x/1.txt", "x/2.txt", "x/y/3.txt"]
    assert sorted(listed) == sorted([*files, "x", "x/y"])
    assert len(server.exchanges("GET", "/tree/")) == 3


def test_a_folder_is_listed_without_its_folders(repository: HubRepository, api: HfApi) -> None:
    repository.put("x/y/3.txt", b"x")
    assert [each.path for each in api.list_repo_tree(MODEL, "x")] == ["x/y"]


@pytest.mark.usefixtures("repository")
def test_a_listing_has_what_lfs_knows(api: HfApi) -> None:
    files: dict[str, Any] = {each.path: each for each in api.list_repo_tree(MODEL)}
    assert files["config.json"].lfs is None
    assert files["model.safetensors"].lfs.size == len(TENSORS)


def test_the_info_has_the_commit_and_the_files(repository: HubRepository, api: HfApi) -> None:
    info = api.model_info(MODEL, files_metadata=True)
    assert info.sha == repository.refs["main"]
    assert [(each.rfilename, each.size) for each in info.siblings or []] == [
        ("config.json", 8),
        ("model.safetensors", len(TENSORS)),
    ]


@pytest.mark.usefixtures("repository")
def test_a_small_file_comes_from_the_hub(server: HubServer, tmp_path: Path) -> None:
    path = hf_hub_download(MODEL, "config.json", endpoint=server.url, cache_dir=tmp_path / "c")
    with open(path, "rb") as file:
        assert file.read() == b'{"a": 1}'
    assert server.links.requests == 0


@pytest.mark.usefixtures("repository")
def test_an_lfs_file_comes_from_another_host_without_the_token(
    server: HubServer, tmp_path: Path
) -> None:
    path = hf_hub_download(
        MODEL, "model.safetensors", endpoint=server.url, cache_dir=tmp_path / "c", token=READER
    )
    with open(path, "rb") as file:
        assert file.read() == TENSORS
    assert server.exchanges("HEAD", "/resolve/")[0].headers["authorization"] == f"Bearer {READER}"
    assert all("authorization" not in each.headers for each in server.links.log)
    assert server.links.bytes_sent == len(TENSORS)


def test_a_redirect_describes_the_file(server: HubServer, repository: HubRepository) -> None:
    answer = ask(server, "HEAD", f"/{MODEL}/resolve/main/model.safetensors")
    assert answer.status == 302
    assert answer.headers["Location"].startswith(server.links.other_url)
    assert answer.headers["X-Repo-Commit"] == repository.refs["main"]
    assert answer.headers["X-Linked-Size"] == str(len(TENSORS))
    assert answer.headers["X-Linked-ETag"] == repository.tree()["model.safetensors"].etag


@pytest.mark.usefixtures("repository")
def test_an_expired_link_is_403(server: HubServer) -> None:
    answer = ask(server, "GET", f"/{MODEL}/resolve/main/model.safetensors")
    server.links.expire()
    path = answer.headers["Location"].removeprefix(server.links.other_url)
    connection = http.client.HTTPConnection("127.0.0.1", server.links.port)
    connection.request("GET", path, headers={"Connection": "close"})
    with connection.getresponse() as refused:
        assert refused.status == 403


@pytest.mark.usefixtures("repository")
def test_obstore_reads_a_range_through_the_redirect(server: HubServer) -> None:
    store = HTTPStore(f"{server.url}/{MODEL}/resolve/main", client_options={"allow_http": True})
    assert bytes(obstore.get_range(store, "model.safetensors", start=8, end=12)) == TENSORS[8:12]
    assert server.links.bytes_sent == 4


@pytest.mark.usefixtures("repository")
def test_safetensors_metadata_are_read_by_ranges(api: HfApi) -> None:
    metadata = api.get_safetensors_metadata(MODEL)
    assert metadata.files_metadata["model.safetensors"].tensors["a"].shape == [2, 3]


@pytest.mark.usefixtures("repository")
def test_a_file_that_was_uploaded_through_xet_comes_back(
    server: HubServer, api: HfApi, tmp_path: Path
) -> None:
    content = np.random.default_rng(0).bytes(3 << 20)
    api.upload_file(path_or_fileobj=content, path_in_repo="new.safetensors", repo_id=MODEL)
    assert server.repositories[MODEL]["new.safetensors"] == content
    path = hf_hub_download(
        MODEL, "new.safetensors", endpoint=server.url, cache_dir=tmp_path / "c", token=READER
    )
    with open(path, "rb") as file:
        assert file.read() == content
    assert server.exchanges("GET", "/xet-read-token/")
    assert server.links.requests == 0


@pytest.mark.usefixtures("repository")
def test_chunks_that_are_stored_are_not_stored_again(server: HubServer, api: HfApi) -> None:
    content = np.random.default_rng(0).bytes(3 << 20)
    api.upload_file(path_or_fileobj=content, path_in_repo="a.gguf", repo_id=MODEL)
    assert server.xet
    before = server.xet.bytes_stored
    api.upload_file(path_or_fileobj=b"x" * 5000 + content, path_in_repo="b.gguf", repo_id=MODEL)
    assert before > 3 << 20
    assert server.xet.bytes_stored - before < 1 << 20


def test_a_commit_adds_and_deletes(repository: HubRepository, api: HfApi) -> None:
    operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
        CommitOperationAdd("notes.txt", b"hello"),
        CommitOperationDelete("config.json"),
    ]
    done = api.create_commit(MODEL, operations, commit_message="Change")
    assert done.oid == repository.refs["main"]
    assert sorted(repository.tree()) == ["model.safetensors", "notes.txt"]
    assert repository["notes.txt"] == b"hello"


def test_a_commit_upon_a_former_parent_is_refused(repository: HubRepository, api: HfApi) -> None:
    parent = repository.refs["main"]
    repository.put("other.txt", b"x")
    with pytest.raises(HfHubHTTPError) as error:
        api.create_commit(
            MODEL, [CommitOperationAdd("a.txt", b"x")], commit_message="m", parent_commit=parent
        )
    assert error.value.response.status_code == 412


def test_a_pull_request_leaves_the_branch(repository: HubRepository, api: HfApi) -> None:
    done = api.create_commit(
        MODEL, [CommitOperationAdd("a.txt", b"x")], commit_message="m", create_pr=True
    )
    assert done.pr_revision == "refs/pr/1"
    assert "a.txt" not in repository.tree()
    assert "a.txt" in repository.tree("refs/pr/1")


@pytest.mark.parametrize("revision", ["refs%2Fpr%2F1", "refs/pr/1"])
def test_a_revision_with_slashes_is_found(
    server: HubServer, repository: HubRepository, revision: str
) -> None:
    repository.put("a b.txt", b"x", revision="refs/pr/1")
    path = f"/{MODEL}/resolve/{revision}/{quote('a b.txt')}"
    assert ask(server, "GET", path).status == 200


def test_a_repository_is_created(server: HubServer, api: HfApi) -> None:
    url = api.create_repo("writer/new", private=True)
    assert url.repo_id == "writer/new"
    assert server.repositories["writer/new"].private


@pytest.mark.usefixtures("repository")
def test_a_repository_that_exists_is_409(api: HfApi) -> None:
    with pytest.raises(HfHubHTTPError) as error:
        api.create_repo(MODEL)
    assert error.value.response.status_code == 409
    assert api.create_repo(MODEL, exist_ok=True).repo_id == MODEL


@pytest.mark.usefixtures("repository")
def test_a_token_for_reading_cannot_write(server: HubServer) -> None:
    api = HfApi(endpoint=server.url, token=READER)
    with pytest.raises(HfHubHTTPError) as error:
        api.create_commit(MODEL, [CommitOperationAdd("a.txt", b"x")], commit_message="m")
    assert error.value.response.status_code == 403


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("path", "revision", "error"),
    [
        ("nope.json", "main", EntryNotFoundError),
        ("config.json", "nope", RevisionNotFoundError),
    ],
)
def test_what_is_missing_is_named(
    server: HubServer, tmp_path: Path, path: str, revision: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        hf_hub_download(MODEL, path, revision=revision, endpoint=server.url, cache_dir=tmp_path)


def test_a_missing_repository_is_named_to_who_has_a_token(server: HubServer) -> None:
    with pytest.raises(RepositoryNotFoundError) as error:
        HfApi(endpoint=server.url, token=READER).model_info("writer/nope")
    assert error.value.response.status_code == 404


def test_a_missing_repository_is_hidden_without_a_token(server: HubServer) -> None:
    answer = ask(server, "GET", "/api/models/writer/nope")
    assert answer.status == 401
    assert answer.headers["X-Error-Message"] == "Invalid username or password."


def test_a_private_repository_is_as_one_that_is_missing(server: HubServer) -> None:
    server.create("writer/private", private=True, readers={"other"})
    path = "/api/models/writer/private"
    found = [ask(server, "GET", path, token).status for token in (None, READER, WRITER)]
    assert found == [401, 404, 200]


@pytest.mark.parametrize(("token", "status"), [(None, 401), (READER, 403)])
def test_a_gated_repository_gives_no_files(
    server: HubServer, tmp_path: Path, token: str | None, status: int
) -> None:
    server.create("writer/gated", gated=True).put("a.txt", b"x")
    with pytest.raises(GatedRepoError) as error:
        hf_hub_download(
            "writer/gated", "a.txt", endpoint=server.url, cache_dir=tmp_path, token=token or False
        )
    assert error.value.response.status_code == status


def test_a_reader_of_a_gated_repository_gets_files(server: HubServer, tmp_path: Path) -> None:
    server.create("writer/gated", gated=True, readers={"reader"}).put("a.txt", b"x")
    path = hf_hub_download(
        "writer/gated", "a.txt", endpoint=server.url, cache_dir=tmp_path, token=READER
    )
    with open(path, "rb") as file:
        assert file.read() == b"x"


@pytest.mark.usefixtures("repository")
def test_a_token_that_is_unknown_is_401(server: HubServer) -> None:
    answer = ask(server, "GET", f"/api/models/{MODEL}", "hf_wrong")
    assert answer.status == 401
    assert answer.headers["X-Error-Message"] == "Invalid credentials in Authorization header"


# The client gives the file to its HTTP library by a parameter that is deprecated there.
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_without_xet_files_are_uploaded_through_lfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)
    with HubServer() as server:
        repository = server.create(MODEL)
        api = HfApi(endpoint=server.url, token=WRITER)
        api.upload_file(path_or_fileobj=TENSORS, path_in_repo="a.safetensors", repo_id=MODEL)
        assert repository["a.safetensors"] == TENSORS


def test_an_index_is_read_as_json(server: HubServer, repository: HubRepository) -> None:
    repository.put("model.safetensors.index.json", json.dumps({"weight_map": {}}).encode())
    store = HTTPStore(f"{server.url}/{MODEL}/resolve/main", client_options={"allow_http": True})
    found = bytes(obstore.get(store, "model.safetensors.index.json").bytes())
    assert json.loads(found) == {"weight_map": {}}
