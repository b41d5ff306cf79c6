"""Reports as one HTML page that needs no other file: its style, tables and pictures."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5a6275; --line: #d5d9e2; --paper: #fff; --box: #f3f5f8;
  --first: #0b6e99; --second: #c4641b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ee; --soft: #a3abbd; --line: #3a4152; --paper: #14171f;
  --box: #1e232e; --first: #58b4dd; --second: #f09a55; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th, td { overflow-wrap: normal; } td { white-space: nowrap; } td:first-child { white-space: normal; }
th:first-child, td:first-child, .facts td { text-align: left; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { color: var(--soft); white-space: nowrap; }
pre { background: var(--box); padding: .8rem; white-space: pre-wrap; }
img { max-width: 100%; } svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
.soft { color: var(--soft); }
"""


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """Make a page.

    Args:
        title: its title and first heading, as text.
        body: what it shows, HTML.
        style: rules beyond those of all pages, CSS. Default: none.
    """
    title, content = html.escape(title), "\n".join(body)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}{style}</style></head><body>
<h1>{title}</h1>
{content}
</body></html>
"""


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), name: str = "") -> str:
    """Make a table of texts.

    Args:
        rows: its cells; the first column is set to the left, all others to the right.
        head: names of the columns. Default: none.
        name: its class in the style: "facts" sets all columns to the left. Default: none.
    """
    top = f"<tr>{_cells('th', head)}</tr>" if head else ""
    content = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{name}">{top}{content}</table></div>'


def bullets(sentences: Iterable[str]) -> str:
    """Make a list of sentences."""
    return f"<ul>{''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)}</ul>"


def image(png: bytes, alt: str) -> str:
    """Put a picture into the page itself."""
    return f'<img alt="{html.escape(alt, quote=True)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
