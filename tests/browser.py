"""Pages in Debian's Chromium, without a network."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

OFFLINE = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PHONE = {"width": 360, "height": 740}


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=OFFLINE)
        yield browser
        browser.close()


@contextlib.contextmanager
def watched(browser: Browser, file: Path, **options: Any) -> Iterator[Page]:
    """Open a file without a network, and fail if the browser complains."""
    complaints: list[str] = []
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda failed: complaints.append(failed.url))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert complaints == []


def luminance(page: Page, colour: str, of: str) -> float:
    """Return how bright a colour of an element is, from 0 to 255."""
    found = page.evaluate("([colour, of]) => getComputedStyle(document.querySelector(of))[colour]", [colour, of])
    return sum(map(float, re.findall(r"[\d.]+", found)[:3])) / 3
