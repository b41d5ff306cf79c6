"""The page that the server shows, driven in a browser.

It runs against the fake server beside it; what the tests say about requests holds for any server of the same API.
"""

import re
import shutil

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no browser: install Debian's chromium", allow_module_level=True)

from tests.serving.fake_server import FakeServer, serving, traced, words  # noqa: E402

pytestmark = pytest.mark.slow  # one chat with a served model is among the quick ones: test_page_served.py

expect = api.expect
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script> &amp; </p>"


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def server():
    with serving(FakeServer()) as fake:
        fake.remember("default", "main", 1204)
        fake.remember("default", "other", 88)
        fake.remember("anna", "diary", 5)
        yield fake


@pytest.fixture
def page(browser, server):
    """The page, opened; at the end, it must have caused no error in the console and asked no other host."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        page.set_default_timeout(10_000)
        errors, urls = [], []
        page.on("pageerror", lambda error: errors.append(error))
        page.on("console", lambda message: errors.append(message) if message.type == "error" else None)
        page.on("request", lambda request: urls.append(request.url))
        page.goto(server.url)
        expect(page.locator("#memories button")).to_have_count(2)
        yield page
        # the browser itself reports what a test had the API refuse
        assert [e for e in errors if "/v1/" not in getattr(e, "location", {"url": ""})["url"]] == []
        assert [url for url in urls if not url.startswith((server.url, f"blob:{server.url}"))] == []


def say(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page, messages=2):
    expect(page.locator(".message")).to_have_count(messages)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def opened(page, memory):
    expect(page.locator("#where-memory")).to_have_text(memory)
    expect(page.locator("#memories [aria-current] .name")).to_have_text(memory)


def confirm(page, name, action, typed=None):
    """Press a button of the page, and the one of the dialog that it opens."""
    page.get_by_role("button", name=name, exact=True).click()
    dialog = page.get_by_role("dialog")
    if typed is not None:
        dialog.get_by_label("Name").fill(typed)
    dialog.get_by_role("button", name=action, exact=True).click()


# Chat


def test_an_answer_streams_in_with_what_it_did_to_the_memory(page, server):
    server.pause = 0.4
    opened(page, "other")  # the one that was used last
    say(page, "What is the code?")
    answer = page.get_by_role("article", name="Model").locator(".trace")
    expect(answer).to_have_text("The code ")  # not complete, and there already
    answered(page)
    expect(answer).to_have_text("The code is 714.")
    expect(page.get_by_role("article", name="You").locator(".trace")).to_have_text("What is the code?")
    expect(page.locator("#announcer")).to_have_text("The code is 714.")

    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "What is the code?"}]
    assert (body["model"], body["user"], body["memory"]) == ("demo-mac", "default", "other")
    assert (body["stream"], body["trace"], body["temperature"], body["max_tokens"]) == (True, True, 0.8, 256)
    assert "write" not in body  # as the model is set up

    expect(page.locator("#numbers")).to_contain_text("Tokens read99")  # 88, 4 words and 7 tokens
    expect(page.locator("#numbers")).to_contain_text("State40 KiB")
    expect(page.locator(".outcome").last).to_have_text(re.compile(r"written \d+ · skipped \d+ · dropped \d+ "))
    expect(page.locator("#charts svg")).to_have_count(3)
    expect(page.locator("#memories [aria-current] .hint")).to_have_text("99 tokens · 40 KiB")


def test_only_the_new_message_is_sent(page, server):
    say(page, "one")
    answered(page)
    say(page, "two")
    answered(page, 4)
    assert [len(body["messages"]) for body in server.bodies] == [1, 1]
    label = page.locator("#charts svg").first.get_attribute("aria-label")
    assert re.fullmatch(r"Memory norm over 2 answers: from 13.1 to 13.5, lowest 13.1, highest 13.5", label)


def test_tokens_show_surprise_and_what_became_of_them(page, server):
    server.answer = words("a b c d e f g h i j k l m n o p q r s t u v w x y z")
    say(page, "x")
    answered(page)
    spans = page.locator(".message .trace span")
    got = spans.evaluate_all("all => all.map(s => [s.textContent, +s.dataset.level, s.className])")
    tokens = [traced(0, "x", False), *(traced(1 + i, text, True) for i, text in enumerate(server.answer))]
    surprises = sorted(token["surprise"] for token in tokens)
    for (text, level, marks), token in zip(got, tokens, strict=True):
        rank = surprises.index(token["surprise"]) / len(tokens)
        assert text == token["text"]
        assert level == sum(rank >= start for start in (0.5, 0.7, 0.85, 0.95, 0.99))
        assert ("written" in marks, "partly" in marks, "dropped" in marks) == (
            token["written"] == 1,
            0 < token["written"] < 1,
            token["dropped"] > 0,
        )
    assert {"written", "partly", "dropped"} <= {mark for _, _, marks in got for mark in marks.split()}


def test_pieces_of_a_character_are_one(page, server):
    """A server traces a token that completes no character with an empty text."""
    server.answer = ["", "é", "", "", "€", ""]
    say(page, "x")
    answered(page)
    spans = page.get_by_role("article", name="Model").locator(".trace span")
    assert spans.all_text_contents() == ["é", "€", "\ufffd"]


def test_text_is_never_markup(page, server):
    server.answer = [HOSTILE[:9], HOSTILE[9:]]
    say(page, HOSTILE)
    answered(page)
    for who in ("You", "Model"):
        assert page.get_by_role("article", name=who).locator(".trace").text_content() == HOSTILE
    assert page.locator(".conversation img, .conversation script").count() == 0
    assert page.title() == "other – Titans"


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stop(page, server, way):
    server.pause = 0.3
    say(page, "x")
    expect(page.get_by_role("article", name="Model").locator(".trace")).to_contain_text("The ")
    if way == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    answered(page)
    expect(page.locator(".outcome").last).to_have_text("stopped")
    for _ in range(50):
        if server.cancelled:
            break
        page.wait_for_timeout(50)
    assert server.cancelled == 1  # the server knows, and need not go on
    server.pause = 0
    say(page, "y")  # and the page goes on
    answered(page, 4)
    expect(page.get_by_role("article", name="Model").last).to_contain_text("714.")


def test_settings_are_sent(page, server):
    page.get_by_label("Write to memory").select_option("gated")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("7")
    say(page, "x")
    answered(page)
    assert (server.bodies[0]["write"], server.bodies[0]["temperature"], server.bodies[0]["max_tokens"]) == (
        "gated",
        0,
        7,
    )
    page.get_by_label("Max tokens").fill("0")
    say(page, "y")
    page.wait_for_timeout(100)
    assert len(server.bodies) == 1  # the browser says what is wrong with the field


def test_plain_text_goes_as_it_is(page, server):
    page.get_by_label("Send as").select_option("plain")
    server.answer = ["v"]
    say(page, " #K")
    answered(page)
    (body,) = server.bodies
    assert body["prompt"] == " #K"
    assert not {"messages", "plain"} & set(body)
    expect(page.get_by_role("article", name="Model").locator(".trace")).to_have_text("v")


def test_a_model_without_chats_is_sent_plain_text(browser, server):
    server.template = False
    page = browser.new_page()
    page.goto(server.url)
    expect(page.get_by_label("Send as")).to_have_value("plain")
    page.close()


# Errors


@pytest.mark.parametrize(
    ("status", "headers", "sentence"),
    [
        (429, {"Retry-After": "7"}, "There are too many requests. Try again in 7 seconds."),
        (503, {"Retry-After": "1"}, "The server is busy or shutting down. Try again in 1 second."),
        (503, {}, "The server is busy or shutting down. Try again later."),
        (409, {}, "Another request got there first: what the server says. Try again."),
        (400, {}, "what the server says"),
    ],
)
def test_a_refusal_is_one_sentence_and_loses_nothing(page, server, status, headers, sentence):
    server.fail = (status, headers, "what the server says")
    say(page, "a long thought")
    expect(page.get_by_role("alert")).to_have_text(re.compile(f"^\\s*{re.escape(sentence)}"))
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator(".empty")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_value("a long thought")
    page.keyboard.press("Enter")  # again
    answered(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_store_that_fails_is_said_so(page, server):
    server.fail = (503, {"Retry-After": "1"}, "the store is read-only: let this process write it")
    server.code = "store_failed"
    say(page, "x")
    expect(page.get_by_role("alert")).to_contain_text("the store is read-only: let this process write it")


def test_an_error_within_an_answer(page, server):
    server.break_off = True
    say(page, "x")
    expect(page.get_by_role("alert")).to_contain_text("the model broke down")
    expect(page.get_by_role("article", name="Model")).to_contain_text("The code")
    expect(page.locator(".outcome").last).to_have_text("broken off")


def test_no_server(page, server):
    page.route("**/v1/**", lambda route: route.abort())
    say(page, "x")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.unroute_all()


def test_key(page, server):
    server.key = "secret"
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The server asks for an API key")
    page.get_by_label("API key").fill("secret")
    page.keyboard.press("Tab")
    expect(page.locator("#memories button")).to_have_count(2)
    say(page, "x")
    answered(page)
    page.reload()  # the key is kept while the tab is open
    expect(page.locator("#memories button")).to_have_count(2)


# Memories


def test_switch_between_memories_and_users(page, server):
    say(page, "to other")
    answered(page)
    page.get_by_role("button", name="main 1,204 tokens").click()
    opened(page, "main")
    expect(page.locator(".empty")).to_contain_text("This memory has read 1,204 tokens")
    say(page, "to main")
    answered(page)
    page.get_by_role("button", name="other").click()
    expect(page.get_by_role("article", name="You")).to_have_text(re.compile("to other"))
    page.get_by_label("User").fill("anna")
    page.keyboard.press("Tab")
    opened(page, "diary")
    page.get_by_label("User").fill("nobody")
    page.keyboard.press("Tab")
    opened(page, "main")
    expect(page.locator(".empty")).to_contain_text("Nothing read yet")
    expect(page.get_by_role("button", name="Fork")).to_be_disabled()
    assert [body["memory"] for body in server.bodies] == ["other", "main"]


def test_switching_stops_what_runs(page, server):
    server.pause = 0.3
    say(page, "x")
    expect(page.get_by_role("article", name="Model").locator(".trace")).to_contain_text("The ")
    page.get_by_role("button", name="main").click()
    opened(page, "main")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_role("button", name="other").click()
    expect(page.locator(".outcome").last).to_have_text("stopped")


def test_new_memory_exists_from_its_first_message(page, server):
    confirm(page, "New", "Create", typed="not a/name")
    expect(page.get_by_role("dialog")).to_be_visible()  # refused by the browser, in words
    page.get_by_label("Name").fill("a.name")
    page.keyboard.press("Enter")
    opened(page, "a.name")
    expect(page.locator("#memories [aria-current] .hint")).to_have_text("new")
    assert ("default", "a.name") not in server.memories
    say(page, "x")
    answered(page)
    expect(page.locator("#memories [aria-current] .hint")).to_have_text("8 tokens · 40 KiB")


def test_fork(page, server):
    confirm(page, "Fork", "Fork", typed="main")
    expect(page.get_by_role("alert")).to_contain_text("the memory main exists already")
    confirm(page, "Fork", "Fork")
    opened(page, "other-2")
    assert server.memories["default", "other-2"]["tokens"] == 88


def test_reset_and_delete_ask_first(page, server):
    say(page, "x")
    answered(page)
    confirm(page, "Reset", "Cancel")
    confirm(page, "Delete", "Cancel")
    assert server.memories["default", "other"]["tokens"] == 96
    confirm(page, "Reset", "Reset")
    expect(page.locator("#memories [aria-current] .hint")).to_have_text("0 tokens · 40 KiB")
    expect(page.locator(".note")).to_contain_text("The memory was reset")
    expect(page.locator("#charts svg")).to_have_count(0)
    confirm(page, "Delete", "Delete")
    opened(page, "main")
    assert ("default", "other") not in server.memories
    expect(page.locator("#memories button")).to_have_count(1)


def test_download_and_upload(page, server, tmp_path):
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    download = waiting.value
    assert download.suggested_filename == "other.safetensors"
    saved = tmp_path / "saved copy.safetensors"
    download.save_as(saved)
    assert saved.read_text() == "88"
    with page.expect_file_chooser() as choosing:
        page.get_by_role("button", name="Upload").click()
    choosing.value.set_files(saved)
    page.get_by_role("dialog").get_by_role("button", name="Upload").click()
    opened(page, "saved-copy")
    assert server.memories["default", "saved-copy"]["tokens"] == 88


def test_more_memories_than_one_list_holds(page, server):
    for i in range(120):
        server.remember("many", f"s{i:03d}", 1)
    page.get_by_label("User").fill("many")
    page.keyboard.press("Tab")
    expect(page.locator("#memories button")).to_have_count(100)
    page.get_by_role("button", name="Show more memories").click()
    expect(page.locator("#memories button")).to_have_count(120)
    expect(page.get_by_role("button", name="Show more memories")).to_be_hidden()
    say(page, "x")
    answered(page)
    expect(page.locator("#memories button")).to_have_count(120)  # still all of them


def test_a_memory_beyond_the_first_list_is_known(page, server):
    for i in range(120):
        server.remember("many", f"s{i:03d}", 7)
    page.get_by_label("User").fill("many")
    page.keyboard.press("Tab")
    expect(page.locator("#memories button")).to_have_count(100)
    confirm(page, "New", "Create", typed="s110")
    opened(page, "s110")
    current = page.locator("#memories [aria-current] .hint")
    expect(current).to_have_text("7 tokens · 40 KiB")
    expect(page.locator(".empty")).to_contain_text("This memory has read 7 tokens")
    say(page, "x")
    answered(page)
    expect(current).to_have_text("15 tokens · 40 KiB")
    for name in ("Fork", "Download", "Reset", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_enabled()
    confirm(page, "Reset", "Reset")
    expect(current).to_have_text("0 tokens · 40 KiB")
    expect(page.locator("#memories button")).to_have_count(101)
    confirm(page, "Delete", "Delete")
    opened(page, "s099")
    assert ("many", "s110") not in server.memories
    expect(page.locator("#memories [aria-current]")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Reset")).to_be_in_viewport()


@pytest.mark.parametrize(
    ("what", "shown", "told"),
    [("damaged", "damaged", "This memory is damaged"), ("foreign", "of another model", "belongs to another model")],
)
def test_a_memory_that_cannot_be_read_can_be_reset(page, server, what, shown, told):
    server.memories["default", "other"][what] = True
    page.reload()
    page.get_by_role("button", name=f"other {shown}").click()
    opened(page, "other")
    expect(page.locator(".empty")).to_contain_text(told)
    expect(page.get_by_role("button", name="Fork")).to_be_disabled()
    for name in ("Download", "Delete"):
        expect(page.get_by_role("button", name=name)).to_be_enabled()
    confirm(page, "Reset", "Reset")
    expect(page.locator("#memories [aria-current] .hint")).to_have_text("0 tokens · 40 KiB")
    expect(page.get_by_role("button", name="Fork")).to_be_enabled()
    say(page, "x")
    answered(page)


# For everyone


def test_keyboard_alone(page, server):
    def tab_to(target):
        for _ in range(40):
            page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError("the Tab key does not come there")

    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the message field")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("first")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second")
    page.keyboard.press("Control+Enter")
    answered(page)
    assert server.bodies[0]["messages"][0]["content"] == "first\nsecond"
    expect(page.get_by_label("Message", exact=True)).to_be_focused()

    page.reload()
    tab_to(page.get_by_role("button", name="main"))
    page.keyboard.press("Enter")
    opened(page, "main")
    expect(page.get_by_role("button", name="main")).to_be_focused()
    tab_to(page.get_by_role("button", name="Delete"))
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")  # closes the dialog
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Delete")).to_be_focused()


def test_tokens_by_arrow_keys(page, server):
    say(page, "x")
    answered(page)
    text = page.get_by_role("article", name="Model").locator(".trace")
    detail = page.get_by_role("status")
    text.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(detail).to_have_text(re.compile(r"“code ” +surprise \d\.\d+, above \d+ % on screen · (skipped|written)"))
    page.keyboard.press("End")
    expect(detail).to_contain_text("“.”")
    page.keyboard.press("Shift+Tab")
    expect(detail).to_be_empty()
    text.locator("span").first.hover()
    expect(detail).to_contain_text("“The ”")


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_scrolls_sideways(page, server, width):
    server.answer = [*words("The code is " + "long" * 60), HOSTILE]
    page.set_viewport_size({"width": width, "height": 740})
    page.reload()
    expect(page.locator("#memories button")).to_have_count(2)  # it is ready
    say(page, "w" * 200)
    answered(page)
    page.locator("details").evaluate_all("all => all.forEach(fold => (fold.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sideways = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.className)"
    assert page.locator(".side, .chat, .conversation, .memory").evaluate_all(sideways) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, server, scheme):
    """Text on every level of surprise, and on every ground, has a contrast of at least 4.5 (WCAG AA)."""
    page.emulate_media(color_scheme=scheme)
    colour = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"

    def luminance(name):
        value = page.evaluate(colour, f"--{name}").strip().lstrip("#")
        parts = [int(value[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(a, b):
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    grounds = ("paper", "surface", *(f"level-{i}" for i in range(1, 6)))
    texts = [("ink", ground) for ground in grounds]
    texts += [(text, ground) for text in ("muted", "danger", "accent") for ground in ("paper", "surface")]
    texts += [("on-accent", "accent"), ("danger", "danger-paper")]
    assert {pair: contrast(*pair) for pair in texts if contrast(*pair) < 4.5} == {}
    lines = [(line, ground) for line in ("written", "dropped") for ground in grounds]
    lines += [("edge", "paper"), ("edge", "surface")]
    assert {pair: contrast(*pair) for pair in lines if contrast(*pair) < 3} == {}
