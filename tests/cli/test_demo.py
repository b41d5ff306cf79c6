import json

import pytest
from typer.testing import CliRunner

from titans.cli import app
from titans.demo import demonstrate as demo


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "no/such/file.txt"], "does not exist"),
        (["--data", "small.txt"], "the demo needs at least"),
        (["--data", "latin1.txt"], "latin1.txt is not UTF-8"),
    ],
)
def test_bad_data_is_one_sentence_and_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.txt").write_text("too little")
    (tmp_path / "latin1.txt").write_bytes("caf\xe9 ".encode("latin-1") * 100)
    result = CliRunner().invoke(app, ["demo", *arguments, "--out", "out"])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.strip().count("\n") == 0


@pytest.mark.slow
def test_from_text_to_report_and_models(tmp_path, monkeypatch):
    import dataclasses

    from titans import TitansForCausalLM

    tiny = dataclasses.replace(demo.QUICK, steps=2, text_bytes=64, recall_bytes=64, questions=2, test_bytes=256)
    monkeypatch.setattr(demo, "QUICK", tiny)
    (tmp_path / "a.txt").write_text("Some text to learn from, line after line.\n" * 1500)
    out = tmp_path / "report"
    result = CliRunner().invoke(app, ["demo", "--quick", "--data", str(tmp_path / "a.txt"), "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    assert f"written: {out / 'report.html'}" in result.stdout
    assert "too short to learn recall" in result.stdout
    assert "too short to learn recall" in (out / "report.html").read_text()
    numbers = json.loads((out / "results.json").read_text())
    parameters = {name.lower().replace(" ", "-"): numbers[name]["parameters"] for name in numbers if name != "run"}
    for name in ("titans-mac", "titans-lmm", "attention-only"):
        model = TitansForCausalLM.from_pretrained(out / name)
        assert model.num_parameters() == parameters[name]
