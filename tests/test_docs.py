"""README.md and docs/ show what the program prints, and their links work.

`python tests/test_docs.py` writes the output of every example and every generated table again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # pytest has these folders in its path
    sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "support")]

import pytest

from doc_tables import SCHEMA, update_schema, update_tables
from documented import has_examples, make_example_files, play, play_processes, without_times
from each import each
from weightctl.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed
    from documented import Played

    Run = Callable[..., Completed]

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(ROOT)): path for path in (README, *sorted(DOCS.glob("*.md")))}
PLAYED = [name for name, path in PAGES.items() if has_examples(path.read_text())]
# Every command of this page fails, and no command of other pages does.
TROUBLE = "docs/troubleshooting.md"
# These pages quantize and run whole models, for minutes.
LONG = {"docs/walkthrough.md", "docs/quantization.md", "docs/imatrix.md"}
PROCESSES = "docs/python.md"  # has a program with several processes
SCRIPT = "run `python tests/test_docs.py`"

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
EXAMPLE = re.compile(r"^\$ (.*)$", re.MULTILINE)


def play_page(text: str, folder: Path, *, keep_times: bool = True) -> Played:
    """Run the examples of a page in a folder with the example files."""
    make_example_files(folder)
    if "smollm2.gguf" in text:
        make_example_files(folder, ["smollm2.gguf"])
    played = play(text, folder, keep_times=keep_times)
    return played._replace(text=update_tables(played.text))


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings on GitHub and on the site."""
    headings = HEADING.findall(FENCE.sub("", text))
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PLAYED],
)
def test_a_page_shows_what_its_examples_print(name: str, tmp_path: Path) -> None:
    text = PAGES[name].read_text()
    played = play_page(text, tmp_path)
    assert without_times(played.text) == without_times(text), SCRIPT
    if name == TROUBLE:
        assert len(played.failures) == len(EXAMPLE.findall(text)) >= 20
        assert all("error: " in failure.output for failure in played.failures)
    else:
        assert played.failures == ()


@pytest.mark.long
def test_the_program_of_several_processes_prints_what_the_page_shows(tmp_path: Path) -> None:
    text = PAGES[PROCESSES].read_text()
    make_example_files(tmp_path)
    played = play_processes(text, tmp_path)
    assert (played.text, played.failures) == (text, ())


@each("name", PAGES)
def test_every_python_block_is_followed_by_what_it_prints(name: str) -> None:
    text = PAGES[name].read_text()
    blocks = re.findall(r"^```py(?:thon)?\n.*?^```\n(.*?\n)(.*?)$", text, re.DOTALL | re.MULTILINE)
    # tests/spec/test_api_names.py runs the only block of this page, for several modules.
    assert name == "docs/api-names.md" or all(after == ("\n", "```text") for after in blocks)


@each("name", PAGES)
def test_generated_tables_are_those_of_the_program(name: str) -> None:
    text = PAGES[name].read_text()
    assert update_tables(text) == text, SCRIPT


@each("name", PAGES)
def test_links_lead_to_files_and_headings_that_are_there(name: str) -> None:
    page = PAGES[name]
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in list_anchors(target.read_text()), link


def test_the_site_is_built_without_warnings_and_loads_nothing_from_a_network(
    tmp_path: Path,
) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (built.returncode, "WARNING" in built.stderr) == (0, False), built.stderr
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in tmp_path.iterdir()}
    loads = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:')
    for page in tmp_path.rglob("*.html"):
        found = [link for link in loads.findall(page.read_text()) if "canonical" not in link]
        assert found == [], page.name


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "install.md").read_text(), re.MULTILINE)
    # These two are for people who change weightctl.
    assert {*listed} == project["optional-dependencies"].keys() - {"docs", "test"}


def test_the_readme_is_for_newcomers_and_short() -> None:
    assert len(README.read_text().splitlines()) <= 250


@each("name", COMMANDS)
def test_every_command_has_a_page_with_its_options_and_a_session(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text()
    assert f"<!-- generated: options {name} -->" in text
    assert f"$ weightctl {name} " in text


@each("name", COMMANDS)
def test_pages_name_options_that_exist(name: str, weightctl: Run) -> None:
    options = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", weightctl("help", name).stdout))
    for page in PAGES.values():
        for used in re.findall(rf"weightctl {name} [^`\n]*", page.read_text()):
            command = re.split(r" (?:\||&&|\|\||#) ", used)[0]
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", command)) <= options, used


def write_again(name: str, *, keep_times: bool) -> str:
    """Write a page again; return the result, and the commands that failed."""
    text = PAGES[name].read_text()
    with tempfile.TemporaryDirectory() as folder:
        played = play_page(text, Path(folder).resolve(), keep_times=keep_times)
        failures = () if name == TROUBLE else played.failures
        if name == PROCESSES:
            played = play_processes(played.text, Path(folder))
            failures += played.failures
    PAGES[name].write_text(played.text)
    lines = [f"{name}: {'up to date' if played.text == text else 'written again'}"]
    lines += [f"  `{each.command}` ends with exit code {each.code}" for each in failures]
    return "\n".join(lines)


def main() -> None:
    """Write all pages again, or those that are named, and the schema of verify.

    Times are kept if nothing else changes, unless `--times` is given.
    """
    SCHEMA.write_text(update_schema(SCHEMA.read_text()))
    keep_times = "--times" not in sys.argv
    chosen = [each for each in sys.argv[1:] if each != "--times"]
    names = [name for name in PAGES if any(each in name for each in chosen or [name])]
    # Commands run in this process, and programs at the same time would slow each other down.
    with ProcessPoolExecutor(os.cpu_count() if keep_times else 1) as processes:
        for line in processes.map(partial(write_again, keep_times=keep_times), names):
            print(line, flush=True)


if __name__ == "__main__":
    main()
