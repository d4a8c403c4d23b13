"""Time until a run's page is painted and filled in headless Chromium: ``python -m benchmarks.store.first_paint``.

It opens the page of a run that goes on meanwhile, as ``lightningbus ui`` serves it, each time in a fresh browser
context, so without a cache. Server, browser and run share the machine.
"""

import argparse
import json
import shutil
import statistics
import urllib.request
from typing import Any

from playwright.sync_api import Browser, sync_playwright

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
ANSWERS = """performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/api/run/'))
  .map((entry) => [new URL(entry.name).pathname.split('/').pop(), entry.duration])"""
FILLED = "document.querySelectorAll('.panel').length > 8 && !document.querySelector('[aria-busy=true]')"


def time_page(browser: Browser, address: str, patience_s: float) -> dict[str, Any]:
    """Open the page once, without a cache.

    :param address: Of a run's page.
    :param patience_s: Seconds for all panels to be filled.
    :return: Milliseconds from the request to the first paint, to the last panel, and of each answer by its question.
    """
    context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    try:
        page = context.new_page()
        page.goto(address)
        page.wait_for_function(FILLED, timeout=1000 * patience_s)
        filled = page.evaluate("performance.now()")
        answers: dict[str, list[float]] = {}
        for question, duration in page.evaluate(ANSWERS):
            answers.setdefault(question, []).append(duration)
        return {"paint": page.evaluate(PAINT), "filled": filled, "answers": answers}
    finally:
        context.close()


def summarise(times: list[float]) -> dict[str, float]:
    """Give the median and the longest of times in milliseconds."""
    return {"p50_ms": round(statistics.median(times), 1), "max_ms": round(max(times), 1)}


def main() -> None:
    """Open the page several times and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store.first_paint", description=__doc__)
    parser.add_argument(
        "--url", default="http://127.0.0.1:8124", help="of the page; default: where `lightningbus ui` listens"
    )
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--times", type=int, default=15, help="how often the page is opened; default: 15")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="for all panels; default: 60")
    args = parser.parse_args()
    with urllib.request.urlopen(args.url) as response:
        response.read()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        parser.error("no chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        looks = [time_page(browser, f"{args.url}/#/run/{args.run}", args.patience) for _ in range(args.times)]
        browser.close()
    questions = sorted({question for look in looks for question in look["answers"]})
    figures = {
        "times": args.times,
        "first paint": summarise([look["paint"] for look in looks]),
        "all panels": summarise([look["filled"] for look in looks]),
        **{
            f"answer {question}": summarise([ms for look in looks for ms in look["answers"].get(question, [])])
            for question in questions
        },
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
