"""Documents tell the truth: commands and files that they name exist, references do not drift."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from support.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

generate_docs = load_script("generate_docs")


def inline_code(text: str) -> list[str]:
    """What stands between single backticks, outside fenced blocks."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z]+):", text, re.M))


@pytest.mark.parametrize("name", sorted(generate_docs.pages()))
def test_generated_references_have_not_drifted(name: str) -> None:
    written = (ROOT / "docs" / name).read_text()
    assert written == generate_docs.pages()[name], "run make docs"


def test_the_reference_covers_every_command_and_option() -> None:
    from octavo.config import table

    page = generate_docs.cli_page()
    for row in table():
        assert f"`{row.env}`" in page and f"`{row.flag}" in page
    for command in ("serve", "run", "chat", "pull", "check", "bench serve", "config show"):
        assert f"## octavo {command}\n" in page


def test_the_readme_begins_with_the_two_commands() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.strip()]
    assert lines[0] == "# Octavo" and lines[1] == "```sh"
    assert [line.split()[:2] for line in lines[2:4]] == [["make", "serve"], ["make", "test"]]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_links_of_documents_exist(document: Path) -> None:
    text = document.read_text()
    snippets = inline_code(text) + re.findall(r"```sh\n(.*?)```", text, re.S)
    for snippet in snippets:
        for line in snippet.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["make"]:
                targets = [word for word in words[1:] if word.isalpha() and word.islower()]
                assert set(targets) <= make_targets(), line
            if words[:1] == ["octavo"] and re.fullmatch("[a-z]+", " ".join(words[1:2])):
                assert f"## octavo {words[1]}" in generate_docs.cli_page(), line
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_named_in_documents_exist(document: Path) -> None:
    """`path/to/file.py` must exist (also within src/octavo); `file.py: name()` must hold it."""
    for snippet in inline_code(document.read_text()):
        found = re.fullmatch(r"([\w/.-]+\.(?:py|cpp|md|sh))(?::\s([\w.]+)\(\))?", snippet)
        if not found:
            continue
        candidates = [ROOT / found[1], ROOT / "src/octavo" / found[1], ROOT / "csrc" / found[1]]
        path = next((path for path in candidates if path.exists()), None)
        assert path is not None, snippet
        if found[2]:
            assert defines(path, found[2]), snippet


def test_the_path_of_a_request_is_told_by_functions_that_exist() -> None:
    snippets = inline_code((ROOT / "docs/how-it-works.md").read_text())
    assert sum(snippet.endswith("()") and ".py" in snippet for snippet in snippets) > 30
    assert not defines(ROOT / "src/octavo/deploy.py", "no_such_function")


def defines(path: Path, dotted: str) -> bool:
    """Whether a module defines `function`, `Class` or `Class.method`."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for name in dotted.split("."):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        node = next((n for n in body if isinstance(n, kinds) and n.name == name), None)
        if node is None:
            return False
        body = node.body
    return True


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Apache-2.0" in str(project["license"])


def test_flags_in_documents_exist() -> None:
    from octavo.cli.flags import flags_of
    from octavo.config import table

    known = {flag for row in table() for flag in "/".join(flags_of(row)).split("/")}
    known |= {"--config", "--url", "--json", "--help", "--no-deps", "--strict"}
    known |= {"--against", "--baseline", "--text"}
    for document in DOCUMENTS:
        for snippet in inline_code(document.read_text()):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", snippet):
                if document.name != "cli.md":
                    assert flag in known, f"{document.name}: {flag}"
