"""What a training loop costs: this package and its peers against the loop that one writes by hand.

    python -m benchmarks                     the table, for the peers that are installed; writes
                                             benchmarks/RESULTS.md
    python -m benchmarks --peers trainer_nb  some of them; writes nothing
    python -m benchmarks --works "A tiny"    some of the work; writes nothing
    python -m benchmarks --device cuda       on a GPU, by the clock; writes benchmarks/GPU.md
    python -m benchmarks epoch               whole epochs with a validation; writes
                                             benchmarks/EPOCH.md

Peer and loop by hand take turns in one process, block by block, on one thread; the figures are
differences and ratios of processor time, medians over the pairs of blocks. Each peer has a process
of its own. `requirements/peers.txt` lists what may be installed beside.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from . import epoch
from .peers import PEERS, train
from .work import WORKS, Blocks, same

PAGES = {"cpu": Path(__file__).parent / "RESULTS.md", "cuda": Path(__file__).parent / "GPU.md"}
DISTRIBUTIONS = {"ignite": "pytorch-ignite", "trainer_tools": "trainer-tools",
                 "trainer_nb_default": "trainer_nb"}


def compare(peer: str, name: str, pairs: int, device: str) -> dict:
    """One peer at one work: seconds a step, its own and the loop's by hand, and whether the weights
    are the same."""
    torch.set_num_threads(1)
    work = WORKS[name]
    work.device = device
    loader = Blocks(work, pairs)
    model = train(peer, work, loader)
    loader.finish()
    steps = len(work.batches)
    # the first pair warms up
    found = [(a / steps, b / steps) for a, b in zip(loader.peer[1:], loader.own[1:])]
    return {"peer": peer, "work": name, "pairs": found, "same": same(model, loader.raw.model)}


def installed(peer: str) -> bool:
    """Whether there is such a package here."""
    if peer.startswith(("raw", "trainer_nb")):
        return True
    try:
        importlib.metadata.version(DISTRIBUTIONS.get(peer, peer))
        return True
    except importlib.metadata.PackageNotFoundError:
        return False


def in_process(peer: str, name: str, pairs: int, device: str) -> dict:
    """As `compare`, in a process of its own."""
    call = [sys.executable, "-m", "benchmarks", "--one", peer, name, "--pairs", str(pairs),
            "--device", device]
    done = subprocess.run(call, capture_output=True, text=True, cwd=Path(__file__).parent.parent,
                          check=False)
    if done.returncode:
        return {"peer": peer, "work": name,
                "failed": done.stderr.strip().splitlines()[-1] if done.stderr else "no word"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def difference(row: dict) -> tuple[float, float, float]:
    """Median of the differences in microseconds a batch, of the ratios, and of the loop by hand."""
    pairs = row["pairs"]
    return (statistics.median(a - b for a, b in pairs) * 1e6,
            statistics.median(a / b for a, b in pairs),
            statistics.median(b for _, b in pairs) * 1e6)


def cell(row: dict) -> str:
    """A row of measurements as text: microseconds where a step is short, a ratio in any case."""
    if "failed" in row:
        return "–"
    more, ratio, _ = difference(row)
    text = f"{more:+.1f} µs, {ratio:.2f} ×" if "tiny" in row["work"] else f"{ratio:.3f} ×"
    return text if row["same"] else f"{text} ¹"


def import_ratio(rounds: int) -> tuple[float, float]:
    """Processor seconds of `import torch`, and the ratio of the trainer's import to it, medians of
    interleaved processes."""
    # with compiled files, as an installed package has them: the first import writes them
    writing = {name: value for name, value in os.environ.items()
               if name != "PYTHONDONTWRITEBYTECODE"}
    def spent(statement):
        code = (f"import time; began = time.process_time(); {statement}; print(time.process_time() "
                f"- began)")
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                    check=True, env=writing).stdout)
    spent("from trainer_nb import Trainer")
    pairs = [(spent("import torch"), spent("from trainer_nb import Trainer"))
             for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b / a for a, b in pairs)


def table(rows: dict) -> str:
    """Markdown: a line a peer."""
    peers = list(dict.fromkeys(peer for peer, _ in rows))
    works = list(dict.fromkeys(work for _, work in rows))
    lines = ["| | " + " | ".join(works) + " |", "| --- |" + " --- |" * len(works)]
    for peer in peers:
        lines.append(f"| {peer} | " + " | ".join(cell(rows[peer, work])
                                                 if (peer, work) in rows else ""
                                                 for work in works) + " |")
    by_hand = [difference(rows["raw", work])[2] if ("raw", work) in rows else float("nan")
               for work in works]
    lines.append("| a batch by hand | " + " | ".join(f"{each:.0f} µs" for each in by_hand) + " |")
    return "\n".join(lines)


def failures(rows: dict) -> list[str]:
    """A line for each peer and reason: what was not measured."""
    found: dict[tuple[str, str], list[str]] = {}
    for (peer, work), row in rows.items():
        if "failed" in row:
            found.setdefault((peer, row["failed"]), []).append(work)
    return [f"- {peer} ({'; '.join(works)}): {reason}" for (peer, reason), works in found.items()]


def versions_of(peers) -> list[str]:
    """What was measured."""
    import trainer_nb

    others = [DISTRIBUTIONS.get(peer, peer) for peer in peers
              if not peer.startswith(("raw", "trainer_nb"))]
    return [f"Python {platform.python_version()}", f"torch {torch.__version__}",
            f"trainer_nb {trainer_nb.__version__}",
            *(f"{name} {importlib.metadata.version(name)}" for name in others)]


def report(rows: dict, pairs: int, device: str, imported: tuple[float, float] | None) -> str:
    """The page; on a GPU without the import, which is the processor's."""
    versions = versions_of(dict.fromkeys(peer for peer, _ in rows))
    failed = failures(rows)
    by_clock = device != "cpu"
    machine = platform.processor() or platform.machine()
    if by_clock:
        machine = torch.cuda.get_device_name()
    spent = ("seconds of the clock until the GPU has done all of a block" if by_clock
             else "processor time")
    return "\n".join([
        "# What the loop costs", "",
        f"`python -m benchmarks{' --device cuda' if by_clock else ''}`, "
        f"{time.strftime('%Y-%m-%d')}, {machine}, "
        f"{', '.join(versions)}, one thread, {pairs} pairs of "
        f"blocks.", "",
        "Differences to the loop that one writes by hand, a batch: " + spent + ", medians of "
        "interleaved blocks. The row `raw` is that loop "
        "against itself: the noise. The hooks of the second column are this package's; of the "
        "others it is column D. `trainer_nb_default` has history and the look for non-finite "
        "gradients in every column.", "",
        table(rows), "",
        "A: 16-32-4, batch 16, SGD with momentum. B: convolutions on 28 x 28, batch 64. C: "
        "accumulation of 4, bf16, clipping, "
        "average of the weights, against the textbook loop with the same. D: the loss of each step "
        "recorded, and a progress bar, against the "
        "plain loop without them." + (" ResNet-18: batches of 128 pictures of 64 x 64. All batches "
                                      "lie in pinned memory." if by_clock else ""), "",
        *(["¹ other weights than by hand.", ""]
          if any(not r.get("same", True) for r in rows.values()) else []),
        *([f"`from trainer_nb import Trainer`: {imported[1]:.3f} x the processor time of `import "
           f"torch` ({imported[0]:.2f} s).", ""] if imported else []),
        *(["Not measured:", *failed, ""] if failed else [])])


