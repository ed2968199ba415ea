"""Chromium for the tests of the served page; without it they are skipped, or fail if REQUIRE_BROWSER=1."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
PATIENCE = 60_000  # milliseconds, on a busy machine


def required() -> str:
    """Return the path of the browser; skip the test, or fail, without it."""
    missing = "no browser" if BROWSER is None else "" if find_spec("playwright") else "playwright is not installed"
    if missing:
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)(missing)
    return str(BROWSER)


@contextmanager
def chromium() -> Iterator[Any]:
    path = required()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


class Tab:
    """A page in a browser of its own, and its faults: errors of the console and of scripts, requests elsewhere."""

    def __init__(self, browser: Any, url: str, width: int = 1280, scheme: str = "light", **options: Any):
        self.faults: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._requested)
        self.url = url

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.faults.append(request.url)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and "ERR_CONNECTION" not in message.text:  # the server was killed
            self.faults.append(f"{message.type}: {message.text}")

    def open(self, fragment: str) -> None:
        self.page.goto(f"{self.url}{fragment}")
