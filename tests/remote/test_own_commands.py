"""A command that a hook registers is one in every front end: panel, offer, attached run, page,
shell and agents, each from the same record."""

import asyncio
import json
import os

import pytest
import torch
from feed_page import Page
from steered import until
from torch import nn

from trainer_nb import Hook, Trainer, attach
from trainer_nb.core.commands import Button, CommandSpec, Value, read_commands
from trainer_nb.core.control import Command, CommandHandler
from trainer_nb.panel.feed import Feed
from trainer_nb.remote import cli, mcp, serve
from trainer_nb.remote.cli import main

NAME = "keep_weights"


class Keeper(Hook):
    """Keeps copies of the weights when it is asked to, three at most."""

    def __init__(self):
        self.kept = {}

    def before_fit(self, trainer):
        """Register the command."""
        spec = CommandSpec(
            NAME, "Keep a copy of the weights", {"label": Value(doc="its name", needed=False)},
            (Button("Keep", "camera", values={"label": "panel"}),
             Button("Keep the best", unavailable=lambda view: "There is no best one")),
            lambda view: "Three copies are kept" if len(self.kept) == 3 else "",
            examples=("keep_weights runs/exp1 evening", "keep_weights 50% %(prog)d"))
        trainer.mailbox.register(spec, CommandHandler(self.keep))
        self.trainer = trainer.view

    def keep(self, command):
        """Keep a copy."""
        self.kept[command.values.get("label", "none")] = self.trainer.position.step


@pytest.fixture
def run(tmp_path):
    """A run that is trained in the background, in runs/exp1 of the current folder."""
    before = os.getcwd()
    os.chdir(tmp_path)
    x = torch.ones(8, 3)
    keeper = Keeper()
    trainer = Trainer(nn.Linear(3, 1), train_dl=[(x, x[:, :1])] * 4, loss_fn=nn.MSELoss(),
                      max_steps=10**7, device="cpu", progress=False, hooks=[keeper],
                      workspace="runs/exp1", seed=0)
    trainer.start()
    until(lambda: NAME in read_commands(json.loads(offer_text(tmp_path))))
    yield trainer, keeper
    trainer.stop().wait()
    trainer.wait()
    trainer.close()
    os.chdir(before)


def offer_text(folder):
    """The file in which the run says what it takes."""
    path = folder / "runs" / "exp1" / "control" / "offer.json"
    return path.read_text() if path.exists() else "{}"


def test_the_panel_has_its_button(run):
    """A page is told the button's values, and why it is off."""
    trainer, keeper = run
    page = Page(trainer.feed).hello()
    spec = page.view["commands"][NAME]
    assert page.view["commands"]["rewind"]["at"] < spec["at"]
    page.command(NAME, **dict(spec["buttons"]["Keep"]["values"]))
    until(lambda: page.answers)
    assert list(keeper.kept) == ["panel"] and page.answers[0]["status"] == "applied"
    keeper.kept |= {"a": 1, "b": 2}
    trainer.feed.look()
    assert page.view["commands"][NAME]["buttons"]["Keep"]["why_not"] == "Three copies are kept"


def test_an_attached_run_has_it(run):
    """Label, tooltip and reason come from what the run offers; wrong values are not sent."""
    _, keeper = run
    there = attach("runs/exp1")
    until(lambda: NAME in there.view.commands)
    page = Page(Feed(there.view)).hello()
    button = page.view["commands"][NAME]["buttons"]["Keep"]
    assert button["doc"] == "Keep a copy of the weights" and "why_not" not in button
    other = page.view["commands"][NAME]["buttons"]["Keep the best"]
    assert other["why_not"] == "There is no best one"
    with pytest.raises(ValueError, match="label=5.* is refused: it takes a text, or None"):
        there._ask(NAME, label=5)
    with pytest.raises(ValueError, match="did you mean 'label'"):
        there._ask(NAME, labl="x")
    page.command(NAME, **dict(button["values"]))
    until(lambda: page.answers)
    assert list(keeper.kept) == ["panel"]
    keeper.kept |= {"a": 1, "b": 2}
    until(lambda: there.view.commands[NAME].why_not(there.view) == "Three copies are kept")
    there.close()


