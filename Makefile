# Everything runs in .venv; `make demo` and `make test` need Python >= 3.11, make and git, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
BENCH_ARGS ?=
LATENCY_ARGS ?=
LANDING_ARGS ?=
CANARY_ARGS ?=
SPARK ?= 1
HOURS ?= 1
PYTEST := $(BIN)/pytest
# Every daemon that a test starts loads its modules: compiled, even where the environment says that nothing is to be kept.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode
EVERY_DAY := -m 'not prove and not peer'
# Tiers that compute: one for each of two cores. Tiers that wait much of their time: more than that, the longest file first.
# Each file by one of them, as its tests share endpoints, a Spark session, a browser.
# Every folder below tests/ is in one of the lists, but for what another target runs: tests/house/test_tiers.py says which.
COMPUTING := tests/simulator tests/sick tests/benchmarks tests/contract tests/unit tests/house tests/transcripts
WAITING := tests/spark tests/process tests/landing tests/page tests/dropin tests/packaging tests/documents
SIDE_BY_SIDE ?= -n 2 --dist loadfile
WAITING_SIDE_BY_SIDE ?= -n 4 --dist loadfile --no-loadscope-reorder
TOGETHER := $(MAKE) --no-print-directory --output-sync=target --keep-going
SOURCES := daemon protocol clients

.PHONY: audit canary dist sbom soak bench bench-latency bench-landing bench-spark demo docs pictures test prove peers check lint types mypy pyright imports static computing waiting unit simulator process posix dropin page format clean help

help:
	@echo "make demo    run a stream of real text through the daemon, on local endpoints (DEMO_ARGS=..., SPARK=0 without Spark)"
	@echo "make check   for between two changes, in a minute or so: lint, types, import rules, the unit tier"
	@echo "make test    everything that a change can break: lint, types, import rules, every tier"
	@echo "make posix   the process tier with what a Mac runs, on Linux: KCL_POSIX_ONLY=1"
	@echo "make dist    wheel, sdist and bill of materials, in dist/"
	@echo "make audit   known vulnerabilities of the dependencies; asks a database on the net"
	@echo "make bench   what the record path and children cost: CPU, records a second, memory (BENCH_ARGS=... of the first table)"
	@echo "make bench-latency  from the put of a record to its child, polling and fan-out (LATENCY_ARGS=...)"
	@echo "make bench-landing  what it costs to land a million records on local disk (LANDING_ARGS=...)"
	@echo "make docs    the documents as a site, in build/site"
	@echo "make pictures  the pictures of run and top, drawn from real runs"
	@echo "make peers   reshards with a Kinesis of other people, landing on S3 servers of other people, DynamoDB Local (needs Node, Go and Maven)"
	@echo "make soak    the simulator for HOURS=1 hours, from other seeds each time; figures in build/soak.json"
	@echo "make canary  kcl-daemon prove in the AWS account of the environment, for 5 dollars at most; without credentials it says so"
	@echo "make prove   the long proofs in parts, each once for the files as they are: seeds, crash suites, types of the tests; 100 minutes"
	@echo "             (PART=name only one, SEEDS=200 FIRST=1 of the simulator, LIMIT=60 minutes for a part on a busy machine)"

$(VENV)/local.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/local.stamp $(VENV)/spark.stamp

$(VENV)/spark.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local,spark]'
	touch $@ $(VENV)/local.stamp

ifeq ($(SPARK),0)
demo: $(VENV)/local.stamp
	$(BIN)/kcl-daemon demo $(DEMO_ARGS)
else
demo: $(VENV)/spark.stamp
	$(BIN)/kcl-daemon demo --spark $(DEMO_ARGS)
endif

# mypy looks at everything, and remembers; basedpyright does not, and looks at the tests in `make prove` only.
check: $(VENV)/dev.stamp
	$(TOGETHER) --jobs 2 unit pyright mypy lint imports PYRIGHT_ON="$(SOURCES)"

# What waits has the machine, what computes takes what is left: else a child would take seconds to start, and tests would fail for it.
test: $(VENV)/dev.stamp
	@$(BIN)/python -m tests.proof.last $(MAKE) --no-print-directory --keep-going static computing & last=$$!; \
	$(MAKE) --no-print-directory waiting; waited=$$?; wait $$last && exit $$waited

static: $(VENV)/dev.stamp
	$(TOGETHER) --jobs 2 pyright mypy lint imports PYRIGHT_ON="$(SOURCES)"

computing: $(VENV)/dev.stamp
	$(PYTEST) $(EVERY_DAY) $(SIDE_BY_SIDE) $(COMPUTING) $(PYTEST_ARGS)

waiting: $(VENV)/dev.stamp
	$(PYTEST) $(EVERY_DAY) $(WAITING_SIDE_BY_SIDE) $(WAITING) $(PYTEST_ARGS)

# What the product proves in an AWS account, where there are credentials for one.
CREDENTIALS := AWS_ACCESS_KEY_ID AWS_PROFILE AWS_WEB_IDENTITY_TOKEN_FILE AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI
ifeq ($(strip $(foreach name,$(CREDENTIALS),$($(name)))),)
canary:
	@echo "no AWS credentials ($(CREDENTIALS)): nothing was proved"
else
canary: $(VENV)/local.stamp
	$(BIN)/kcl-daemon prove --yes --most 5 --report build/proof $(CANARY_ARGS)
endif

