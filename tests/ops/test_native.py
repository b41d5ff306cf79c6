"""The native kernel: where it is used, how it is built, and what only it could get wrong.

That it equals the reference in everything the other engines are tested for, test_associative_memory.py shows.
"""

import importlib
import logging
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

NATIVE = importlib.import_module("titans.ops.associative_memory.native")
BUILT = importlib.import_module("titans.ops.native")
BUILD = importlib.import_module("titans.ops.native.build")


@pytest.fixture
def calls(kernel, monkeypatch):
    """Count the runs of whole chunks by the kernel."""
    made = []

    def counted(options, inputs, keep, forward=NATIVE.forward):
        made.append(inputs[0].shape[2])
        return forward(options, inputs, keep)

    monkeypatch.setattr(NATIVE, "forward", counted)
    return made


@settings(max_examples=40)
@given(st.data())
def test_any_width_and_chunk_size(make_case, close, kernel, poisoned, data):
    """Nothing here is a multiple of the vectors' width, except by chance."""
    draw, depth, rule = data.draw, data.draw(st.integers(1, 4)), data.draw(st.sampled_from(("chunk", "token")))
    chunk_size = draw(st.integers(1, 40))
    options = {
        "depth": depth,
        "chunk_size": chunk_size,
        "tokens": chunk_size * draw(st.integers(1, 3)) + draw(st.integers(0, 1)),
        "width": draw(st.integers(1, 19)),
        "hidden": draw(st.integers(1, 35)),
        "batch": draw(st.integers(1, 2)),
        "heads": draw(st.integers(1, 2)),
        "activation": draw(st.sampled_from(("gelu", "silu", "relu"))),
        "residual": draw(st.booleans()),
        "rule": rule,
        "norm": None if rule == "token" else draw(st.sampled_from((None, "shared", "head"))),
        "limited": rule == "chunk" and depth > 1 and draw(st.booleans()),
        "feature_norm": draw(st.booleans()),
        "hidden_lr": draw(st.sampled_from((0.0, 0.5, 1.0))) if rule == "token" else 1.0,
        "step": 0.2 / chunk_size,
        "seed": draw(st.integers(0, 9)),
    }
    if options["norm"] is not None and options["width"] < 3:
        options["norm"] = None  # a norm of one or two numbers is a step function
    options["feature_norm"] &= options["hidden"] >= 3
    case = make_case(**options)
    close(case.gradients(), case.gradients(backend="naive"), 1e-10)


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu"])
@pytest.mark.parametrize("rule", [
    {"norm": "head", "step": 0.5 / 64, "limited": True},
    {"rule": "token", "feature_norm": True, "hidden_lr": 1 / 64},
    {"rule": "token", "depth": 1},
], ids=["chunk", "token", "token-matrix"])  # fmt: skip
def test_float32_of_the_usual_sizes(make_case, close, kernel, activation, rule):
    options = {"batch": 1, "tokens": 128, "width": 64, "hidden": 128, "chunk_size": 64, "residual": True,
               "activation": activation, **rule}  # fmt: skip
    single = make_case(**options, dtype=torch.float32).gradients()
    close(single, make_case(**options, backend="chunk").gradients(), 1e-4)


@pytest.mark.parametrize("group", [1, 8, 12])
def test_groups_change_no_gradient_under_the_token_rule(make_case, close, monkeypatch, calls, group):
    """States made anew from the errors that were kept, in groups of 1, 2 and 3 chunks; the last one is smaller."""
    case = make_case(tokens=35, chunk_size=4, rule="token", feature_norm=True, hidden_lr=0.5, depth=3, offset=1)
    whole = case.gradients()
    close(whole, case.gradients(backend="naive"), 1e-11)
    monkeypatch.setattr(NATIVE, "GROUP", group)
    close(case.gradients(), whole, 1e-12)
    assert calls


def test_used_without_padding_and_with_one_forget_gate(make_case, calls):
    deep = {"rule": "token", "feature_norm": True}
    for options in ({}, deep, {**deep, "hidden_lr": 0.5, "depth": 3}):
        make_case(tokens=13, chunk_size=4, offset=1, **options).run()  # 3 tokens, two chunks, 2 tokens
        assert calls == [1, 2, 1]
        calls.clear()
    make_case(tokens=13, chunk_size=4, rule="token", depth=1).run()  # no place in a chunk
    assert calls == [3, 1]
    calls.clear()
    for other in ({"channels": 4, "hidden": 4}, {"masked": True}):
        for rule in ("chunk", "token"):
            make_case(rule=rule, **other).run()
    assert calls == []
    assert not NATIVE.available(torch.empty(1, device="meta"))
    assert not NATIVE.available(torch.empty(1, dtype=torch.bfloat16))


def test_not_used_where_each_operation_must_be_seen(make_case, calls):
    case = make_case(tokens=3)
    with FlopCounterMode(display=False) as counter:
        case.run()
    assert counter.get_total_flops() > 0
    assert calls == []
    case.run()
    assert calls == [1]


RULES = pytest.mark.parametrize(
    "rule", [{"norm": "head", "limited": True}, {"rule": "token", "feature_norm": True}], ids=["chunk", "token"]
)


@RULES
def test_threads_change_no_bit(make_case, same, kernel, rule):
    case = make_case(batch=3, tokens=24, width=9, hidden=20, dtype=torch.float32, **rule)
    usual, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(case.gradients())
    finally:
        torch.set_num_threads(usual)
    same(found[1], found[0])
    same(found[2], found[0])


