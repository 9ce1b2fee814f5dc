"""Rules of values from files and states: what fits, what does not, and that nothing breaks them."""

import enum
from typing import Annotated, Any, Literal, NotRequired

import pytest
import torch

from trainer_nb.support.validate import COUNT, Most, check, fits, is_kind, misfit

HOSTILE = [None, True, -1, 2**63, 10**5000, float("nan"), float("inf"), "a" * 10_000, "\x00", b"x",
           [], [[]] * 3, {}, {"a": {}}, {1: 2}, {None: 1}, {"a": [1, "b", None]}, (), {1}, object(),
           torch.zeros(2), torch.zeros(2, dtype=torch.complex64)]
INNER: Any = {"a": int}
RULES = [int, float, str, bool, dict, list, tuple, Any, object, None, torch.Tensor, COUNT,
         int | None, list[int], list[list], tuple[int, str], tuple[float, ...], dict[str, float],
         dict[str, Any], dict[str, list[int | None]] | None, Literal["min", 1],
         {"a": int, "b": NotRequired[str]},
         {"a": list[INNER]}, Annotated[str, Most(3)], Annotated[list[INNER], Most(1)]]


@pytest.mark.parametrize("plain", [False, True])
def test_no_value_breaks_a_rule_and_texts_are_short(plain):
    for rule in RULES:
        for value in HOSTILE:
            text = misfit(value, rule, "it", plain)
            assert isinstance(text, str) and len(text) < 400, (rule, value)


@pytest.mark.parametrize("value, rule", [
    (0, COUNT), (2**63 - 1, int), (3, float), (float("nan"), float), (None, int | None),
    ([1, 2.5], tuple[float, ...]), ([1, "a"], tuple[int, str]), ([1, "a", None], tuple),
    ({"a": 1, "more": []}, {"a": int, "b": NotRequired[str]}), ("abc", Annotated[str, Most(3)]),
    ([], list[int]), ({"a": {}}, dict[str, dict])])
def test_what_fits(value, rule):
    assert fits(value, rule) and misfit(value, rule, "it", plain=True) == ""


@pytest.mark.parametrize("value, rule, text", [
    (-1, COUNT | None, "it is -1 and out of range: 0 or more"),
    (True, int, "it is bool True, and not int"),
    (2**63, int, "it is an int of more than 64 bits, and not int"),
    ([1], Any, "it is a list of 1, and not Any"),
    (200, Annotated[int, range(-1, 100)], "it is 200 and out of range: -1 to 99 are allowed"),
    ([[0], [1, "2"]], list[list[int]], "it[1][1] is str '2', and not int"),
    ({"a": {3: 4}}, dict[str, dict[str, int]], "a key of it['a'] is int 3, and not str"),
    ({"a": 1}, {"a": int, "b": str}, "it lacks 'b'"),
    ({"b": 2}, {"b": NotRequired[str]}, "it['b'] is int 2, and not str"),
    ({"a": [{"a": "x"}]}, {"a": list[INNER] | None}, "it['a'][0]['a'] is str 'x', and not int"),
    ([1, 2], Annotated[list[int], Most(1)], "it has 2 items, and at most 1 are allowed"),
    ("abcd", Annotated[str, Most(3)], "it has 4 characters, and at most 3 are allowed")])
def test_what_does_not_fit_is_named(value, rule, text):
    assert not fits(value, rule) and misfit(value, rule, "it", plain=True) == text
    with pytest.raises(ValueError) as told:
        check(value, rule, "it")
    assert str(told.value) == text


def test_a_number_with_too_many_digits_to_print_is_named():
    assert misfit(10**5000, float, "it") == "it is an int of more than 64 bits, and not float"


def test_states_hold_more_than_json():
    """A tensor below `object`, and a scale of 2**127 that is a whole number."""
    state = {"scale": 2**127, "kept": torch.zeros(1)}
    rule = {"scale": float, "kept": object}
    assert misfit(state, rule, "it") == "" and not fits(state, rule)


def test_a_number_of_an_enumeration_is_looked_at_at_once():
    """Not among all numbers of 64 bits, one after the other."""
    class Size(enum.IntEnum):
        SMALL = 5
    assert is_kind(Size.SMALL, int) and misfit(Size.SMALL, str, "it").startswith("it is Size")
