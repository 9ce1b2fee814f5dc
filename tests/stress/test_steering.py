"""A notebook, a shell and an agent steer one run that is killed again and again:
nothing is applied twice, nothing is left without a reply, and a replay makes the same bits.

`PYTHONPATH=tests python tests/stress/test_steering.py 1000 10` sends a thousand commands to two
processes that are killed ten times; a seed may follow.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
import warm
from steered import Process, environment, until

from trainer_nb.folder.control import FINAL

SOURCES = "notebook", "shell", "agent:night"
CLIENTS = Path(__file__).with_name("steering_clients.py")
SAME = "weights", "moments", "ticks", "place"

pytestmark = pytest.mark.slow


def steer(folder, count, kills, processes, seed, epochs):
    """The run, its commands and the result, after n commands and kills."""
    draw, run = (random.Random(seed),
                 Process(folder, epochs=epochs, every=7, processes=processes, pause=0.01).start())
    words = [sys.executable, str(CLIENTS), str(folder)]
    senders = [warm.Popen([*words, source, str(count // 3), str(seed + number)],
                          stdout=subprocess.PIPE, text=True, env=environment())
               for number, source in enumerate(SOURCES)]
    for number in range(kills):
        answered = count * (number + draw.random()) / (kills + 1)
        until(lambda: len(run.replies.read()) >= answered
              or all(each.poll() is not None for each in senders))
        time.sleep(draw.uniform(0, 0.1))
        if run.running.poll() is None:
            run.kill()
        run.start()
    sent = [json.loads(line) for each in senders
            for line in each.communicate(timeout=3600)[0].splitlines()]
    assert not any(each.returncode for each in senders)
    run.replies.wait(sent[-1][0], 300)
    sent.append([run.send("stop"), "stop"])
    return run, dict(sent), run.end(600)


def check(run, sent, found):
    """Each command has one final word that is so."""
    replies = run.replies.read()
    unanswered = {id for id in sent if replies.get(id, {}).get("status") not in FINAL}
    assert not unanswered, [(sent[id], replies.get(id)) for id in unanswered]
    applied = Counter(found["surviving"])
    twice = {id for id, times in applied.items()
             if times > len({entry["name"] for entry in found["journal"]
                             if entry["command"] == id})}
    assert not twice, twice
    words = {id: replies[id]["status"] for id in sent if id in replies}
    wrong = {id for id in applied if words[id] != "applied"}
    wrong |= {id for id, word in words.items()
              if word == "applied" and replies[id].get("entry") is not None and id not in applied}
    assert not wrong, [(replies[id], id in applied) for id in wrong]
    again = run.replay()
    assert [again[name] for name in SAME] == [found[name] for name in SAME]
    return Counter(words.values())


@pytest.mark.parametrize("processes, count, kills",
                         [(1, 36, 2), pytest.param(2, 45, 2, marks=pytest.mark.long)])
def test_three_processes_steer_a_run_that_is_killed(tmp_path, processes, count, kills):
    run, sent, found = steer(tmp_path / "run", count, kills, processes, 5, epochs=4000)
    check(run, sent, found)


@pytest.mark.parametrize("step",
                         [pytest.param(8, marks=pytest.mark.long),
                          pytest.param(11, marks=pytest.mark.long)])
def test_a_run_of_two_processes_is_repeated_to_where_it_was_stopped(tmp_path, step):
    """Each process of the replay stops at that boundary; the others need not be asked."""
    run = Process(tmp_path / "run", epochs=4000, processes=2, pause=0.01).start()
    until(lambda: run.step() > step)
    run.ask("tune", {"lr": 0.003})
    run.send("stop")
    found, again = run.end(), run.replay()
    assert [again[name] for name in SAME] == [found[name] for name in SAME]


def main(words):
    """Steer a run of two processes."""
    count, kills, seed = (int(each) for each in [*words, *("1000", "10", "0")[len(words):]])
    with tempfile.TemporaryDirectory() as folder:
        run, sent, found = steer(Path(folder, "run"), count, kills, 2, seed, epochs=4000)
        print(f"{len(sent)} commands, {kills} kills, {found['place'][2]} steps: "
              f"{dict(check(run, sent, found))}; the replay has the same weights")


if __name__ == "__main__":
    main(sys.argv[1:])
