"""`titans inspect` writes one file that needs no other, with what the memory did."""

import json
import re
import shutil

import pytest
import torch

from titans.data import byte_tokenizer
from titans.errors import TitansError
from titans.evaluation.inspection import inspect
from titans.models.watching import watch
from titans.serving.inspection_page import inspection_page
from titans.training.pretrained import load_model

BYTES = byte_tokenizer()
HOSTILE = "</script><script>document.title='broken'</script><!-- <img src=x onerror=alert(1)> &lt; {{data}} \\u003c"


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(str(model_folder))


def data(page):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_numbers_are_those_of_the_trace(model):
    text = "Any split gives the same: € and é too."
    inspection = inspect(model, BYTES, [text])
    ids = torch.tensor([[256, *text.encode()]])
    with torch.no_grad(), watch(model) as trace:
        state = model(ids, use_cache=True).cache
    shown = data(inspection_page(inspection, {"Model": "m"}))
    names = ("surprise", "written", "dropped", "forgotten")
    got = torch.tensor([[token[name] for name in names] for token in shown["tokens"]])
    torch.testing.assert_close(got, torch.tensor([list(token) for token in trace.tokens(0)]))
    assert shown["lengths"] == [0, 32, len(ids[0])]
    assert [len(norms) for norms in shown["norms"]] == [2, 2, 2]
    weights = [w for layer in state.layers for mixer in layer for w in mixer.memory.memory.weights]
    total = torch.stack([w.square().sum() for w in weights]).sum().sqrt()
    assert inspection.total_norms[-1] == pytest.approx(float(total), rel=1e-5)
    assert shown["facts"] == {"Model": "m"}


def test_characters_are_shown_whole(model):
    tokens = inspect(model, BYTES, ["a€é"]).tokens
    assert [token.text for token in tokens] == ["<|bos|>", "a", "", "", "€", "", "é"]


def test_bytes_that_are_no_characters_are_not_lost(model):
    assert inspect(model, BYTES, ["a€"], limit=3).tokens[-1].text == "\ufffd"


def test_long_text_is_cut_and_the_page_says_so(model):
    whole, cut = (inspect(model, BYTES, ["x" * 59], limit=limit) for limit in (60, 50))
    assert (len(whole.tokens), whole.complete) == (60, True)
    assert (len(cut.tokens), cut.complete) == (50, False)
    assert cut.lengths == (0, 32, 50)


def test_page_loads_nothing(model):
    page = inspection_page(inspect(model, BYTES, ["x"]), {})
    assert not re.findall(r"(?:src|href)\s*=|@import|url\(", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in page
    assert not re.findall(r"^(?:import|export)\b|\{\{\w+\}\}", page, re.MULTILINE)


def test_hostile_text_stays_data(model):
    inspection = inspect(model, BYTES, [HOSTILE])
    page = inspection_page(inspection, {"file": HOSTILE})
    assert page.count("</script>") == 2
    assert page.count("<!--") == 0
    assert "".join(token["text"] for token in data(page)["tokens"]) == "<|bos|>" + HOSTILE
    assert data(page)["facts"]["file"] == HOSTILE


def test_no_memory_and_no_text(model):
    config = type(model.config)(**model.config.to_dict() | {"variant": "swa"})
    with pytest.raises(TitansError, match="has no memory"):
        inspect(type(model)(config), BYTES, ["x"])
    with pytest.raises(TitansError, match="the text is empty"):
        inspect(model, BYTES, [""])


def test_damaged_weights(model_folder):
    model = load_model(str(model_folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(TitansError, match="NaN"):
        inspect(model, BYTES, ["x"])


def test_command(titans, model_folder, tmp_path):
    out = tmp_path / "new" / "page.html"
    result = titans("inspect", model_folder, "some text", "--write", "never", "--out", out)
    assert re.search(r"tokens +10\n", result.output)
    assert data(out.read_text())["facts"] == {"Model": str(model_folder), "variant": "mac", "write": "never"}
    file = tmp_path / "text.txt"
    file.write_text("€" * 10)
    titans("inspect", model_folder, "--file", file, "--out", out)
    assert data(out.read_text())["facts"] | {"Model": ""} == {
        "Model": "",
        "variant": "mac",
        "file": str(file),
        "write": "always",
    }


def test_command_refuses(titans, model_folder, tmp_path):
    both = titans("inspect", model_folder, "x", "--file", "y", status=2)
    neither = titans("inspect", model_folder, status=2)
    assert "either as TEXT or as --file" in both.output
    assert both.output == neither.output
    assert "titans calibrate" in titans("inspect", model_folder, "x", "--write", "gated", status=2).output
    assert "cannot read" in titans("inspect", model_folder, "--file", tmp_path / "none.txt", status=2).output


def test_in_a_browser(model, tmp_path):
    """The page draws itself under its own policy, and what is hostile in the text stays text."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or pytest.skip("no browser: install Debian's chromium")
    path = tmp_path / "page.html"
    inspection = inspect(model, BYTES, [HOSTILE, " € "])
    path.write_text(inspection_page(inspection, {"Model": HOSTILE}), encoding="utf-8")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 740})
        problems = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.as_uri())
        assert page.locator("#text .trace").text_content() == "<|bos|>" + HOSTILE + " € "
        assert page.locator("#text .trace span").count() == len(HOSTILE) + 4
        assert page.locator("#top li").count() == 20
        assert page.locator("#charts svg").count() == 2
        assert page.title() == "Titans: what surprised the memory"
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.locator("#top button").first.focus()
        page.keyboard.press("Enter")
        assert "surprise" in page.get_by_role("status").text_content()
        assert page.locator(".pointed").count() == 1
        browser.close()
    assert problems == []
