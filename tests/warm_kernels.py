"""Jupyter kernels that begin with torch in memory.

    manager = KernelManager()
    manager.kernel_spec.argv[:] = warm_kernels.command()

A Jupyter server, or a `KernelManager`, starts the command as any other kernel. It is a small
process that asks a nursery, one for all kernels of a process of tests, to fork the kernel itself;
it passes on signals and ends with the kernel, and the kernel ends with it. This saves the three
seconds in which a new kernel imports torch. Neither `ipywidgets`, nor what imports it, as anywidget
and the panel, is loaded before: they look at the kernel when they are imported.
"""

import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

PRELOADED = ("torch", "torch._dynamo", "torch.utils.data", "numpy", "psutil", "sklearn.datasets",
             "ipykernel.kernelapp", "trainer_nb.trainer")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


# ---- the side of the tests


def python_path(*folders):
    """PYTHONPATH with these folders, and that of the package which is tested, before the others."""
    package = Path(find_spec("trainer_nb").origin).parents[1]
    return os.pathsep.join([*folders, str(package),
                            *filter(None, [os.environ.get("PYTHONPATH")])])


class Nursery:
    """The warm parent of the kernels, for one process of tests; it ends with that process."""

    running: ClassVar[dict] = {}

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kernels")
        self.address = str(Path(self.folder.name, "socket"))
        reading, self.writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import warm_kernels; warm_kernels.main()", self.address,
             str(reading)],
            pass_fds=[reading], stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1",
                              "PYTHONPATH": python_path(str(Path(__file__).parent))})
        os.close(reading)

    @classmethod
    def of_this_process(cls):
        """The nursery of this process; a fork starts its own."""
        if os.getpid() not in cls.running:
            cls.running[os.getpid()] = cls()
        return cls.running[os.getpid()]


def command():
    """The command line of a kernel, as a kernelspec has it."""
    return [sys.executable, "-I", "-S", __file__, Nursery.of_this_process().address,
            "-f", "{connection_file}"]


# ---- the process that stands for a kernel


def stand_for(address, words):
    """Ask for a kernel, pass on signals, and end as it ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        while True:
            try:
                connection.connect(address)
                break
            except FileNotFoundError:  # the nursery is still importing
                if os.getppid() == 1:
                    sys.exit("nobody waits for this kernel")
                time.sleep(0.02)
            except ConnectionRefusedError:
                sys.exit("the nursery of the kernels has ended")
        text = json.dumps({"words": ["-m", "ipykernel_launcher", *words], "cwd": os.getcwd(),
                           "environment": dict(os.environ), "session": True}).encode()
        socket.send_fds(connection, [len(text).to_bytes(8, "little")], [0, 1, 2])
        connection.sendall(text)
        kernel = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
        for each in PASSED_ON:  # as to the group of a kernel that was started by itself
            signal.signal(each, lambda number, frame: os.killpg(kernel, number))
        answer = connection.recv(8, socket.MSG_WAITALL)
    code = int.from_bytes(answer, "little", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


# ---- the nursery; a stand-in may be killed at any moment


def ask(connection):
    """What a stand-in asks for and its descriptors, or None if it has ended."""
    descriptors = []
    try:
        head, descriptors, *_ = socket.recv_fds(connection, 8, 3, socket.MSG_WAITALL)
        text = connection.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
        return json.loads(text), descriptors
    except (OSError, ValueError):
        for each in descriptors:
            os.close(each)
        return None, []


def tell(connection, number):
    """Send a stand-in a number, if it is still there."""
    with suppress(OSError):
        connection.sendall(number.to_bytes(8, "little", signed=True))


def serve(listener, owner):
    """Fork a kernel for each connection, and end those whose stand-in has ended.

    Returns the words of a kernel in that kernel, and None at the end."""
    from warm import become

    chosen, kernels = selectors.DefaultSelector(), {}
    chosen.register(listener, selectors.EVENT_READ)
    chosen.register(owner, selectors.EVENT_READ)
    while True:
        for key, _ in chosen.select():
            if key.fileobj is owner:  # the tests have ended
                for pid in kernels.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request, descriptors = ask(connection)
                if request is None:
                    connection.close()
                    continue
                pid = os.fork()
                if not pid:
                    for each in (connection, listener, owner, chosen, *kernels):
                        each.close()
                    request["environment"]["JPY_PARENT_PID"] = str(os.getppid())
                    return become(request, descriptors)
                for each in descriptors:
                    os.close(each)
                kernels[connection] = pid
                chosen.register(connection, selectors.EVENT_READ)
                chosen.register(os.pidfd_open(pid), selectors.EVENT_READ, connection)
                tell(connection, pid)
            elif key.data is not None:  # a kernel has ended
                connection = key.data
                chosen.unregister(key.fileobj)
                os.close(key.fileobj)
                _, status = os.waitpid(kernels.pop(connection), 0)
                if connection in chosen.get_map():
                    chosen.unregister(connection)
                    tell(connection, os.waitstatus_to_exitcode(status))
                connection.close()
            elif key.fileobj in kernels:  # nobody waits for this kernel, which may have just ended
                chosen.unregister(key.fileobj)
                os.kill(kernels[key.fileobj], signal.SIGKILL)


def main():
    """Be the nursery, and then each of its kernels."""
    from warm import run_as_main

    address, owner = sys.argv[1], open(int(sys.argv[2]), "rb", buffering=0)
    sys.path[:] = [each for each in sys.path if each not in ("", str(Path(__file__).parent))]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when it is imported
    for module in PRELOADED:
        __import__(module)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(64)
    os.rename(f"{address}.new", address)  # who finds it can connect
    words = serve(listener, owner)
    if words is not None:
        run_as_main(words)


if __name__ == "__main__":
    stand_for(sys.argv[1], sys.argv[2:])
