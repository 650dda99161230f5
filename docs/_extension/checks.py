"""What a finished site is held to: all public names have a place, and its links lead somewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from _extension.names import public


class Page(HTMLParser):
    """The anchors and the targets of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps what a tag names and what it refers to."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.targets.append(value)


def check(app: Sphinx, exception: Exception | None) -> None:
    """Ends the build where a public name is missing, or a link of a page within the site leads nowhere."""
    if exception is not None or app.builder.format != "html":
        return
    documented = app.env.get_domain("py").data["objects"]
    missing = [path for paths in public().values() for path in paths if path not in documented]
    dead = dead_links(Path(app.outdir))
    if missing or dead:
        raise ExtensionError("\n".join([*(f"no page documents {path}" for path in missing), *dead]))


def dead_links(folder: Path) -> list[str]:
    """The links within a site that lead nowhere; those into other sites are not followed."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    dead = []
    for path, page in pages.items():
        for target in page.targets:
            link = urlsplit(target)
            if link.scheme or link.netloc:
                continue
            file = (path.parent / unquote(link.path)).resolve() if link.path else path
            # Sphinx links sources of inherited members to anchors of the base that pages of public names do not have.
            strict = link.fragment and file in pages and path.relative_to(folder).parts[0] != "_modules"
            lost = strict and unquote(link.fragment) not in pages[file].anchors
            if lost or not file.is_file():
                dead.append(f"{path.relative_to(folder)}: {target} leads nowhere")
    return dead
