"""export(): the name that is written is the one that was meant, and no other file is lost."""

import json

import pytest
import small_runs


@pytest.fixture
def trainer():
    trainer = small_runs.make()
    trainer.step(1)
    return trainer


@pytest.mark.parametrize(("given", "written"), [
    ("net", "net.safetensors"), ("net.safetensors", "net.safetensors"),
    ("net_lr0.01", "net_lr0.01.safetensors"), ("v1.2.3", "v1.2.3.safetensors")])
def test_the_suffix_is_added_and_nothing_is_taken_from_the_name(given, written, trainer, tmp_path):
    path = trainer.export(tmp_path / given)
    assert path.name == written
    assert {each.name for each in tmp_path.iterdir()} == {
        written, written.replace(".safetensors", ".json")}


def test_two_rates_in_two_names_are_two_files(trainer, tmp_path):
    paths = {trainer.export(tmp_path / f"net_lr{rate}") for rate in (0.01, 0.02)}
    assert len(paths) == 2 and all(path.exists() for path in paths)


@pytest.mark.parametrize("name", [f"net.{each}" for each in "pt pth bin pt2 onnx json".split()])
def test_another_format_is_refused_with_the_right_name(name, trainer, tmp_path):
    with pytest.raises(ValueError, match=r"writes safetensors: '.*net\.safetensors'"):
        trainer.export(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['{"cat": 0}', "[1, 2]", "not JSON", '{"weights": "mine"}'])
def test_a_description_of_something_else_is_kept(text, trainer, tmp_path):
    labels = tmp_path / "labels.json"
    labels.write_text(text)
    with pytest.raises(ValueError, match=r"write over '.*labels\.json', which no export"):
        trainer.export(tmp_path / "labels")
    assert [each.name for each in tmp_path.iterdir()] == ["labels.json"]
    assert labels.read_text() == text


def test_an_export_is_written_again(trainer, tmp_path):
    path = trainer.export(tmp_path / "net")
    trainer.step(1)
    assert trainer.export(tmp_path / "net") == path
    assert json.loads(path.with_suffix(".json").read_text())["steps"] == 2
