# Every target works on a fresh clone: it first makes .venv and installs into it.
# `##` after a target is its line in `make help`.

PYTHON ?= python3
TORCH ?=
TORCH_INDEX ?=
SCALE ?= quick
ARGS ?=
CHECKOUTS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# TORCH=cpu: the same versions as wheels without CUDA, which PyTorch offers on an index of its own.
TORCH_WHEELS := $(if $(filter cpu,$(TORCH)),$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	$(shell sed -n 's/^\(torch\|torchvision\)==.*/&+cpu/p' constraints.txt))
# One more than cores: tests that start ranks wait for them.
WORKERS := $(shell nproc=$$(nproc 2>/dev/null || echo 2); echo $$(( nproc < 3 ? nproc + 1 : 4 )))
OLDEST := .venv-oldest
OLDEST_TORCH := $(shell sed -n 's/.*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)

GRAVAC := $(addprefix reproduce-gravac-,table1 table3 fig1a fig3 table2 table4 fig1b fig2 fig4 fig5 fig6 fig7 fig8 fig9 fig10 fig11)
REPRODUCE := reproduce-table1 reproduce-dynamic-sensitivity reproduce-dgc-ptb $(GRAVAC) \
	$(addprefix reproduce-lecture-,density waiting allreduce batch_size linear_scaling large_batch sharpness generalization onebit lowrank dgc pufferfish) \
	$(addprefix reproduce-mlsbench-,payloads compression)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help install test test-slow test-slurm test-oldest test-all check format lint types bench bench-network \
	$(REPRODUCE) reproduce-gravac reproduce-gravac-fig1 benchmark conformance queue publish-queue report publish docs notebook clean

help: ## list every target
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-30s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  A reproduction writes to reproduced/. SCALE=quick|small|paper (dynamic paper: medium too) sets its size, ARGS=\"seed=1 ...\" any setting."
	@echo "  PYTHON=python3.12 chooses the interpreter (3.11 or newer)."
	@echo "  make install TORCH=cpu TORCH_INDEX=<PyTorch's index of CPU wheels> installs without CUDA (docs/getting-started.md)."

install: $(INSTALLED) ## make .venv and install the package with its tools (repeated only on change)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || \
		{ echo "install: $(PYTHON) not found; install Python 3.11 or newer, or say make PYTHON=<path>" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "install: Python 3.11 or newer needed, $(PYTHON) is older; say make PYTHON=python3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "install: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt $(TORCH_WHEELS) -e '.[dev]'
	@touch $@

test: $(INSTALLED) ## run the everyday tests, about 6 minutes on 2 cores (ARGS="-k ladder" narrows them)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 $(ARGS)

test-slow: $(INSTALLED) ## run the other tests: processes, labs, notebooks, kills, long runs, fuzzing
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist loadfile --max-worker-restart=0 $(ARGS)

test-slurm: $(INSTALLED) ## run launch=slurm on a Slurm of its own (root; Debian's slurm-wlm and munge), about 4 minutes
	DGC_REPRO_SLURM=1 $(BIN)/python -m pytest -m slow tests/launch/slurm tests/test_first_day.py $(ARGS)

test-oldest: ## run the everyday tests of methods and exchanges on the oldest torch allowed, in .venv-oldest (7 GB)
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@grep -v '^torch' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install -q -c $(OLDEST)/constraints.txt -e '.[dev]' 'torch==$(OLDEST_TORCH).*'
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 \
		tests/compressor tests/exchange tests/kernel tests/train tests/model tests/optimizer $(ARGS)

test-all: test test-slow ## run all tests

check: format lint types test ## format, lint, type-check and test

format: $(INSTALLED) ## format the code in place
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: $(INSTALLED) ## lint, and check the format, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## type-check the package (mypy --strict)
	$(BIN)/mypy

bench: $(INSTALLED) ## print the speed tables, about 10 minutes on 2 idle cores (ARGS=--quick: a minute)
	$(BIN)/python scripts/bench.py $(ARGS)

bench-network: $(INSTALLED) ## print what compression is worth on shaped links, about 3 minutes (root, or user namespaces)
	$(BIN)/python scripts/bench.py --only network $(ARGS)

reproduce-table1: ## train and print Table I of the dynamic paper (2 minutes)
reproduce-dynamic-sensitivity: ## train and draw final accuracy by quantizer setting
reproduce-gravac-table1: ## build the models and print GraVAC's Table I
reproduce-gravac-table2: ## train and print GraVAC's Table II: quality and speedup by method
reproduce-gravac-table3: ## time compressing twice and print GraVAC's Table III
reproduce-gravac-table4: ## train and print GraVAC's Table IV: GraVAC against Accordion
reproduce-gravac-fig1a: ## model throughput against cluster size (GraVAC, figure 1a)
reproduce-gravac-fig1b: ## train and draw the variance of gradients (GraVAC, figure 1b)
reproduce-gravac-fig2: ## train and draw the speedup to the target by factor (GraVAC, figure 2)
reproduce-gravac-fig3: ## model throughput by compression factor (GraVAC, figure 3)
reproduce-gravac-fig4: ## train and draw gains and norms of ResNet101 (GraVAC, figure 4)
reproduce-gravac-fig5: ## train and draw gains and norms of VGG16 (GraVAC, figure 5)
reproduce-gravac-fig6: ## train and draw gains and norms of the LSTM (GraVAC, figure 6)
reproduce-gravac-fig7: ## train and draw the factors that GraVAC uses on ResNet101 (figure 7)
reproduce-gravac-fig8: ## train and draw the factors that GraVAC uses on VGG16 (figure 8)
reproduce-gravac-fig9: ## train and draw the factors that GraVAC uses on the LSTM (figure 9)
reproduce-gravac-fig10: ## train and draw geometric scaling of factors (GraVAC, figure 10)
reproduce-gravac-fig11: ## train and draw Random-k under GraVAC and Accordion (GraVAC, figure 11)
reproduce-dgc-ptb: ## train and print the lecture's DGC row on the Penn Treebank
reproduce-lecture-density: ## train, and draw how dense sums of sparse gradients become (lecture; about 1 minute)
reproduce-lecture-waiting: ## simulate waiting for the slowest of K workers (lecture)
reproduce-lecture-batch_size: ## train and draw steps to a target against batch size (lecture)
reproduce-lecture-linear_scaling: ## train and compare linear learning-rate scaling with tuned rates (lecture)
reproduce-lecture-large_batch: ## train and draw test accuracy against batch size for SGD, LARS, LAMB and SAM (lecture)
reproduce-lecture-onebit: ## train and draw 1-bit SGD with and without its accumulated error (lecture)
reproduce-lecture-lowrank: ## train and draw how much low-rank factors keep of gradients (lecture)
reproduce-lecture-dgc: ## build models and count DGC's payloads (lecture)
reproduce-lecture-sharpness: ## train and draw sharpness against batch size (lecture)
reproduce-lecture-generalization: ## train 128 networks and rank measures of generalization (lecture)
reproduce-lecture-allreduce: ## model ring, tree and halving-doubling allreduce (lecture)
reproduce-lecture-pufferfish: ## train and compare Pufferfish, dense training and PowerSGD at equal bytes (lecture)
reproduce-mlsbench-payloads: ## build models and count the bytes of "100x compression" (MLS-Bench)
reproduce-mlsbench-compression: ## train MLS-Bench's compression baselines and count their bytes

# The artifact is the target without "reproduce-"; "gravac-table2" is gravac/table2. Two targets have short names.
$(REPRODUCE): reproduce-%: $(INSTALLED)
	$(BIN)/python -m dgc_repro reproduce $(subst mlsbench-,mlsbench/,$(subst gravac-,gravac/,$(subst lecture-,lecture/,$(subst dynamic-,dynamic/,$(patsubst dgc-ptb,lecture/ptb,$(patsubst table1,dynamic/table1,$*)))))) scale=$(SCALE) $(ARGS)

reproduce-gravac-fig1: reproduce-gravac-fig1a reproduce-gravac-fig1b ## both parts of GraVAC's figure 1

reproduce-gravac: $(GRAVAC) ## all of GraVAC's tables and figures

benchmark: $(INSTALLED) ## train methods on images and text: quality against bytes
	$(BIN)/python -m dgc_repro reproduce benchmark/methods scale=$(SCALE) $(ARGS)

conformance: $(INSTALLED) ## compare the methods with their authors' code (CHECKOUTS=<folder>: run that code again)
	$(BIN)/python scripts/conformance.py $(if $(CHECKOUTS),--checkouts $(CHECKOUTS)) $(ARGS)

# From a worktree of the commit, so that edits in this folder do not reach runs that are still to come.
queue: $(INSTALLED) ## train what is missing of conf/queue.yaml, on one core, with the code of the last commit (ARGS="plan=true": list it)
	@place=.queue/$$(git rev-parse HEAD) && \
	{ test -d $$place || git worktree add --quiet --detach $$place; } && \
	cd $$place && $(CURDIR)/$(BIN)/python -m dgc_repro reproduce list=queue paths.runs=$(CURDIR)/runs $(ARGS)

publish-queue: $(INSTALLED) ## (maintainers) publish what has finished of conf/queue.yaml in results/
	$(BIN)/python -m dgc_repro reproduce list=queue publish=true $(ARGS)

report: $(INSTALLED) ## rebuild all pages and figures of results/ into reproduced/published/
	$(BIN)/python -m dgc_repro.paper $(ARGS)

publish: $(INSTALLED) ## (maintainers) rebuild results/ itself from its pools, with its overview
	$(BIN)/python -m dgc_repro.paper --publish $(ARGS)

docs: $(INSTALLED) ## run the laws of all methods and build the docs site with all results into build/site
	@rm -f build/laws.xml
	$(BIN)/python -m pytest -q -n $(WORKERS) tests/compressor/test_laws.py --junitxml=build/laws.xml
	DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet
	@echo "written to build/site/index.html, which a browser opens; its search needs a server: $(BIN)/python -m http.server -d build/site"

notebook: $(INSTALLED) ## execute the notebooks into reproduced/notebooks/
	@mkdir -p reproduced/notebooks
	@for page in notebooks/*.ipynb; do \
		echo "$$page"; $(BIN)/jupyter-execute --output="$(CURDIR)/reproduced/$$page" "$$page" || exit 1; done

clean: ## remove caches and builds; .venv, runs/, reproduced/ and results/ stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./runs -prune -o -name __pycache__ -exec rm -rf {} +
