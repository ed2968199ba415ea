"""Take the picture of the page in the README: a search of a real collection, served and opened in Chromium.

hybrid auto data/cacm --output out/cacm
python docs/picture.py out/cacm --collection data/cacm --query "Parallel algorithms"
"""

import argparse
import base64
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "page.webp"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")


def take(address: str, query: str) -> None:
    """Write the picture of the hits of both indexes and of the hybrid."""
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 680}, reduced_motion="reduce")
        page.goto(f"{address}#/search?q={query}")
        page.wait_for_selector(".measure .number", timeout=60_000)
        page.wait_for_load_state("networkidle")
        options = {"format": "webp", "quality": 80}
        picture = page.context.new_cdp_session(page).send("Page.captureScreenshot", options)
        PICTURE.write_bytes(base64.b64decode(picture["data"]))
        browser.close()


def main() -> None:
    """Serve a retriever on a free port, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("retriever", help="result of `hybrid auto` or `hybrid compose`")
    parser.add_argument("--collection", required=True, help="collection with judged queries")
    parser.add_argument("--query", required=True, help="text of a judged query")
    asked = parser.parse_args()
    words = ["serve", asked.retriever, "--collection", asked.collection, "--port", "0"]
    with subprocess.Popen([sys.executable, "-m", "hybrid_cli", *words], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            address = next(found[0] for line in server.stderr if (found := ADDRESS.search(line)))
            take(address, asked.query)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
