"""``make screenshots``: pictures of the explorer, from real runs on releases of engines.

    python tests/screenshots.py FOLDER TRACE[=ENGINE:RELEASE][@last]...

makes for each kept trace a page on this release, else on the one that shows it worst, and pictures of it at the widths
of a desktop and of a phone, light and dark. The pictures begin where the step begins that breaks a law; with ``@last``
where the last step begins, such as the one that does harm.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from slotproof.pages import trace_page

SIZES, SCHEMES = ((1440, 780), (390, 1000)), ("light", "dark")
MOST_BYTES = 180_000


def main() -> int:
    """Takes the pictures; exit code 1 where one is too large for the repository."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("there is no chromium on this machine: no picture was taken")
        return 1
    out, names = Path(sys.argv[1]), sys.argv[2:]
    out.mkdir(parents=True, exist_ok=True)
    too_large = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for asked in names:
            shown, _, last = asked.partition("@")
            name, _, where = shown.partition("=")
            engine, _, release = where.partition(":")
            trace_page.run(Path(folder), name, engine or None, release or None, None)
            for width, height in SIZES:
                for scheme in SCHEMES:
                    page = started.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
                    page.goto((Path(folder) / "index.html").as_uri())
                    if last:
                        page.keyboard.press("End")
                    top = "#controls" if width > 400 else ".step:not([hidden])"
                    page.locator(top).evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 8)")
                    path = out / f"{name}{'-' * bool(last)}{last}-{width}-{scheme}.png"
                    page.screenshot(path=path)
                    page.close()
                    size = path.stat().st_size
                    print(f"{path}: {size} bytes")
                    too_large += [path] * (size > MOST_BYTES)
        started.close()
    return bool(too_large)


if __name__ == "__main__":
    sys.exit(main())
