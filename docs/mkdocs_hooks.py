"""The site has the pages of docs/, and what they link to elsewhere in the repository.

Links in the pages are those of the repository, so that they work on GitHub; here they are rewritten
for the site. An example becomes a page, and a link to a folder plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urldefrag

from mkdocs.structure.files import File

import sparrowboost

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {  # pages outside docs/, and their names on the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(```.*?```)", re.DOTALL)


def site_name(path: Path) -> str:
    """Return where a file of the repository is on the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".py":
        return f"{name.removesuffix('.py')}.md"
    return PAGES.get(name, name)


def is_local(target: str) -> bool:
    """Return whether a link leads to another file of the repository."""
    return not re.match(r"[a-z]+:|#", target)


def links_of(page: Path) -> list[Path]:
    """Return the files and folders that a page links to."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    targets = [match[3] for match in LINK.finditer(text) if is_local(match[3])]
    return [(page.parent / urldefrag(target).url).resolve() for target in targets]


def on_files(files, config):
    """Add the pages and the linked files that are outside docs/, and the generated page."""
    pages = [ROOT / name for name in PAGES]
    linked = {path for page in (*pages, *DOCS.glob("*.md")) for path in links_of(page)}
    for path in sorted({*pages, *linked}):
        if not path.is_file() or path.is_relative_to(DOCS):
            continue
        if path.suffix == ".py":
            code = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
            files.append(File.generated(config, site_name(path), content=code))
        else:
            files.append(File.generated(config, site_name(path), abs_src_path=str(path)))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown, *, page, **_):
    """Turn links of the repository into links of the site."""
    if page.file.abs_src_path is None:
        return markdown
    source = Path(page.file.abs_src_path)
    folder = Path(page.file.src_uri).parent

    def rewrite(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if not is_local(target):
            return match[0]
        url, anchor = urldefrag(target)
        path = (source.parent / url).resolve()
        if path.is_dir():
            return text
        url = os.path.relpath(site_name(path), folder)
        return f"{mark}[{text}]({url}{'#' + anchor if anchor else ''})"

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(rewrite, part) for part in parts[::2]]
    return "".join(parts)


def api_page() -> str:
    """Return a page with every public name, for mkdocstrings to fill."""
    lines = ["# Python", "", "Every public name, from its docstring.", ""]
    for name in sparrowboost.__all__:
        if not name.startswith("__"):
            lines += [f"::: sparrowboost.{name}", ""]
    return "\n".join(lines)
