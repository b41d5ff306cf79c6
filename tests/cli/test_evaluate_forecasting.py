"""`titans evaluate forecasting`: its table shows the numbers of its JSON, and it goes on where it was interrupted."""

import json
import math
import signal
import time

import pytest

OPTIONS = ("--horizons", "4,8", "--look-back", 24, "--epochs", 1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """300 hours of two channels."""
    path = tmp_path_factory.mktemp("data") / "small.csv"
    rows = (f"2020-01-{1 + i // 24:02} {i % 24:02}:00,{math.sin(i / 4):.4f},{i % 7}" for i in range(300))
    path.write_text("date,a,b\n" + "\n".join(rows) + "\n")
    return path


def test_table_is_json(titans, logged, dataset, tmp_path):
    command = ("evaluate", "forecasting", dataset, *OPTIONS, "--models", "dlinear,repeat", "--seeds", 2)
    result = titans(*command, "--out", tmp_path)
    printed = result.stdout
    assert len(logged(result)) == 6
    saved = json.loads((tmp_path / "forecasting.json").read_text())
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line[:1] == "│"]
    for number, model in enumerate(("dlinear", "repeat")):
        means = saved["means"][model]
        for line, error in zip(lines[2 * number :], ("mse", "mae"), strict=False):
            expected = [f"{means[key][error]:.4f}" for key in ("4", "8", "all horizons")]
            if model == "dlinear":
                expected[-1] += f" ± {means['all horizons'][f'{error}_deviation']:.4f}"
            assert line[1:] == [error.upper(), *expected]
        assert lines[2 * number][0] == model
    assert len(lines) == 4
    assert saved["description"] in printed
    assert "protocol custom" in saved["description"]
    assert saved["description"].endswith("deviations: horizons 4, 8; look-back 24; 2 seeds; epochs 1")
    assert "forecasting.png" in printed
    assert (tmp_path / "forecasting.png").read_bytes()[:4] == b"\x89PNG"
    again = titans(*command, "--out", tmp_path).stdout
    assert again == printed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--protocol", "mine"), "the protocol is 'mine', expected one of ett, custom"),
        (("--protocol", "ett"), "small has 300 rows, but the ett protocol needs the first 14,400"),
        (("--horizons", "96;192"), 'the horizons are "96;192", expected whole numbers'),
        (("--horizons", "720"), "need 744"),
        (("--horizons", "4,4"), "expected different numbers"),
        (("--models", "titan"), '"titan" is no model: expected different ones of lmm'),
        (("--learning-rate", "nan"), "learning rate is nan"),
        (("--minutes", "0"), "minutes is 0"),
        (("--epochs", "0"), "--epochs"),
    ],
)
def test_bad_options(titans, dataset, tmp_path, options, sentence):
    result = titans("evaluate", "forecasting", dataset, *OPTIONS, *options, "--out", tmp_path / "out", status=2)
    assert sentence in result.stderr
    assert not (tmp_path / "out").exists()


def test_bad_files(titans, tmp_path):
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    (tmp_path / "words.csv").write_text("date,a\n2020-01-01,x\n2020-01-02,y\n2020-01-03,z\n")
    for name in ("binary.csv", "words.csv", "gone.csv"):
        result = titans("evaluate", "forecasting", tmp_path / name, status=2)
        assert result.stderr.startswith(f"error: {tmp_path / name}: ")
        assert result.stderr.count("\n") == 1


def test_other_settings_in_the_folder(titans, dataset, tmp_path):
    command = ("evaluate", "forecasting", dataset, *OPTIONS, "--models", "repeat", "--out", tmp_path)
    titans(*command)
    sentence = titans(*command, "--batch-size", 7, status=2).stderr
    assert "holds results under other settings (training, dlinear training" in sentence


def test_a_file_in_place_of_the_folder(titans, dataset):
    result = titans("evaluate", "forecasting", dataset, *OPTIONS, "--out", dataset / "out", status=2)
    assert result.stderr == f"error: {dataset} is a file: expected a folder to write to\n"


@pytest.mark.slow
def test_interrupt(titans, start_titans, dataset, tmp_path):
    out = tmp_path / "out"
    command = ["evaluate", "forecasting", str(dataset), "--horizons", "4,8", "--look-back", "24", "--seeds", "999"]
    command += ["--models", "dlinear", "--epochs", "1", "--out", str(out)]
    process = start_titans(*command)
    results, deadline = out / "results.jsonl", time.monotonic() + 120
    while not results.exists() or results.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in errors
    kept = results.read_bytes()
    assert f"interrupted: what is finished is in {out}, the same command goes on" in errors
    command[command.index("999")] = "1"
    titans(*command)
    assert results.read_bytes().startswith(kept)
