# make figures      sets up .venv, fits the surrogates and draws the estimation-error figures into results/
# make test         sets up .venv and runs the test suite
# make test-flower  adds Flower to .venv and runs its tests, those that start SuperNodes on loopback too
# make fuzz         mutants of all messages and checkpoints of the federation, for an hour or so
# make test-versions  the suite with the oldest versions that pyproject.toml allows, and with the newest
# make check        ruff, mypy, the contracts on imports and phrases that are not used here
# make docs         runs the tutorials and builds the site, docs/_build/html, without network
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
FLOWER := $(VENV)/installed-flower
DOCS := $(VENV)/installed-docs

.PHONY: figures test test-flower test-slow test-versions fuzz check docs clean

figures: $(STAMP)
	$(BIN)/python -m experiments figures

# Neighbours stay in one process, which makes what they share once; a process without work takes half of another's.
test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

# A file to a process: each file starts a SuperLink of its own, and they mostly wait.
test-flower: $(FLOWER)
	$(BIN)/python -m pytest -n 3 --dist loadfile -m '' tests/federated/flower

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -n auto --ignore=tests/federated/flower

test-versions: $(STAMP)
	$(BIN)/nox

fuzz: $(STAMP)
	MUTANTS=5000 $(BIN)/python -m pytest -n auto tests/federated/test_mutants.py tests/federated/flower/test_mutants.py

check: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python tests/prose.py

# Everything anew: what a page shows depends on the library too, of which Sphinx knows nothing.
docs: $(DOCS)
	rm -rf docs/_build docs/reference/generated
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --jobs 2 \
		--doctree-dir docs/_build/doctrees docs docs/_build/html

# torch goes first: a plain resolve may choose a build that brings gigabytes of CUDA libraries.
$(STAMP): pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[fast,compare,test,dev]' -e ./experiments -c constraints.txt
	touch $(STAMP)

$(FLOWER): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[flower]' -c constraints.txt
	touch $(FLOWER)

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[docs]' -c constraints.txt
	touch $(DOCS)

clean:
	rm -rf $(VENV) results docs/_build docs/reference/generated docs/results
