"""The documentation, with the results in it, in headless Chromium, wide and on a phone: whole, fitting, accessible.

Nothing overflows, no image or script is broken, and axe-core has no serious finding. Skipped where there is no Chromium
(``CHROMIUM`` may say where it is), or ``make docs`` has built no site. axe-core is looked for in the package
``axe-core-python``, or where ``AXE`` says; without it that test is skipped.
"""

import functools
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking")

LOOK = """<pre id="found"></pre><script>
(async () => {
  const found = [], axe = AXE ? await (await fetch("/axe.js")).text() : "";
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.style.cssText = "width: WIDTHpx; height: 900px; border: 0";
    await new Promise((done) => { frame.onload = done; frame.src = page; document.body.append(frame); });
    const inside = frame.contentDocument, width = inside.documentElement.scrollWidth;
    for (const image of inside.images) image.loading = "eager";
    const loaded = (image) => image.complete || new Promise((done) => { image.onload = image.onerror = done; });
    await Promise.all([...inside.images].map(loaded));
    const broken = [...inside.images].filter((image) => image.naturalWidth === 0).map((image) => image.src);
    if (width > WIDTH || broken.length || !inside.querySelector("article, main")) found.push([page, width, ...broken]);
    if (AXE) {
      frame.contentWindow.eval(axe);
      const rules = { "definition-list": { enabled: false } };  // Sphinx writes signatures of several lines so
      const { violations } = await frame.contentWindow.axe.run(inside, { rules, resultTypes: ["violations"] });
      for (const { id, impact, nodes } of violations)
        if (["serious", "critical"].includes(impact)) found.push([page, id, nodes.length, nodes[0].html]);
    }
    frame.remove();
  }
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


def _axe() -> Path | None:
    """Where axe-core's script is; None where it is not."""
    package = importlib.util.find_spec("axe_core_python")
    places = [Path(place) for place in (os.environ.get("AXE"),) if place]
    if package and package.submodule_search_locations:
        places += [Path(place) / "axe.min.js" for place in package.submodule_search_locations]
    return next((place for place in places if place.is_file()), None)


class _Site(SimpleHTTPRequestHandler):
    look = ""

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path == "/look":
            return self._give("text/html", self.look.encode())
        axe = _axe()
        if self.path == "/axe.js" and axe:
            return self._give("text/javascript", axe.read_bytes())
        return super().do_GET()

    def _give(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def _served(look: str):
    handler = functools.partial(type("Site", (_Site,), {"look": look}), directory=str(SITE))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _looked_at(width: int, folder: Path, axe: bool) -> tuple[list, list[str]]:
    """What is wrong with the pages of the site at a width, and the lines of the console.

    Of the reference, whose pages are generated alike, every tenth page is looked at. axe-core, which takes a minute for
    a thousand cells, is asked of one paper's results only, as the pages of all papers are generated alike.
    """
    if not SITE.is_dir():
        pytest.skip("make docs has built no site")
    pages = sorted(f"/{page.relative_to(SITE)}" for page in SITE.rglob("*.html"))
    alike = [page for page in pages if page.startswith("/reference/generated")]
    left_out = {*alike} - {*alike[::10]}
    if axe:
        left_out |= {
            f"/results/{paper}.html"
            for paper in ("zord", "fzoos", "hiso", "ours", "scoreboards", "scoreboards-constrained")
        }
    pages = [page for page in pages if page not in left_out]
    assert {"/index.html", "/results/index.html", "/results/which-method.html"} <= set(pages)
    look = LOOK.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width)).replace("AXE", json.dumps(axe))
    with _served(look) as address:
        command = [CHROMIUM, *QUIET, f"--user-data-dir={folder}", "--virtual-time-budget=600000"]
        command += ["--enable-logging=stderr", "--dump-dom", f"{address}/look"]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=580, check=True)
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', seen.stdout, re.S)
    return json.loads(html.unescape(found)), [line for line in seen.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_and_are_whole(width, tmp_path):
    assert _looked_at(width, tmp_path, axe=False) == ([], [])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.skipif(_axe() is None, reason="there is no axe-core here; pip install axe-core-python brings it")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible(width, tmp_path):
    found, _ = _looked_at(width, tmp_path, axe=True)
    assert found == []
