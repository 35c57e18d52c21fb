# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# Everything lands in .venv/ and .kafka/; `make clean` takes both away.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
SEEDS ?= 1:1000
JOBS ?= 1
MINUTES ?= 60
SEED ?=
VERSIONS ?= 3.0.12
SURFACE := $(addprefix tests/facade/test_,parity.py config.py keywords.py partitioners.py figures.py future.py)

.PHONY: help setup demo simulate test coverage test-fast chaos surface bench bench-short bench-failover upstream oldest pythons wheel-compiled test-compiled lint format docs profile release java javac prometheus chromium clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(VENV)/.dev ## all that tests and linters need, into .venv

demo: $(VENV)/.user ## a 3-broker mock cluster, a leader killed under load, a gap report
	$(BIN)/outlast demo

simulate: $(VENV)/.user ## random failovers on a virtual clock (SEEDS=1:1000 JOBS=1)
	$(BIN)/outlast simulate --seeds $(SEEDS) --jobs $(JOBS)

# Four runs at a time: tests that measure how long things take, or need a real Kafka; and beside them,
# with lower priorities, those that have time, those whose time is virtual, which only compute, and in
# two processes do so with all that the others leave, and `make coverage`.
test: lint java prometheus chromium ## lint and all tests, those on a real Kafka and Prometheus included
	@nice -n 5 $(BIN)/python -m pytest -m "not (timed or real or virtual)" >.beside.log 2>&1 & \
	beside=$$!; \
	nice -n 19 $(BIN)/python -m pytest -m virtual --timeout 900 --numprocesses 2 --dist loadfile >.virtual.log 2>&1 & \
	virtual=$$!; \
	nice -n 19 $(MAKE) --no-print-directory coverage >.covered.log 2>&1 & \
	coverage=$$!; \
	trap 'kill $$beside $$virtual $$coverage' INT TERM; \
	$(BIN)/python -m pytest -m "timed or real"; alone=$$?; \
	wait $$beside; beside=$$?; \
	wait $$virtual; virtual=$$?; \
	wait $$coverage; coverage=$$?; \
	cat .beside.log .virtual.log .covered.log; exit $$((alone | beside | virtual | coverage))

# By those tests alone whose subject is the engine's parts. Their exhaustive walk is left out: it takes
# minutes, and reaches no line that the others do not.
coverage: $(VENV)/.dev ## lines and branches of the engine, all of which its own tests must reach
	$(BIN)/python -m coverage run -m pytest -q --timeout 900 --hypothesis-seed=0 \
		tests/engine tests/wire --ignore tests/engine/test_exhaustive.py
	$(BIN)/python -m coverage report

test-fast: $(VENV)/.dev ## all tests but those on a real Apache Kafka
	$(BIN)/python -m pytest -m "not real"

chaos: $(VENV)/.dev java ## a soak on a real Apache Kafka (MINUTES=60 SEED=1)
	$(BIN)/python -m tests.real.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# kafka-python 3.0.x from 3.0.12 on, as they come; beside the installed one, which stays what it is.
surface: $(VENV)/.dev ## hold the surface to releases of kafka-python (VERSIONS="3.0.12 …")
	@set -e; for version in $(VERSIONS); do \
		$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .kafka/python-$$version kafka-python==$$version; \
		echo "kafka-python $$version"; \
		PYTHONPATH=.kafka/python-$$version $(BIN)/python -m pytest -q $(SURFACE); \
	done

bench: $(VENV)/.bench java ## outlast beside other clients: docs/performance.md anew (25 minutes)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.report

bench-short: $(VENV)/.dev java ## one short run of each of these (3 minutes); changes nothing
	$(BIN)/python -m benchmarks.run --short --results .bench/short

bench-failover: $(VENV)/.bench java javac ## failovers on Kafka and the mock, the same page and README (an hour)
	mkdir -p .bench
	$(BIN)/python -m benchmarks.failover >.bench/failover.jsonl
	$(BIN)/python -m benchmarks.neighbours --runs 3 --clients outlast,kafka-python,aiokafka,confluent-kafka,java >.bench/neighbours.jsonl
	$(BIN)/python -m benchmarks.report