def test_it_is_a_verb_in_the_shell(run, capsys):
    """Its help, its value, the list of verbs, and a wrong word."""
    _, keeper = run
    assert main([NAME, "evening"]) == 0 and list(keeper.kept) == ["evening"]
    assert main([NAME, "runs/exp1", "late", "--json"]) == 0 and "late" in keeper.kept
    assert main([NAME]) == 0 and "none" in keeper.kept
    capsys.readouterr()
    assert main(["--help"]) == 0
    assert "of this run:\n  keep_weights  keep a copy of the weights" in capsys.readouterr().out
    assert main([NAME, "--help"]) == 0
    help = capsys.readouterr().out
    assert "[RUN] [LABEL]" in help and "trainer-nb keep_weights runs/exp1 evening\n" in help
    assert main([NAME, "a", "b"]) == 2 and main(["keep_weight"]) == 2
    said = capsys.readouterr().err
    assert "which label? its name" in said and "there is no such command" in said


def test_the_page_has_its_button(run):
    """With what it does, and the values that it sends."""
    _, keeper = run
    page = serve.Page("runs/exp1")
    command = json.loads(page.view("steer").body)["commands"][NAME]
    button = command["buttons"]["Keep"]
    assert button["doc"] == "Keep a copy of the weights" and "why_not" not in button
    assert button["values"] == [["label", "panel"]]
    sent = json.dumps({"command": NAME, "values": dict(button["values"])}).encode()
    assert json.loads(page.command(sent).body)["status"] == "applied" and keeper.kept


def test_an_agent_may_be_allowed_to(run, capsys):
    """Only where it is named; the tool has the value and its description."""
    _, keeper = run
    own = mcp.own_commands(mcp.Reach(["runs"]))
    rules = mcp.Rules(allow=(NAME,), known=(*mcp.ACTS, *own))
    server = mcp.server_of(["runs"], rules)
    tools = {each.name: each for each in asyncio.run(server.list_tools())}
    assert set(tools) == {*mcp.READS, NAME}
    assert "Keep a copy of the weights. label: its name." in tools[NAME].description
    asked = {"run": "exp1", "reason": "why", "label": "night"}
    asyncio.run(server.call_tool(NAME, asked))
    until(lambda: "night" in keeper.kept)
    with pytest.raises(ValueError, match="--allow keep_weights: one of"):
        mcp.Rules(allow=(NAME,))
    assert main(["mcp", "runs", "--allow", "keep_weight"]) == 2
    assert "did you mean keep_weights?" in capsys.readouterr().err


WRONG = [("Keep", {}, "small letters"), ("", {}, "small letters"),
         ("keep", {"run": Value()}, "'run' as a value of keep"),
         ("keep", {"a b": Value()}, "'a b' as a value")]


@pytest.mark.parametrize(("name", "values", "words"), WRONG, ids=str)
def test_wrong_declarations_are_refused(name, values, words):
    """Before anything is registered."""
    with pytest.raises(ValueError, match=words):
        CommandSpec(name, values=values)


def test_a_strange_kind_is_refused():
    with pytest.raises(ValueError, match="kind='date'.*int, float, bool, str"):
        Value("date")


