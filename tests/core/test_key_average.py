"""key_average: the means of metrics by their keys, nested or not, with NaN and values that are not
there."""

import math

import pytest
import torch

from trainer_nb import key_average

NAN = math.nan


@pytest.mark.parametrize(("dicts", "exclude", "expected"), [
    ([], False, {}),
    ([{}], False, {}),
    ([{"a": 1}, {"a": 2}], False, {"a": 1.5}),
    ([{"a": 1.0}, {"b": 4.0}, {"a": 3.0}], False, {"a": 2.0, "b": 4.0}),
    ([{"a": None}, {"a": 2.0}], False, {"a": 2.0}),
    ([{"a": None}, {"a": None}], False, {"a": NAN}),
    ([{"a": 1.0}, {"a": NAN}], False, {"a": NAN}),
    ([{"a": 1.0}, {"a": NAN}], True, {"a": 1.0}),
    ([{"a": NAN}, {"a": NAN}], True, {"a": NAN}),
    ([{"a": {"b": 1.0, "c": None}}, {"a": {"b": 3.0, "c": 5.0}}], False,
     {"a": {"b": 2.0, "c": 5.0}}),
    ([{"a": {"b": 1.0}}, {"c": 2.0}], False, {"a": {"b": 1.0}, "c": 2.0}),
    ([{"a": {"b": 1.0}}, {"a": None}], False, {"a": {"b": 1.0}}),
    ([{"a": {"b": NAN}}, {"a": {"b": 2.0}}], True, {"a": {"b": 2.0}}),
    ([{"a": {}}, {"a": {}}], False, {}),
    ([{"a": True}, {"a": False}], False, {"a": 0.5}),
    ([{"a/b": 1.0, "a": {"b": 3.0}}], False, {"a/b": 1.0, "a": {"b": 3.0}}),
    ([{1: 2.0}, {1: 4.0}], False, {1: 3.0}),
    ([{"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}], False, {"a": 1.5}),
    ([{"a": torch.tensor(NAN)}, {"a": torch.tensor(2.0)}], True, {"a": 2.0}),
    ([{"a": torch.tensor(1)}, {"a": 2.0}], False, {"a": 1.5}),
], ids=str)
def test_key_average(dicts, exclude, expected):
    """By the table: what counts is a value that is there."""
    found = key_average(dicts, exclude_nan=exclude)
    assert same(found, expected) and list(found) == list(expected)


def same(found, expected):
    """Equal numbers, NaN too; a tensor counts as its number."""
    if isinstance(expected, dict):
        return (isinstance(found, dict) and found.keys() == expected.keys()
                and all(same(found[key], expected[key]) for key in expected))
    return float(found) == expected or (math.isnan(found) and math.isnan(expected))


def test_key_average_of_tensors_and_iterables():
    """Tensors stay tensors of any shape; any iterable of dicts will do, and none is changed."""
    dicts = ({"a": torch.tensor([1.0, 2.0]), "b": {"c": i}} for i in range(3))
    found = key_average(dicts)
    assert torch.equal(found["a"], torch.tensor([1.0, 2.0])) and found["b"] == {"c": 1.0}
    given = [{"a": {"b": 1.0}}, {"a": {"b": 3.0}}]
    key_average(given)["a"]["b"] = 9
    assert given == [{"a": {"b": 1.0}}, {"a": {"b": 3.0}}]


@pytest.mark.parametrize("dicts",
                         [[{"a": 1.0}, {"a": {"b": 2.0}}], [{"a": {"b": 2.0}}, {"a": 1.0}]])
def test_a_number_here_and_a_dict_there(dicts):
    """No mean can be made; the key is named."""
    with pytest.raises(TypeError,
                       match=r"key_average\(\): a.* is a number in one dict and a dict in another"):
        key_average(dicts)
