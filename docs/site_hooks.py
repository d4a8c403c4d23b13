"""Puts the pages beside ``docs/`` on the site, and makes every link lead there.

The pages are written for the repository, where a link may lead to code. The site has no code, so such a link becomes
plain text. A link to a file that does not exist stays, and fails the build.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "experiments/README.md": "experiments/README.md",
    "examples/README.md": "examples/README.md",
}
"""Path in the repository -> path in the site's sources."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def _site_paths() -> dict[str, str]:
    """Every page and picture beside ``docs/``, by its path in the repository."""
    examples = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("examples/*/README.md"))]
    pictures = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("examples/*/*.png", "benchmarks/results/*.png", "experiments/results/*.png")
        for path in sorted(ROOT.glob(pattern))
    ]
    return ROOT_PAGES | {path: path for path in [*examples, *pictures]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for source, target in _site_paths().items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite each link of a page to where its target is on the site."""
    repository_paths = {target: source for source, target in _site_paths().items()}
    uri = page.file.src_uri
    source = repository_paths.get(uri, f"docs/{uri}")
    return _LINK.sub(lambda match: _rewrite(match, source, uri), markdown)


def _rewrite(match: re.Match[str], source: str, uri: str) -> str:
    image, text, link, anchor = match[1], match[2], match[3], match[4] or ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if not (ROOT / path).exists():
        return match[0]
    if (ROOT / path / "README.md").exists():
        path = f"{path}/README.md"
    target = _site_paths().get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    if target is None or (ROOT / path).is_dir():
        return text
    return f"{image}[{text}]({posixpath.relpath(target, posixpath.dirname(uri) or '.')}{anchor})"