HOSTILE = {"a name": {"../x": {"values": {}}}, "no object": {"keep": 5}, "no values": {"keep": {}},
           "values of texts": {"keep": {"values": {"a": "int"}}},
           "a kind": {"keep": {"values": {"a": {"kind": "__import__"}}}},
           "many values": {"keep": {"values": {f"v{i}": {"kind": "int"} for i in range(21)}}},
           "a reserved one": {"keep": {"values": {"run": {"kind": "str"}}}}}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_offer_is_data(kind):
    """What cannot be read is left out; the rest stands."""
    good = {"keep_it": {"doc": "x\x1b[31m" + "y" * 500, "values": {}, "examples": ["\x07a"] * 9,
                        "buttons": [{"label": "\x07Keep", "states": 5}] * 9}}
    found = read_commands({"commands": HOSTILE[kind] | good})
    assert list(found) == ["keep_it"]
    spec = found["keep_it"]
    assert len(spec.doc) == 200 and spec.doc.isprintable() and len(spec.buttons) == 5
    assert spec.buttons[0].label == "Keep" and spec.buttons[0].states == ()
    assert spec.examples == ("a",) * 5
    for offer in ({}, {"commands": []}, {"commands": {"keep": []}}):
        assert read_commands(offer) == {}
    assert len(read_commands({"commands": {f"c{i}": {"values": {}} for i in range(99)}})) == 50


class Fragile(Hook):
    """Its commands fail: one when it is asked whether it can act, one since its owner is gone."""

    def before_fit(self, trainer):
        """Register two commands."""
        def unavailable(view):
            raise KeyError("no such part")

        class Owner:
            """Nobody holds it."""

            def act(self, command):
                """Never called."""

        trainer.mailbox.register(CommandSpec("broken", buttons=(Button("Broken"),),
                                             unavailable=unavailable))
        trainer.mailbox.register(CommandSpec("left", buttons=(Button("Left"),)),
                                 CommandHandler(Owner().act))


def test_a_command_that_fails_harms_nothing(tmp_path):
    """The button says the error; a command whose owner is gone is refused, and the run goes on;
    other processes still see and steer the run."""
    x = torch.ones(8, 3)
    trainer = Trainer(nn.Linear(3, 1), train_dl=[(x, x[:, :1])] * 4, loss_fn=nn.MSELoss(),
                      max_steps=10**7, device="cpu", progress=False, hooks=[Fragile()],
                      workspace=tmp_path / "exp1", seed=0)
    trainer.start()
    until(lambda: (tmp_path / "exp1" / "control" / "offer.json").exists())
    there = attach(tmp_path / "exp1")
    until(lambda: "broken" in there.view.commands)
    for view in (trainer.view, there.view):
        [button] = Feed(view).whole("commands")["commands"]["broken"]["buttons"].values()
        assert "no such part" in button["why_not"]
    reply = trainer.post(Command("left")).wait()
    assert reply.status == "refused" and "Owner that is gone" in reply.reason
    assert trainer.state == "running"
    assert there.pause().wait().status == "applied"
    trainer.stop().wait()
    trainer.wait()
    there.close()
    trainer.close()


SHELL = {"resume --skip-failed": ("resume", {"skip_failed": True}),
         "resume --no-skip-failed": ("resume", {"skip_failed": False}),
         "resume": ("resume", {}), "step": ("step", {"n": 1}), "step 3": ("step", {"n": 3}),
         "step --epochs 2": ("step", {"epochs": 2}),
         "turn --share 0.5 5": ("turn", {"share": 0.5, "count": 5}),
         "turn 5 --share 0.5 --off": ("turn", {"count": 5, "share": 0.5, "off": True}),
         "note two words": ("note", {"text": "two words"})}


@pytest.mark.parametrize("line", SHELL)
def test_the_values_of_a_line(line, monkeypatch):
    """Flags and words of the shell become the values that are declared."""
    sent = []
    turn = CommandSpec("turn", "Turn", {"count": Value("int"), "share": Value("float"),
                                        "off": Value("bool", needed=False)})
    run = type("Run", (), {"path": "exp1"})
    monkeypatch.setattr(cli, "own_commands", lambda given=None: {"turn": turn})
    monkeypatch.setattr(cli, "split_run", lambda given, words, own: (run, words))
    monkeypatch.setattr(cli, "send", lambda run, name, values, options: sent.append((name, values)))
    main(line.split())
    assert sent == [SHELL[line]]
