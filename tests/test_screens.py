"""The documentation in headless Chromium, wide and on a phone: nothing overflows, and no image or script is broken.

Skipped where there is no Chromium (``CHROMIUM`` may say where it is), or ``make docs`` has built no site.
"""

import functools
import html
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

SITE = Path(__file__).parents[1] / "docs" / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

LOOK = """<pre id="found"></pre><script>
(async () => {
  const found = [];
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.style.cssText = "width: WIDTHpx; height: 900px";
    await new Promise((done) => { frame.onload = done; frame.src = page; document.body.append(frame); });
    const inside = frame.contentDocument, width = inside.documentElement.scrollWidth;
    const broken = [...inside.images].filter((image) => image.naturalWidth === 0).map((image) => image.src);
    if (width > WIDTH || broken.length || !inside.querySelector("article")) found.push([page, width, ...broken]);
    frame.remove();
  }
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


class _Site(SimpleHTTPRequestHandler):
    look = ""

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path != "/look":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.look.encode())
        return None


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


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.skipif(not SITE.is_dir(), reason="make docs has built no site")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_and_are_whole(width, tmp_path):
    pages = sorted(f"/{page.relative_to(SITE)}" for page in SITE.rglob("*.html"))
    assert len(pages) > 20
    look = LOOK.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width))
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    with _served(look) as address:
        command = [CHROMIUM, *quiet, "--virtual-time-budget=600000", "--enable-logging=stderr", "--dump-dom"]
        seen = subprocess.run([*command, f"{address}/look"], capture_output=True, text=True, timeout=280, check=True)
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', seen.stdout)
    assert json.loads(html.unescape(found)) == []
    assert not [line for line in seen.stderr.splitlines() if "CONSOLE" in line]
