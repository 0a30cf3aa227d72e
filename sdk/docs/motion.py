"""`python sdk/docs/motion.py OUT.webp`: the cockpit in motion, for the README's first screen.

Four emulated devices train the demo's network; a plan is clicked on, looked at, and gone over to. A
real Chromium shows the page of `home.window`, and its pictures become one file below 1 MB.
"""

import io
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import potluck
from potluck.samples import Digits, digits_network

WIDTH, HEIGHT = 1160, 900
SHOWN = (820, 636)  # as large as a README shows it
FRAME_MS = 450
FLAGS = ["--no-sandbox", "--disable-gpu"]
MOST_BYTES = 1_000_000
EPOCHS = 60


def main(path: Path) -> None:
    """Train, click, and write the file."""
    torch.set_num_threads(1)
    digits = Digits.load()
    images, labels = digits.train_images, digits.train_labels
    model = potluck.Model.from_torch(
        digits_network(),
        images[:4],
        loss=torch.nn.CrossEntropyLoss(),
        example_targets=labels[:4],
        name="digits",
    )
    with potluck.Home.lab("demo") as home:
        profile = home.profile(model, rows=(4, 16), repeats=1).wait()
        plans = potluck.plan(profile, potluck.Training(batch=64, micro_batch=16))
        begun = max(plans[:12], key=lambda plan: len(plan.devices))
        run = home.deploy(begun, optimizer=potluck.AdamW(lr=2e-3)).wait()
        batches = [(images[i : i + 64], labels[i : i + 64]) for i in range(0, 1408, 64)]
        training = run.fit(batches, epochs=EPOCHS, adapt=False)
        pictures = film(home.window(may_act=True))
        training.cancel()
        while not training.done:
            time.sleep(0.1)
    write(path, pictures)


def film(url: str) -> list[Any]:
    """The page from its first steps to those after the switch."""
    pictures: list[Any] = []
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(120_000)
        page.goto(url)
        page.locator(".pt").nth(1).wait_for()
        take(page, pictures, 8)
        others = page.locator(".pt:not([aria-label*='you are here']):not(.dim)")
        others.last.focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Switch to this plan").wait_for()
        take(page, pictures, 5)
        page.get_by_role("button", name="Switch to this plan").click()
        take(page, pictures, 4)
        page.get_by_text("switched by a click").wait_for()
        take(page, pictures, 4)
        page.get_by_text("after the switch a step takes").wait_for()
        take(page, pictures, 8)
        browser.close()
    return pictures


def take(page: Page, pictures: list[Any], n: int) -> None:
    """So many pictures more, as time goes by."""
    for _ in range(n):
        page.wait_for_timeout(FRAME_MS)
        picture = Image.open(io.BytesIO(page.screenshot()))
        pictures.append(picture.convert("RGB").resize(SHOWN, Image.Resampling.LANCZOS))


def write(path: Path, pictures: list[Any]) -> None:
    """One file, at the best quality that keeps it small."""
    for quality in (80, 60, 45, 30):
        pictures[0].save(
            path,
            save_all=True,
            append_images=pictures[1:],
            duration=FRAME_MS,
            loop=0,
            quality=quality,
            method=5,
        )
        if path.stat().st_size < MOST_BYTES:
            break
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, {len(pictures)} pictures")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
