"""The one style of all pictures: what is drawn where, and that files are whole."""

import builtins
import re

import pytest

from titans import html_page, plots
from titans.errors import TitansError


def test_lines_stand_where_they_are_told_with_their_intervals():
    _, (axes,) = plots.figure()
    plots.line(axes, [1, 2], [0.5, 1.0], 11, interval=([0.4, 1.0001], [0.7, 1.0]), label="a")
    (container,) = axes.containers
    drawn, _, (bars,) = container.lines
    assert drawn.get_xydata().tolist() == [[1, 0.5], [2, 1.0]]
    assert (drawn.get_color(), drawn.get_marker(), drawn.get_linestyle()) == (plots.color(1), "s", "--")
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[0.4, pytest.approx(0.7)], [1.0, 1.0]]


def test_axes_come_row_by_row_and_a_legend_names_each_line_once():
    drawn, axes = plots.figure(2, 3, size=(4, 3), sharey=True)
    assert [(a.get_subplotspec().rowspan.start, a.get_subplotspec().colspan.start) for a in axes] == [
        (row, column) for row in range(3) for column in range(2)
    ]
    for one in axes:
        plots.line(one, [0], [1], label="a")
    plots.line(axes[1], [0], [1], 1, label="b")
    plots.legend(drawn)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["a", "b"]
    plots.legend(axes[1])
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == ["a", "b"]


@pytest.mark.parametrize(
    ("length", "written"),
    [(100, "100"), (1024, "1K"), (2000, "2K"), (2048, "2K"), (1 << 20, "1M"), (10**6, "1M"), (2500, "2,500"), (0, "0")],
)
def test_lengths_as_readers_write_them(length, written):
    assert plots.short(length) == written


def test_points_beside_each_other():
    assert plots.beside([0, 1], 0, 3, 0.1) == pytest.approx([-0.1, 0.9])
    assert plots.beside([0, 1], 2, 3, 0.1) == pytest.approx([0.1, 1.1])


def test_files_are_written_whole(tmp_path):
    drawn, _ = plots.figure()
    (tmp_path / "a.png").write_bytes(b"old")
    picture = plots.save(drawn, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == picture
    assert picture.startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_svg_has_the_colours_of_its_page():
    drawn, (axes,) = plots.figure()
    plots.line(axes, [0, 1], [0, 1])
    axes.set(title="a title", xlabel="x")
    picture = plots.svg(drawn, 'a "picture"')
    assert picture.startswith('<svg role="img" aria-label="a &quot;picture&quot;"')
    used = set(re.findall(r"var\((--\w+)\)", picture))
    assert used == {"--ink", "--line", "--first"}
    assert all(f"{variable}:" in html_page.STYLE for variable in used | {"--second"})
    assert plots.svg(drawn, "", "a") != plots.svg(drawn, "", "b")


def test_who_has_no_matplotlib_is_told_what_to_install(monkeypatch):
    def missing(name, *rest, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *rest, **options)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(TitansError, match=r'pip install "titans-lm\[eval\]"'):
        plots.figure()
    with pytest.raises(TitansError, match="matplotlib"):
        plots.check()


def test_pages_show_text_as_text():
    page = html_page.page(
        "a < b", [html_page.table([["<i>", "2"]], ["n & m", ""], "facts"), html_page.bullets(["<b>"])]
    )
    assert "<title>a &lt; b</title>" in page
    assert "<th>n &amp; m</th><th></th>" in page
    assert '<table class="facts">' in page
    assert "<td>&lt;i&gt;</td><td>2</td>" in page
    assert "<li>&lt;b&gt;</li>" in page
    assert 'alt="a &quot;"' in html_page.image(b"", 'a "')
