# make env     .venv with the pinned development requirements, older kernels beside it
# make lab     JupyterLab with the quick start open (LABFLAGS="--no-browser --port=8899" for more)
# make test    ruff, and pytest: unit tests, processes, browser, notebooks, docs, export in step
# make check   after an edit: export, execute what changed, test what depends on it, make quick
# make quick   ruff and the unit tests that take a moment
# make torture 200 killed processes; make fuzz: 3,000 drawn runs; make storms: 20 times 10,000
#              commands; make ends: each way in which a process can end; make steering: three
#              processes steer a run that is killed; all take many minutes
# make mutants planted mistakes, each of which must fail its test; make mutate: a tool changes
#              MODULE=core/engine.py in many ways, and prints what TESTS do not notice
# make export  modules and README.md from the notebooks
# make clean   notebooks without noise
# make docs    notebooks processed for the documentation site, and its pages where Quarto is

PYTHON ?= python3
LABFLAGS ?=
PYTESTFLAGS ?=
CHECKFLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
NOTEBOOKS := $(BIN)/python scripts/notebooks.py
PYTEST := $(BIN)/python -m pytest
QUICK_START := nbs/guide/tutorials/quick_start.ipynb
OTHERS := ipykernel-6.31 ipykernel-7.3 colab vision
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

FUZZ_SEED ?= 0
MUTATE_TIME ?= 30m

.PHONY: env lab check test quick panel cuda torture fuzz storms steering long ends mutants mutate export clean docs chromium lock
.DEFAULT_GOAL := env

# what Python has compiled is kept, also where the shell asks for the contrary
unexport PYTHONDONTWRITEBYTECODE

env: $(STAMP) $(OTHERS:%=$(VENV)-%/.made)

# Python compiles what is used when it is used first: all of it would take a minute.
$(STAMP): requirements/dev.txt requirements/lock.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile \
	    -r requirements/dev.txt -c requirements/lock.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
	    --no-deps --no-build-isolation --editable .
	touch $@

# An older kernel, or Colab's versions, in an environment that takes what it lacks from $(VENV);
# made again with another Python.
$(VENV)/pyvenv.cfg: | $(STAMP) ;
$(VENV)-%/.made: requirements/%.txt $(VENV)/pyvenv.cfg | $(STAMP)
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D) install -qq --disable-pip-version-check --no-deps -r $<
	$(BIN)/python -c \
	    'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
		> $$(echo $(@D)/lib/python*/site-packages)/main_environment.pth
	touch $@

# What the panel's module is built and tested with; without Node these tests are skipped.
MODULES := frontend/node_modules/.package-lock.json
$(MODULES): frontend/package-lock.json frontend/package.json
	if command -v npm > /dev/null; then \
	    npm ci --prefix frontend --no-audit --no-fund --loglevel=error; fi

# After a change in frontend/: its tests, and the module in the package.
panel: $(MODULES)
	cd frontend && npm test && npm run build

lab: $(STAMP)
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/$(QUICK_START) $(AS_ROOT) $(LABFLAGS)

# CHECKFLAGS="--budget 300": seconds for the notebooks that depend on the change.
check: $(STAMP)
	$(BIN)/python scripts/checking.py $(CHECKFLAGS)

# One process more than two cores: one of three waits for a browser or a run.
test:
	$(MAKE) --no-print-directory -j 3 env chromium $(MODULES)
	$(BIN)/ruff check
	$(PYTEST) -n 3 $(PYTESTFLAGS)

# What to run after each change: no browser, no other process, no notebook.
quick: $(STAMP)
	$(BIN)/ruff check
	$(PYTEST) -n 2 -m "not slow and not browser" $(addprefix tests/,core hooks tools panel) $(PYTESTFLAGS)

# A training process is killed 200 times, resumed each time, and compared with one that was not
# disturbed.
torture: env
	PYTHONPATH=tests $(BIN)/python tests/stress/test_torture.py 200

# Drawn runs are disturbed in drawn ways and compared with the same runs left alone: 3,000
# scenarios, in two processes.
fuzz: env
	$(BIN)/python tests/fuzz.py 3000 $(FUZZ_SEED)

# Commands from four threads at once, and the replay of each journal.
storms: env
	TRAINER_NB_STORMS=20 $(BIN)/python -m pytest -q tests/stress/test_concurrent_commands.py

# What needs a GPU: with the torch of PYTHON, since the one of `make env` is for the CPU.
cuda:
	$(PYTHON) -m pytest -m cuda $(PYTESTFLAGS)

# The tests that take minutes, and have a shorter sibling in `make test`.
long: env $(addprefix $(VENV)-,$(addsuffix /.made,fastai marimo trackio))
	TRAINER_NB_LONG=1 $(PYTEST) -n 2 -m long $(PYTESTFLAGS)

# A thousand commands from three processes at once, to two processes that are killed ten times.
steering: env
	PYTHONPATH=tests $(BIN)/python tests/stress/test_steering.py 1000 10

# Browser tests use Debian's Chromium; without it they are skipped, unless
# TRAINER_NB_REQUIRE_BROWSER=1.
chromium:
	@scripts/install_chromium

# Exit code, seconds and processes that are left, for each place, kind of workers and way to end.
ends: env
	$(BIN)/python tests/ends.py

# The mistakes of tests/mutants.tsv, in two copies of the package.
mutants: $(STAMP)
	$(BIN)/python tests/run_mutants.py

# make mutate MODULE=core/engine.py TESTS=tests/core/test_window.py: in a copy, for half an hour
# at most. To see a change: cd build/mutate; ../../.venv-mutate/bin/mutmut show NAME
mutate: $(VENV)-mutate/.made
	rm -rf build/mutate && mkdir -p build/mutate
	cp -r trainer_nb tests benchmarks examples pyproject.toml build/mutate
	printf '%s\n' '[tool.mutmut]' 'source_paths = ["trainer_nb"]' \
	    'also_copy = ["benchmarks", "examples"]' 'only_mutate = ["trainer_nb/$(MODULE)"]' \
	    "do_not_mutate_patterns = ['^ *\"']" \
	    'pytest_add_cli_args_test_selection = [$(TESTS:%="%",)]' >> build/mutate/pyproject.toml
	cd build/mutate && timeout $(MUTATE_TIME) ../../$(VENV)-mutate/bin/mutmut run || test $$? = 124
	cd build/mutate && ../../$(VENV)-mutate/bin/mutmut results | sed '/not checked/d'

export: env
	$(NOTEBOOKS) export

clean: env
	$(NOTEBOOKS) clean

docs: $(STAMP)
	$(NOTEBOOKS) docs
	$(NOTEBOOKS) render

# After a change of requirements/dev.txt: pin again what it brings along.
lock:
	$(BIN)/python -m pip install --quiet --upgrade -r requirements/dev.txt
	echo "# Every package of the development environment (a constraints file, made with" \
	    "'make lock')." > requirements/lock.txt
	$(BIN)/python -m pip freeze --all --exclude trainer_nb | sed 's/+cpu$$//' \
	    >> requirements/lock.txt
