"""A page of a run: what it knows of the run, and what it asks for, by messages alone."""

import json
import math

import numpy as np

from trainer_nb.panel.bins import COLUMNS
from trainer_nb.panel.feed import VERSION


def apply(old, patch):
    """What a merge patch makes of a JSON value; what does not change stays the same object."""
    if type(patch) is not dict:
        return patch
    made = dict(old) if type(old) is dict else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = apply(made.get(name), value)
    return made


class Reader:
    """What a page knows of the curves, from the messages alone."""

    def __init__(self):
        self.curves = {}

    def hear(self, message, buffers):
        """Take one message."""
        if message.get("again"):  # those of other runs have a # in their names
            self.curves = {name: each for name, each in self.curves.items() if "#" in name}
        for number in message.get("void", []):
            self.curves = {name: each for name, each in self.curves.items()
                           if not name.endswith(f"#{number}")}
        for head, data in zip(message.get("curves", []), buffers, strict=True):
            new = np.frombuffer(data, "<f4").reshape(-1, len(COLUMNS))
            stride, rows = self.curves.get(head["name"], (head["stride"], new[:0]))
            while stride < head["stride"]:
                stride, rows = 2 * stride, self.half(rows)
            assert stride == head["stride"] and len(rows) >= head["from"]
            self.curves[head["name"]] = stride, np.concatenate([rows[:head["from"]], new])

    @staticmethod
    def half(rows):
        """Two rows as one, a number at a time as a page does it."""
        made = []
        for one, two in zip(rows[::2].tolist(), rows[1::2].tolist()):
            row, count = list(two), one[5] + two[5]
            row[2] = two[2] if math.isnan(one[2]) else one[2] if math.isnan(two[2]) else min(
                one[2], two[2])
            row[3] = two[3] if math.isnan(one[3]) else one[3] if math.isnan(two[3]) else max(
                one[3], two[3])
            sums = (one[4] * one[5] if one[5] else 0.0) + (two[4] * two[5] if two[5] else 0.0)
            row[4], row[5] = sums / count if count else math.nan, count
            made.append(row)
        return np.array(made, "<f4").reshape(-1, len(COLUMNS))


class Page(Reader):
    """A page of a feed: its view and curves as it knows them, and the answers it got."""

    def __init__(self, feed, **about):
        super().__init__()
        self.view, self.answers, self.number, self.messages = {}, [], 0, []
        self.own = feed.page(self.take, **about)

    def take(self, message, buffers):
        """A message as it travels."""
        message = json.loads(json.dumps(message, allow_nan=False))
        self.messages.append(message)
        if "re" in message or "status" in message:
            self.answers.append(message)
            return
        if "view" in message:
            self.view, self.curves = message["view"], {}
        self.view = apply(self.view, message.get("patch", {}))
        self.hear(message, buffers)

    def hello(self):
        """Begin."""
        self.own.hear({"ask": "hello", "v": VERSION})
        return self

    def open(self, *tabs):
        """Open these tabs, and close the others."""
        self.own.hear({"ask": "open", "tabs": list(tabs)})
        return self

    def command(self, name, id=None, /, **values):
        """Ask for something; the answer, if it has come."""
        self.number += 1
        id = str(id or self.number)
        self.own.hear({"ask": "command", "id": id, "name": name, "values": values})
        return next((each for each in self.answers if each.get("re") == id), None)
