"""What the site does beyond Markdown: the page of the command line, and links to files outside of the site."""

import os
import re
from pathlib import PurePosixPath

import typer
from mkdocs.structure.files import File
from typer.cli import get_docs_for_click

from titans.cli import app

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Write the page of the command line from what `--help` says."""
    os.environ["COLUMNS"] = "100"
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="titans"), name="titans")
    text = text.replace("# `titans`", "# The command line", 1)
    files.append(File.generated(config, "reference/command-line.md", content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Link to files of the repository where its address is known (`repo_url`), and leave the bare text where not."""
    folder = PurePosixPath(page.file.src_uri).parent

    def outside(match):
        text, target, anchor = match.groups()
        path = os.path.normpath(PurePosixPath("docs") / folder / target)
        if path.startswith("docs/") or page.file.src_uri == "reference/command-line.md":
            return match[0]
        return f"[{text}]({config.repo_url}/blob/main/{path}{anchor or ''})" if config.repo_url else text

    return LINK.sub(outside, markdown)