# A Spark of before data sources in Python, in an environment of its own: what EMR, Glue and many others have.
SPARK35 := build/spark35
$(SPARK35).stamp:
	test -x $(SPARK35)/bin/python || $(PYTHON) -m venv $(SPARK35)
	$(SPARK35)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==3.5.*'
	touch $@

# The oldest Spark that has them.
SPARK40 := build/spark40
$(SPARK40).stamp:
	test -x $(SPARK40)/bin/python || $(PYTHON) -m venv $(SPARK40)
	$(SPARK40)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==4.0.*' pyarrow
	touch $@

# A part that has passed is not run again until a file changes; `rm -r build/prove` begins anew. LIMIT: minutes for each.
prove: $(VENV)/dev.stamp $(if $(filter 1,$(KCL_TESTS_OFFLINE))$(filter-out spark-%,$(PART)),,$(SPARK35).stamp $(SPARK40).stamp)
	$(BIN)/python -m tests.proof $(PART:%=--part %) $(SEEDS:%=--seeds %) $(FIRST:%=--first %) $(LIMIT:%=--limit %)

soak: $(VENV)/dev.stamp
	mkdir -p build
	$(BIN)/python -m tests.simulator --hours $(HOURS) --json build/soak.json

PEERS := build/peers
GO_INSTALL = env GOBIN=$(CURDIR)/$(PEERS)/bin GOPATH=$(CURDIR)/$(PEERS)/go GOFLAGS=-modcacherw go install
peers: $(VENV)/dev.stamp $(PEERS)/bin/minio $(PEERS)/bin/versitygw $(PEERS)/dynamodb-local.stamp
	npm install --silent --no-fund --no-audit --prefix $(PEERS) kinesis-local
	PEER_KINESIS_LOCAL=$(CURDIR)/$(PEERS)/node_modules/kinesis-local/main.js PEER_S3_SERVERS=$(CURDIR)/$(PEERS)/bin \
		PEER_DYNAMODB_LOCAL=$(CURDIR)/$(PEERS)/dynamodb-local $(PYTEST) -m peer -s tests/peers $(PYTEST_ARGS)

# Three minutes and 3 GB, once.
$(PEERS)/bin/minio:
	$(GO_INSTALL) github.com/minio/minio@latest

$(PEERS)/bin/versitygw:
	$(GO_INSTALL) github.com/versity/versitygw/cmd/versitygw@latest

$(PEERS)/dynamodb-local.stamp: tests/peers/dynamodb-local.xml
	mvn --quiet --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(PEERS)/dynamodb-local
	touch $@

bench: $(VENV)/dev.stamp
	$(BIN)/python -m tests.benchmarks.record_path $(BENCH_ARGS)
	$(BIN)/python -m tests.benchmarks.frames
	$(BIN)/python -m tests.benchmarks.lanes
	$(BIN)/python -m tests.benchmarks.concurrency
	$(BIN)/python -m tests.benchmarks.preload
	$(BIN)/python -m tests.benchmarks.function

bench-latency: $(VENV)/dev.stamp
	$(BIN)/python -m tests.benchmarks.latency $(LATENCY_ARGS)

bench-landing: $(VENV)/dev.stamp
	$(BIN)/python -m tests.benchmarks.landing $(LANDING_ARGS)

bench-spark: $(VENV)/dev.stamp
	$(BIN)/python -m tests.spark.bench

# Also built by `make test` (tests/documents), with every warning as an error there and here.
docs: $(VENV)/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# docs/img/run.svg and top.svg, from real runs: two minutes.
pictures: $(VENV)/dev.stamp
	$(BIN)/python -m tools.pictures

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml daemon protocol clients

types: mypy pyright

mypy: $(VENV)/dev.stamp
	$(BIN)/mypy

pyright: $(VENV)/dev.stamp
	$(BIN)/basedpyright --warnings $(PYRIGHT_ON)

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports

unit: $(VENV)/dev.stamp
	$(PYTEST) $(EVERY_DAY) $(SIDE_BY_SIDE) tests/unit

simulator process dropin page: $(VENV)/dev.stamp
	$(PYTEST) $(EVERY_DAY) tests/$@

# What a Mac runs, on Linux: without the calls that only Linux has.
posix: $(VENV)/dev.stamp
	KCL_POSIX_ONLY=1 $(PYTEST) $(EVERY_DAY) $(SIDE_BY_SIDE) tests/process $(PYTEST_ARGS)

dist: $(VENV)/dev.stamp
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(MAKE) sbom

# Of what a user gets: the wheel and its dependencies in an environment of their own, none of ours for development.
sbom: $(VENV)/dev.stamp
	rm -rf build/sbom
	$(PYTHON) -m venv --without-pip build/sbom
	$(BIN)/python -m pip --python build/sbom/bin/python install --quiet --disable-pip-version-check dist/*.whl
	$(BIN)/cyclonedx-py environment --output-reproducible --output-format JSON \
		--output-file dist/kcl-daemon.cdx.json build/sbom/bin/python

# Fails where the database does not know a package, too: "nothing found" must not mean "nobody asked".
audit: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[audit]'
	rm -rf build/audit
	$(PYTHON) -m venv --without-pip build/audit
	$(BIN)/python -m pip --python build/audit/bin/python install --quiet --disable-pip-version-check '.[fast,local]'
	$(BIN)/python -m pip --python build/audit/bin/python uninstall --quiet --yes kcl-daemon
	$(BIN)/pip-audit --strict --path "$$(build/audit/bin/python -c 'import site; print(site.getsitepackages()[0])')"

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