def test_views_of_one_tensor_need_no_copies(make_case, same, kernel):
    """Queries, keys and values as a layer makes them: side by side, heads within tokens."""
    case = make_case(tokens=8, width=5, chunk_size=4)
    parts = [case.inputs[name] for name in "qkv"]
    stacked = torch.stack(parts, 2)  # [B, T, 3, H, D]
    views = dict(zip("qkv", stacked.unbind(2), strict=True))
    assert not any(x.is_contiguous() for x in views.values())
    same(case.run(**views), case.run())


@RULES
def test_nan_spoils_results_only(make_case, kernel, rule):
    case = make_case(batch=2, tokens=8, **rule)
    expected, _ = case.run()
    for name in ("q", "k", "v", "theta", "alpha", "eta"):
        spoilt = case.inputs[name].clone()
        spoilt[0, 2] = torch.nan
        y, _ = case.run(**{name: spoilt})
        assert y[0].isnan().any()
        assert torch.equal(y[1], expected[1])


# The build -------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(kernel, monkeypatch, tmp_path):
    """An empty cache and a kernel of one function, so that a build takes no time."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "kernel.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int size() { return sizeof(REAL); }'
    )
    monkeypatch.setattr(BUILD, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return BUILD.load_kernel.__wrapped__


def built(tmp_path):
    return sorted((tmp_path / "cache" / "titans" / "native").iterdir())


def test_compiled_once_for_each_type_and_source(fresh, monkeypatch, tmp_path):
    assert fresh("float").size() == 4
    assert fresh("double").size() == 8
    assert len(built(tmp_path)) == 2
    assert (tmp_path / "cache" / "titans" / "native").stat().st_mode & 0o777 == 0o700
    with monkeypatch.context() as patch:
        patch.setattr(BUILD, "compile_kernel", lambda *_: pytest.fail("compiled again"))
        assert fresh("float").size() == 4
    (BUILD.SOURCES / "kernel.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int size() { return 5; }'
    )
    assert fresh("float").size() == 5
    assert len(built(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut short", "empty", "changed", "others may write"])
def test_only_a_whole_library_is_loaded(fresh, tmp_path, damage):
    assert fresh("float").size() == 4
    (path,) = built(tmp_path)
    data = path.read_bytes()
    path.unlink()  # so that what is loaded stays whole: to cut that short kills
    parts = {"cut short": data[: len(data) // 2], "empty": b"", "changed": data[:-1] + bytes([data[-1] ^ 1])}
    path.write_bytes(parts.get(damage, data))
    path.chmod(0o777 if damage == "others may write" else 0o700)
    if damage == "cut short":  # loading that fails, or kills with SIGBUS
        code = f"import ctypes; ctypes.CDLL({str(path)!r})"
        assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode != 0
    assert fresh("float").size() == 4
    (path,) = built(tmp_path)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o700


def failing(tmp_path, monkeypatch, script):
    """Make a compiler of a shell script the one to use."""
    path = tmp_path / "a compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setenv("CXX", f"'{path}' -w")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('printf "d\\351faut\\nhere" >&2; exit 1', "d\ufffdfaut here"),
        ("exec sleep 60", "timed out after"),
        ("sleep 60 & wait", "timed out after"),
        ('[ "$2" = --version ] || exit 3', "ended with status 3"),
        ("exit 0", "No such file"),
        ("kill -9 $$", "ended with status -9"),
    ],
)
def test_a_compiler_that_fails_costs_one_line(fresh, tmp_path, monkeypatch, caplog, script, said):
    failing(tmp_path, monkeypatch, script)
    monkeypatch.setattr(BUILD, "ANSWER", 0.3)
    assert fresh("float") is None
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert said in record.getMessage()
    assert "\n" not in record.getMessage()
    assert built(tmp_path) == []


def test_a_command_of_several_words_compiles(fresh, tmp_path, monkeypatch):
    failing(tmp_path, monkeypatch, 'shift; exec c++ "$@"')
    assert fresh("double").size() == 8


def test_a_command_that_no_shell_reads_costs_one_line(fresh, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/home/o'brien/g++")
    assert fresh("float") is None
    assert "CXX is" in caplog.text
    assert "No closing quotation" in caplog.text


def test_no_kernel_without_a_home(fresh, monkeypatch, caplog):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with caplog.at_level(logging.INFO):
        assert fresh("float") is None
    assert "this user has no home folder" in caplog.text


def test_no_kernel_where_the_cache_cannot_be_written(fresh, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    assert fresh("float") is None
    assert str(tmp_path / "cache") in caplog.text


def test_no_kernel_without_a_compiler(fresh, monkeypatch, caplog):
    monkeypatch.setattr(BUILD, "COMPILERS", ())
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.INFO):
        assert fresh("float") is None
    assert "no C++ compiler" in caplog.text


def test_no_kernel_where_it_does_not_compile(fresh, tmp_path, caplog):
    (BUILD.SOURCES / "kernel.cpp").write_text("this is not C++")
    assert fresh("float") is None
    assert "could not be compiled" in caplog.text
    assert built(tmp_path) == []


def test_no_kernel_from_a_folder_others_may_write_to(fresh, tmp_path, caplog):
    folder = tmp_path / "cache" / "titans" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with caplog.at_level(logging.INFO):
        assert fresh("float") is None
    assert "others may write" in caplog.text
    assert built(tmp_path) == []


def test_everything_works_without_it(make_case, close, monkeypatch):
    case = make_case(tokens=4, norm="head", residual=True)
    monkeypatch.setattr(BUILT, "load_kernel", lambda real: None)
    close(case.gradients(), case.gradients(backend="naive"), 1e-11)
