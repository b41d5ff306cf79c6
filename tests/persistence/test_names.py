"""Names: the good ones have folders of their own, the others are refused."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.persistence import InvalidNameError
from titans.persistence.names import check_name, to_folder, to_name

ALPHABET = string.ascii_letters + string.digits + "._-@:+"
NAMES = st.text(ALPHABET, min_size=1, max_size=128).filter(lambda name: set(name) != {"."})
SPECIAL = {"con", "prn", "aux", "nul", *(f"{device}{i}" for device in ("com", "lpt") for i in range(10))}


@settings(max_examples=200)
@given(NAMES)
def test_a_folder_says_its_name_and_is_nothing_special(name):
    folder = to_folder(name)
    assert to_name(folder) == name
    assert len(folder) < 200
    assert not set(folder) & set('/\\:*?"<>|.~$% ')
    assert folder.partition(".")[0].lower() not in SPECIAL


@settings(max_examples=200)
@given(st.text("aAbB.:,;", min_size=1, max_size=4), st.text("aAbB.:", min_size=1, max_size=4))
def test_different_names_have_folders_that_differ_without_case(one, two):
    if one != two and set(one) <= set(ALPHABET) and {"."} not in (set(one), set(two)):
        assert to_folder(one).lower() != to_folder(two).lower()


@pytest.mark.parametrize(
    "name", ["..a", "a.", ".:.", "con", "CON", "a" * 128, "A" * 128, "a@b.c:d+e-f_g", "-rf", "=" * 0 + "x"]
)
def test_names_that_look_odd_are_fine(name):
    assert to_name(to_folder(name)) == check_name(name)


@pytest.mark.parametrize("name", [
    "", "a" * 129, "../x", "a/b", "a\\b", "a b", "a\n", "\0", "é", "\uff41", "\u0663", "a=0", "a,b", "%2e%2e",
    "~", "a*", "x" * 10**6, ".", "..", "." * 128,
], ids=range(20))  # fmt: skip
def test_other_names_are_refused(name):
    with pytest.raises(InvalidNameError, match="choose another name") as caught:
        to_folder(name)
    assert len(str(caught.value)) < 300


@settings(max_examples=200)
@given(st.text("aA=01f.,", max_size=6))
def test_folders_of_others_have_no_name(folder):
    name = to_name(folder)
    assert name is None or to_folder(name) == folder
