"""What tests share: one thread for equal numbers, and what happens without a browser or a GPU."""

import gc
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("digits_runs", "lr_runs", "small_runs")

from jupyter_server import Held, JupyterServer, browser_problem

LONG = os.environ.get("TRAINER_NB_LONG") == "1"
TESTS = Path(__file__).parent
FIRST = ("browser", "project", "processes", "stress", "notebooks", "remote")
BROWSER_REQUIRED = os.environ.get("TRAINER_NB_REQUIRE_BROWSER") == "1"

# `make test` draws the same examples each time, so that a failure is one of the change at hand;
# `make long` draws new ones, and more of them. No example has a deadline: machines are busy.
settings.register_profile("short", max_examples=25, derandomize=True, deadline=None, database=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("short"), max_examples=200,
                          derandomize=False)
settings.load_profile("long" if LONG else "short")

# The folders of the tests are in memory where there is room: a run saves at every step, and each
# file waits for the disk. Those of the last run stay, 200 megabytes at most.
MEMORY = "/dev/shm"
if (os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30
        and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

torch.set_num_threads(1)
# a fork must not collect what its parent left: the end of a process group waits there for a thread
# that was not copied
os.register_at_fork(after_in_child=gc.freeze)


def pytest_configure(config):
    """The tests of the GPU are a run of their own, `pytest -m cuda`. In every other one there is
    none: the tests that say nothing of a device fork, and compare with the processor's numbers."""
    if config.option.markexpr != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Skip what cannot run here; where the browser is required its absence is an error.
    `make long` runs what takes minutes. Long files come first, so that all workers are busy until
    the end."""
    if not LONG:
        left = {item for item in items
                if item.get_closest_marker("long") and not item.get_closest_marker("short")}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    counted = Counter()
    for item in items:
        if item.get_closest_marker("matrix"):
            counted[item.path, item.originalname] += 1
            if counted[item.path, item.originalname] % 4 != 1:
                item.add_marker(pytest.mark.slow)
    folders = [item.path.relative_to(TESTS).parts[0] for item in items]
    ranks = {item: FIRST.index(folder) if folder in FIRST else len(FIRST)
             for item, folder in zip(items, folders)}
    items.sort(key=ranks.get)
    browser_items = [item for item in items if item.get_closest_marker("browser")]
    problem = browser_problem() if browser_items else None
    if problem and BROWSER_REQUIRED:
        raise pytest.UsageError(f"browser tests are required: {problem}")
    for item in browser_items if problem else []:
        item.add_marker(pytest.mark.skip(reason=f"browser tests: {problem}"))
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.device_count():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and -m cuda"))


def pytest_collection_finish(session):
    """What was imported and collected stays until the end: no collection of garbage looks through
    it again, which took an eighth of the time of small tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With several workers: each takes whole files and single notebooks, in their order. All begin
    with files that need the browser, and each keeps its browser from one to the next."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::", 1)[0]
            return nodeid if file.startswith("tests/notebooks/") else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


HELD = pytest.StashKey[Held]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """End the browser before a file that does not begin with it, since its event loop would be in
    the way of other tests; and after a file in which a test has failed."""
    done = yield
    held = item.config.stash.get(HELD, None)
    if held and (nextitem is None or nextitem.path != item.path) and (
            JupyterServer.distrusted or not nextitem or not nextitem.get_closest_marker("browser")):
        held.close()
        JupyterServer.distrusted = False
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where the browser is required, a browser test that skips itself has failed."""
    report = yield
    if report.failed and item.get_closest_marker("browser"):
        JupyterServer.distrusted = True
    if BROWSER_REQUIRED and report.skipped and item.get_closest_marker("browser"):
        report.outcome = "failed"
        report.longrepr = f"a browser test may not be skipped here: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def no_run_is_left():
    """A test ends what it has started: a run held in a thread would stay for all tests that
    follow."""
    before = threading.enumerate()
    yield
    left = [thread for thread in threading.enumerate()
            if thread.name == "trainer_nb" and thread not in before]
    for thread in left:
        thread.join(120)
    if any(thread.is_alive() for thread in left):
        close_runs()
        pytest.fail("a run in the background was not ended: close() it")


def close_runs():
    """End all runs of this process, so that a test that has failed is the only one that fails."""
    from trainer_nb.trainer import Trainer

    for trainer in [each for each in gc.get_objects() if isinstance(each, Trainer)]:
        trainer.close()


@pytest.fixture(scope="session")
def held(request, tmp_path_factory):
    """Browser and server of the browser tests."""
    held = request.config.stash[HELD] = Held(tmp_path_factory.mktemp)
    yield held
    held.close()


@pytest.fixture(scope="module")
def browser(held):
    """Chromium."""
    return held.browser()


@pytest.fixture(scope="module")
def lab_server(held):
    """A JupyterLab server, for several files: take a `place()` on it."""
    return held.lab()


@pytest.fixture
def jupyterlab(lab_server):
    """An empty folder on a JupyterLab server."""
    return lab_server.place()


@pytest.fixture
def lab(jupyterlab, browser):
    """A page of JupyterLab; its kernel is shut down at the end."""
    with jupyterlab.new_page(browser) as page:
        yield page
