"""YAML is read as it stands: a number as the number one reads, or a sentence that says why not."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from titans.errors import TitansError
from titans.io.yaml import format_yaml, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("-010", -10),
        ("08", 8),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        ("0b11", 3),
        ("010.5", 10.5),
        ("1e3", 1000.0),
        ("4e-4", 0.0004),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("0e-999", 0.0),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("2024-02-30", "2024-02-30"),
        ("2024-02-03", "2024-02-03"),
        ("1__0", "1__0"),
        ("yes", "yes"),
        ("off", "off"),
        ("=", "="),
        ("True", True),
        ("~", None),
        ("", None),
        ("{<<: {a: 1}, a: 2}", {"a": 2}),
    ],
)
def test_what_stands_there_is_read(text, value):
    found = parse_yaml(text, "it")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 3000, "it is not YAML: its brackets are nested too deeply"),
        ("9" * 5000, "it, line 1: a number has 5,000 digits"),
        ("0x" + "f" * 5000, "it, line 1: a number has 5,002 digits"),
        (str(1 << 63), "it, line 1: 9223372036854775808 is beyond whole numbers of 64 bits"),
        ("a: 1\nb: 1e999", "it, line 2: 1e999 is beyond the numbers of a computer, which reads it as inf"),
        ("1e-999", "it, line 1: 1e-999 is beyond the numbers of a computer, which reads it as 0.0"),
        ("a: 1\nb: 2\na: 3", 'it, line 3: the key "a" stands twice'),
        ("{a: 1, 'a': 1}", 'it, line 1: the key "a" stands twice'),
        ("!!timestamp 2024-02-30", "it is not YAML: could not determine a constructor"),
        ("!!bool x", "it is not YAML: 'x'"),
        ("!!int x", "it is not YAML: invalid literal"),
    ],
)
def test_what_cannot_be_read_so_is_refused(text, message):
    with pytest.raises(TitansError) as refused:
        parse_yaml(text, "it")
    assert str(refused.value).startswith(message)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False)
    | st.text("0123456789abefox_:-+.~ ", max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab01:", max_size=3), inner, max_size=3),
    max_leaves=9,
))  # fmt: skip
def test_what_is_written_is_read_again(content):
    text = format_yaml(content)
    assert parse_yaml(text, "it") == content
    assert yaml.safe_load(text) == content