profile: $(VENV)/.dev ## where send() spends its time, against a mock cluster in another process
	@$(BIN)/outlast cluster --port 29092 --topic t:12 --no-prompt >/dev/null & \
	cluster=$$!; trap 'kill $$cluster' EXIT; \
	$(BIN)/python -m cProfile -s tottime -m benchmarks.measure \
		'{"client": "outlast", "bootstrap": "127.0.0.1:29092", "topic": "t", "records": 200000}' | head -50

release: $(VENV)/.dev ## the wheel and the sdist, into dist/, after their tests
	$(BIN)/python -m pytest tests/packaging
	$(BIN)/python -m hatchling build --directory dist

upstream: $(VENV)/.dev java ## kafka-python's own producer tests (DIR=an export of its repository)
	$(BIN)/python -m tests.upstream.run "$(DIR)"

oldest: $(VENV)/.dev ## facade and observers with the oldest libraries that pyproject.toml allows
	$(BIN)/python -m tests.packaging.environments oldest

pythons: $(VENV)/.dev ## a quick part of the tests on each Python that is found
	$(BIN)/python -m tests.packaging.environments pythons

wheel-compiled: $(VENV)/.dev ## a wheel for this Python and platform, its hot path compiled, into dist/
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build --target wheel --directory dist

# In a venv of its own, which finds all else in ours by a .pth file. Those of a folder that is named in
# one are not read, so it does not find the editable outlast.
test-compiled: wheel-compiled ## tests with that wheel: all but those on a real Kafka
	$(PYTHON) -m venv --clear $(VENV)/compiled
	folder='import sysconfig; print(sysconfig.get_path("purelib"))'; \
		$(BIN)/python -c "$$folder" >"$$($(VENV)/compiled/bin/python -c "$$folder")/ours.pth"
	$(VENV)/compiled/bin/python -m pip install --quiet --force-reinstall --no-deps --no-index --find-links dist outlast
	$(VENV)/compiled/bin/python -m pytest -m "not (real or source)"

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## the documents' tables, dashboard and alerts anew from the code, and the site of them
	$(BIN)/python -m docs.tables
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in build/site/index.html."

clean: ## take away everything the other targets made
	rm -rf $(VENV) .kafka .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .covered.log .beside.log .virtual.log build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

# --- set-up: each step leaves a stamp and is not done twice ---------------------------------------

# As root on Debian and its kin what is missing is installed; elsewhere a message names it.
apt = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) </dev/null; }

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || { $(call apt,python3-venv) && $(PYTHON) -m venv --clear $(VENV); }
	touch $@

$(VENV)/.user: pyproject.toml $(VENV)/.made
	$(BIN)/python -m pip install --quiet --editable '.[cli]'
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.made
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/.user $@

$(VENV)/.docs: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

java:
	@{ command -v java && command -v mvn; } >/dev/null \
		|| $(call apt,openjdk-17-jre-headless maven) || $(call apt,openjdk-21-jre-headless maven) \
		|| echo "Java 17 or later, or Maven, is missing: the tests on a real Kafka will be skipped."

javac:
	@command -v javac >/dev/null || $(call apt,openjdk-17-jdk-headless) || $(call apt,openjdk-21-jdk-headless) \
		|| echo "javac is missing: the Java producer cannot be compiled."

# Debian starts what it installs: the tests want the program alone.
prometheus:
	@{ command -v prometheus && command -v promtool; } >/dev/null \
		|| { $(call apt,prometheus) && { systemctl disable --now prometheus || service prometheus stop; \
			true; } >/dev/null 2>&1; } \
		|| echo "Prometheus is missing: the tests of dashboard and alerts on a real one will be skipped."

chromium:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome \
			|| command -v google-chrome-stable; } >/dev/null \
		|| $(call apt,chromium fonts-liberation) \
		|| echo "Chromium is missing: the tests that look at the report in a browser will be skipped."