def main():
    """Measure, print, and write the page when all was measured."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["steps", "epoch"], default="steps")
    parser.add_argument("--pairs", type=int, default=41)
    parser.add_argument("--peers", nargs="+", metavar="PEER")
    parser.add_argument("--works", nargs="+", choices=WORKS, metavar="WORK")
    parser.add_argument("--device", choices=PAGES, default="cpu")
    parser.add_argument("--write", action="store_true", help="the page of these alone")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(compare(*given.one, given.pairs, given.device)))
        return
    known = epoch.PEERS if given.what == "epoch" else PEERS
    if unknown := set(given.peers or ()) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: the peers are {', '.join(known)}")
    if given.what == "epoch":
        peers = given.peers or [*filter(installed, known)]
        epoch.measure(peers, given.pairs, ", ".join(versions_of(peers)))
        return
    rows = {}
    for peer in given.peers or filter(installed, PEERS):
        for work in given.works or [name for name, work in WORKS.items()
                                    if given.device != "cpu" or not work.large]:
            rows[peer, work] = row = in_process(peer, work, given.pairs, given.device)
            print(f"{peer:20}{work:36}{row.get('failed') or cell(row)}", flush=True)
    if given.write or not (given.peers or given.works):
        page = PAGES[given.device]
        imported = import_ratio(11) if given.device == "cpu" else None
        page.write_text(report(rows, given.pairs, given.device, imported))
        print(f"\n{page}")


if __name__ == "__main__":
    main()
