"""Child processes of Python that begin with torch in memory.

    import warm

    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    with warm.Popen([sys.executable, "train.py", "--epochs", "3"], stdout=PIPE) as process: ...

`run` and `Popen` take what those of `subprocess` take. The first call starts a server, which
imports torch and this package once; each child is forked from it and then runs `-c code`,
`-m module` or a script as a new interpreter would: its own process, with its own main module,
arguments, environment, folder and streams, ended by its own exit code or signal. It saves the
two to three seconds that a new interpreter needs to import torch.

Use `subprocess` instead if the start itself is tested: what an import loads, options of the
interpreter, variables that it or a library reads when it starts, a terminal.
"""

import atexit
import ctypes
import gc
import json
import linecache
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

PRELOADED = ("torch", "torch._dynamo", "torch.utils.data", "torch.distributed", "numpy", "psutil",
             "trainer_nb.trainer")
PR_SET_CHILD_SUBREAPER = 36
SERVER = "TRAINER_NB_WARM_SERVER"  # of the server's own process


# ---- the side of the tests


class Server:
    """The warm parent of the children, for one process of tests."""

    running: ClassVar[dict] = {}
    one_at_a_time = threading.Lock()

    def __init__(self, modules):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            self.process = subprocess.Popen(
                [sys.executable, "-c", "import warm; warm.main()", *modules],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                cwd="/", start_new_session=True,
                env=os.environ | {SERVER: str(theirs.fileno()), "OMP_NUM_THREADS": "1",
                                  "PYTHONPATH": os.pathsep.join(paths)})
        self.socket = ours

    @classmethod
    def of_this_process(cls, modules):
        """The server of this process with these modules in memory; a fork starts its own."""
        key = os.getpid(), modules
        with cls.one_at_a_time:
            if key not in cls.running:
                cls.running[key] = cls(modules)
        return cls.running[key]

    def fork(self, request, descriptors):
        """The pid of a new child of this process, which gets these descriptors as 0, 1 and 2."""
        text = json.dumps(request).encode()
        head = len(text).to_bytes(8, "little")
        libc = ctypes.CDLL(None)
        with self.one_at_a_time:
            # the child's parent ends at once, and the child becomes one of this process
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self.socket, [head], descriptors)
                self.socket.sendall(text)
                answer = self.socket.recv(8, socket.MSG_WAITALL)
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if len(answer) < 8:
            raise RuntimeError(f"the warm server has ended with {self.process.wait()}")
        return int.from_bytes(answer, "little")


class Popen(subprocess.Popen):
    """`subprocess.Popen` of a Python that is forked from the warm server.

    `modules` are imported beforehand, in the server. `quick_end`: the third of a second in which
    Python takes its objects apart at the end is saved; what is registered for the end is done."""

    def __init__(self, *args, modules=PRELOADED, quick_end=False, **options):
        self.modules, self.quick_end = tuple(modules), quick_end
        super().__init__(*args, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                       startupinfo, creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite,
                       errread, errwrite, restore_signals, gid, gids, uid, umask,
                       start_new_session, process_group):
        words = [os.fspath(word) for word in args]
        if words[0] != sys.executable or preexec_fn or pass_fds or shell or process_group != -1:
            raise ValueError(f"use subprocess for this: {args}")
        environment = {os.fsdecode(name): os.fsdecode(value)
                       for name, value in (os.environ if env is None else env).items()}
        request = {"words": words[1:], "environment": environment, "cwd": os.path.join(
            os.getcwd(), os.fspath(cwd or "")), "session": bool(start_new_session),
            "quick_end": self.quick_end}
        given = [number if each == -1 else each
                 for number, each in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = Server.of_this_process(self.modules).fork(request, given)
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self.args, self._child_created = args, True


def run(*args, input=None, capture_output=False, timeout=None, check=False, **options):
    """`subprocess.run` of a Python that is forked from the warm server."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(*args, **options) as process:
        try:
            out, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, out, errors)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


# ---- the server


def serve(connection):
    """Fork a child for each request; return its words and how it ends in the child, None at the
    end."""
    while True:
        head, descriptors, *_ = socket.recv_fds(connection, 8, 3, socket.MSG_WAITALL)
        if len(head) < 8:
            return None
        text = connection.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            parent, child = os.getpid(), os.fork()
            if child:
                os.write(writing, child.to_bytes(8, "little"))
                os._exit(0)
            connection.close()
            os.close(reading), os.close(writing)
            while os.getppid() == parent:  # until it is a child of the tests
                time.sleep(0.0005)
            request = json.loads(text)
            return become(request, descriptors), request["quick_end"]
        os.waitpid(between, 0)  # the child has its new parent now
        answer = os.read(reading, 8)
        for each in (reading, writing, *descriptors):
            os.close(each)
        connection.sendall(answer)


def become(request, descriptors):
    """Take on what a new process would have been started with."""
    if request["session"]:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import numpy

    numpy.random.seed()
    return request["words"]


def run_as_main(words):
    """Run `-c code`, `-m module` or a script as the main module."""
    while words[0] in ("-u", "-B"):
        if words.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)
    if words[0] == "-m":
        sys.argv, first = words[1:], os.getcwd()
    elif words[0] == "-c":
        sys.argv, first = ["-c", *words[2:]], ""
    else:
        sys.argv, first = words, str(Path(words[0]).absolute().parent)
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:0] = [first, *(each for each in paths if each not in sys.path)]
    if words[0] == "-m":
        runpy._run_module_as_main(words[1])
        return
    code, name = ((words[1], "<string>") if words[0] == "-c"
                  else (Path(words[0]).read_text(encoding="utf-8"), words[0]))
    main = sys.modules["__main__"].__dict__
    for each in set(main) - {"__builtins__", "__name__", "__doc__", "__spec__", "__package__"}:
        del main[each]
    main.update({"__file__": name} if name != "<string>" else {})
    if name == "<string>" and sys.version_info >= (3, 13):  # whose tracebacks show lines of it
        linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
    exec(compile(code, name, "exec"), main)


def end_quickly(words):
    """Run as the main module, and end the process with what is registered for its end."""
    code = 0
    try:
        run_as_main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def without_own_frames(kind, error, trace):
    """Show an uncaught exception as a new interpreter would."""
    shown = each = trace
    while each:
        if each.tb_frame.f_code.co_filename == __file__:
            shown = each.tb_next
        each = each.tb_next
    sys.__excepthook__(kind, error.with_traceback(shown), shown)


def main():
    """Be the server, and then each of its children."""
    sys.path[:] = [each for each in sys.path if each not in ("", str(Path(__file__).parent))]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in sys.argv[1:]:
        __import__(module)
    gc.freeze()
    try:
        asked = serve(socket.socket(fileno=int(os.environ[SERVER])))
    except ConnectionError:  # the tests were interrupted
        return
    if asked is not None:
        words, quick_end = asked
        sys.excepthook = without_own_frames
        end_quickly(words) if quick_end else run_as_main(words)
