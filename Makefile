# The verbs of this project; `make` lists them.
#
# Everything that is built, logged or cached is in build/. Only install and
# uninstall write to system folders. scripts/setup installs missing packages;
# if none is missing it changes nothing.

# The PostgreSQL major that is built for, tested and run. The default is the major
# that this Debian release packages.
CODENAME := $(shell . /etc/os-release 2>/dev/null; echo $$VERSION_CODENAME)
PG_of_bookworm := 15
PG_of_trixie := 17
PG ?= $(PG_of_$(CODENAME))

PREFIX ?= /usr/local
PRELOAD ?= lockstep
PG_CONFIG := /usr/lib/postgresql/$(PG)/bin/pg_config
EXT_BUILD := build/pg$(PG)/ext
STAGE := build/pg$(PG)/stage
BINARY := build/target/release/lockstep
LAB := build/target/release/lockstep-lab
LAB_QUICK := build/target/debug/lockstep-lab

export PG
export CARGO_TARGET_DIR := $(CURDIR)/build/target
export LOCKSTEP_EXTENSION_STAGE := $(CURDIR)/$(STAGE)

# Incremental compilation costs a first build more CPU than it can save there, so it begins with the
# first build that scripts/cargo makes without make: cargo's folder for it is not empty from then on.
ifeq ($(wildcard $(CARGO_TARGET_DIR)/debug/incremental/*),)
export CARGO_INCREMENTAL ?= 0
endif

# Builds the extension in $(EXT_BUILD), outside its source folder. Each use passes its
# own DESTDIR, so that one in the environment cannot change where the stage is.
PGXS := +@$(MAKE) $(if $(V),,--silent) --no-print-directory -C $(EXT_BUILD) -f $(CURDIR)/extension/Makefile \
	PG_CONFIG=$(PG_CONFIG) with_llvm=no

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-pool build test test-extension test-rust test-bed test-subscribers test-majors test-minors test-fresh test-oracle test-doctor-matrix test-pg-suites test-assert test-deb soak measurements lint install uninstall deb clean \
	setup build-extension build-release build-lab check-pg

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1|/p; s/^\(bench\)-%:[^#]*## /\1-NAME|/p' $(MAKEFILE_LIST) \
		| awk -F'|' '{ printf "  make %-15s %s\n", $$1, $$2 }'
	@echo "  PG=N chooses the PostgreSQL major (here: $(or $(PG),none by default))"

demo: build-extension ## a stock standby and a Lockstep one under the same load (ARGS="--duration 20")
	@scripts/cargo build --locked --package lockstep-lab-cli --bin lockstep-lab
	@$(LAB_QUICK) demo $(ARGS)

demo-pool: SETUP := pool
demo-pool: build-extension ## a pool of read nodes behind HAProxy: nodes fall behind, are killed and added (ARGS="--seconds 5")
	@scripts/cargo build --locked --package lockstep-lab-cli --bin lockstep-lab --package lockstep-cli --bin lockstep
	@$(LAB_QUICK) demo-pool $(ARGS)

bench-pool: SETUP := pool

build: build-extension build-release build-lab ## the extension and the programs lockstep and lockstep-lab

test: check-pg ## every test; T=t/001_name.pl, T=sql/name, T=unit/name or T=rust_name runs only that
	@scripts/test $(T)

test-extension: check-pg ## only the extension's tests (T=t/001_name.pl, T=sql/name or T=unit/name)
	@scripts/test --only extension $(T)

test-rust: check-pg ## only the Rust tests (T=part_of_a_name)
	@scripts/test --only rust $(T)

test-bed: check-pg ## the long tests of benchmarks, player, page oracle, replica and relay (T=part_of_a_name)
	@scripts/test --only bed $(T)

test-pg-suites: check-pg ## PostgreSQL's recovery suite under Lockstep (PARALLEL=1: with replay helpers), PART=subscription through relays, or PART=logical followed by a replica with --ddl (PRELOAD= for stock, ROOT=1)
	@$(if $(filter-out lockstep,$(PRELOAD)),echo "make: PRELOAD is lockstep or empty" >&2; exit 2)
	@scripts/test-pg-suites $(if $(ROOT),--in-root) $(if $(PART),--part $(PART)) $(if $(PRELOAD),,--stock) $(if $(PARALLEL),--parallel) $(T)

test-assert: check-pg ## the extension's tests on a PostgreSQL built with assertions (T=t/001_name.pl, ROOT=1)
	@scripts/test-assert $(if $(ROOT),--in-root) $(T)

soak: check-pg ## hours: the long tests of replay, page oracle, doctor, relay and replica (T="equality crashes"; LOCKSTEP_SEEDS=…)
	@scripts/soak $(T)

test-oracle: check-pg build-extension ## the page oracle: faults planted and found (LOCKSTEP_PLANTS=rounds, SEED=N)
	@scripts/cargo test --locked --release -p lockstep-verify --test verify oracle:: -- --skip planted
	@scripts/cargo test --locked --release -p lockstep-verify --test verify oracle::planted -- --include-ignored --nocapture

test-doctor-matrix: check-pg ## lockstep doctor against every cause of lag, injected (LOCKSTEP_FAULTS=part,of,names)
	@scripts/test-doctor-matrix

test-subscribers: check-pg ## subscriptions of SUBSCRIBER=17 (its Debian root) through a relay on a primary of PG
	@SUBSCRIBER=$(or $(SUBSCRIBER),17) scripts/test-subscribers

test-majors: ## the replica from 15 to 17 and to 18, and the other way, in Debian roots (MAJORS="15-17 17-15", T=part_of_a_name; root)
	@scripts/test-majors $(if $(T),--test $(T)) $(MAJORS)

test-minors: check-pg ## the extension built on one minor release and run on another, both ways, in Debian roots (T="t/020_replay_workers.pl"; root)
	@scripts/test-minors $(T)

test-fresh: ## make demo and make test, timed, in a new minimal Debian 12 (DEBIAN=13 for 13; root; half an hour)
	@DEBIAN=$(or $(DEBIAN),12) scripts/test-fresh

test-deb: ## install, run, upgrade and purge the packages of `make deb` in a minimal Debian root (root)
	@scripts/test-deb

# Where bench-replay and bench-load-curve keep their recordings for the next run; BENCH_RECORDINGS=
# keeps none. The program gets the value as an option, since it refuses an empty variable.
BENCH_RECORDINGS ?= $(CURDIR)/build/recordings
unexport BENCH_RECORDINGS

bench-%: build ## one benchmark, into bench/results/NAME.json; BENCH_ROUNDS, BENCH_SECONDS scale it
	@$(LAB) bench $* $(if $(filter replay load-curve,$*),$(addprefix --recordings ,$(BENCH_RECORDINGS))) $(ARGS)

measurements: build-lab ## docs/measurements.md and README's table of claims, from bench/results
	@$(LAB) bench measurements

lint: setup ## layout, compiler warnings and script checks
	@scripts/lint

SHARE := $(DESTDIR)$(PREFIX)/share

# Under sudo, root has another cargo or none, and perhaps no network. So a program that is newer than
# its sources is installed without a build.
install: build-extension ## the extension into PostgreSQL N's own folders, lockstep into PREFIX (/usr/local); LAB=1: lockstep-lab too
	@for program in lockstep$(if $(LAB), lockstep-lab); do \
		binary=build/target/release/$$program; \
		[ -x $$binary ] && [ -z "$$(find Cargo.toml Cargo.lock crates -newer $$binary -type f -print -quit)" ] \
			|| $(MAKE) --no-print-directory build-release $(if $(LAB),build-lab) || exit; \
	done
	$(PGXS) install DESTDIR=$(DESTDIR)
	@mkdir -p $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	@set -e; for program in lockstep$(if $(LAB), lockstep-lab); do \
		binary=build/target/release/$$program; \
		install -D -m 755 $$binary $(DESTDIR)$(PREFIX)/bin/$$program; \
		$$binary man $(SHARE)/man/man1; \
		$$binary completion bash >$(SHARE)/bash-completion/completions/$$program; \
		$$binary completion zsh >$(SHARE)/zsh/site-functions/_$$program; \
		$$binary completion fish >$(SHARE)/fish/vendor_completions.d/$$program.fish; \
	done

uninstall: check-pg ## remove what install put there
	@mkdir -p $(EXT_BUILD)
	$(PGXS) uninstall DESTDIR=$(DESTDIR)
	@rm -f $(SHARE)/man/man1/lockstep.1 $(SHARE)/man/man1/lockstep-*.1
	@rm -f $(foreach program,lockstep lockstep-lab,$(DESTDIR)$(PREFIX)/bin/$(program) \
		$(SHARE)/bash-completion/completions/$(program) $(SHARE)/zsh/site-functions/_$(program) \
		$(SHARE)/fish/vendor_completions.d/$(program).fish)

deb: build ## Debian packages of both programs, and of the extension for each major installed, into build/deb
	@scripts/setup deb
	@scripts/deb

clean: ## remove what was built; cached Debian roots stay (build/roots)
	@[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name roots -exec rm -rf {} +

# ---- Steps of these commands -----------------------------------------------

check-pg:
	@$(if $(filter $(PG),15 16 17 18 19),:,echo "make: PostgreSQL '$(PG)' is not supported: choose with PG=15, 16, 17, 18 or 19" >&2; exit 1)

setup: check-pg
	@scripts/setup $(or $(SETUP),build)

# Objects that were built for another minor release or by another compiler are built again.
build-extension: setup
	@mkdir -p $(EXT_BUILD)
	@{ $(PG_CONFIG) --version; gcc --version | head -n 1; } >$(EXT_BUILD)/made-with.new; \
	cd $(EXT_BUILD) && { cmp -s made-with made-with.new || { rm -rf src *.so; mv made-with.new made-with; }; }; \
	rm -f made-with.new
	$(PGXS) all
	@rm -rf $(STAGE)
	$(PGXS) install DESTDIR=$(CURDIR)/$(STAGE) >build/pg$(PG)/stage.log

build-release: setup
	@scripts/cargo build --locked --release --package lockstep-cli --bin lockstep
	@touch $(BINARY)

build-lab: setup
	@scripts/cargo build --locked --release --package lockstep-lab-cli --bin lockstep-lab
	@touch $(LAB)
