"""The page on a real server: a model answers, and its memory is seen, kept, forked and reset."""

import re
import shutil

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
expect = api.expect


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Debian's chromium")
def test_a_chat_with_a_model_and_its_memory(serve):
    server = serve("--max-new-tokens", 8)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(error))
        page.set_content(f'<a href="{server.url}">a link of another site</a>')
        page.get_by_text("a link of another site").click()
        expect(page.locator("#model option")).to_have_text("tiny", timeout=20_000)
        page.get_by_label("Message", exact=True).fill("hello")
        page.keyboard.press("Enter")
        expect(page.locator(".message")).to_have_count(2, timeout=20_000)
        expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=20_000)
        read = 1 + len("hello") + 8  # a model without a chat template goes on from plain text
        expect(page.locator("#numbers")).to_contain_text(f"Tokens read{read}")
        written = re.compile(r"written \d+ · skipped 0 · dropped 0")
        expect(page.locator(".outcome").last).to_have_text(written)
        assert page.get_by_role("article", name="Model").locator(".trace span").count() > 0
        (memory,) = server.http.get("/v1/memories").json()["data"]
        assert memory["tokens"] == read
        browser.close()
    assert errors == []
