# Keeptime: `make demo` shows the main job on real input, `make test` runs every test.
# Both install what they need (scripts/setup); `make build` and `make install` what compiling takes alone. Tests are built in the profile `dev`, all else in `release`.

CARGO ?= cargo
KEEPTIME = target/release/keeptime
OUT ?= out
PREFIX ?= /usr/local
# Where what is installed was built.
BUILT ?= target/release
SHARE = $(DESTDIR)$(PREFIX)/share
# Debian's zsh looks for what packages bring in a place of its own.
ZSH = $(SHARE)/zsh/$(if $(and $(filter /usr,$(PREFIX)),$(wildcard /etc/debian_version)),vendor-completions,site-functions)
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
# What is installed is for everybody, whoever installs it: `install` sees to that itself.
READABLE = umask 022;
# What a debugger needs is more than all else together. Names of functions stay, for what a panic tells. STRIP=: leaves all of it.
STRIP = strip --strip-debug
# What carries the fabric's messages besides shared memory, TCP and UDP: `libfabric`, `ucx`, or `libfabric,ucx`. Only as it
# is said here: others have a variable of this name in their environment.
FEATURES =
comma := ,
# The packages that have these features.
FEATURED = keeptime keeptime-bench keeptime-fabric-c keeptime-fabricd
WITH = $(foreach feature,$(subst $(comma), ,$(FEATURES)),$(addsuffix /$(feature),$(FEATURED)))
SOAK_MINUTES ?= 10
JOBS ?= $(shell nproc)
# Where Debian has what the plugin for Slurm is built with.
SPANK = /usr/include/slurm/spank.h

.PHONY: help build rust deps ready workloads slurm-plugin mpi-library demo test test-machine lint ci bench bench-enforce bench-first-light \
        bench-plan bench-calendar bench-pools bench-balancers bench-sites bench-testbed bench-ledger bench-broker bench-door bench-fabric bench-regions \
        bench-control bench-deadline bench-sim bench-rate eval-time-sharing eval-sites bench-mpi eval-mpich-gq eval-middleware eval-rocl bench-profiler bench-isolation \
        bench-cpu soak soak-calls install install-fabric deb uninstall clean deps-build

help: ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 22

rust:
	@CARGO='$(CARGO)' scripts/rust

# One after the other: two that install packages would be in each other's way.
deps: deps-build
	@scripts/setup

deps-build:
	@scripts/setup build

build: rust deps-build ## Build the programs and libraries (FEATURES=libfabric,ucx: also what carries the fabric over these)
	$(CARGO) build --release --locked --workspace $(addprefix --features=,$(WITH))

# What most measurements take.
ready: build deps

workloads: deps ## Build the MPI programs, libkeeptime_mpi for Open MPI and MPICH, and the plugin for Slurm
	@$(MAKE) --no-print-directory -j$(JOBS) -C workloads MPICXX=mpicxx.openmpi MPI_NAME=open-mpi
	@$(MAKE) --no-print-directory -j$(JOBS) -C workloads MPICXX=mpicxx.mpich MPI_NAME=mpich
	@$(MAKE) --no-print-directory -j$(JOBS) -C mpi MPICC=mpicc.openmpi MPI_NAME=open-mpi all programs
	@$(MAKE) --no-print-directory -j$(JOBS) -C mpi MPICC=mpicc.mpich MPI_NAME=mpich all programs
	@if [ -e $(SPANK) ]; then $(MAKE) --no-print-directory -C slurm; else [ -e slurm/build/keeptime.so ] || echo \
	    "workloads: without the plugin for Slurm: there is no $(SPANK) (libslurm-dev; make slurm-plugin)"; fi

# Always built anew: make does not see which Slurm or MPI it was built for before.
slurm-plugin: ## The plugin for Slurm alone; installs nothing (CFLAGS=-I/opt/slurm/include, where that Slurm is)
	@$(MAKE) --no-print-directory --always-make -C slurm

mpi-library: ## libkeeptime_mpi alone, for one MPI; installs nothing (MPICC=mpicc, MPI_NAME=default)
	@$(MAKE) --no-print-directory --always-make -j$(JOBS) -C mpi

demo: build workloads ## From a goal to a kept promise, on a lab of 4 nodes (root; 8 minutes, and building)
	@$(KEEPTIME) demo --out $(OUT)/demo

test: rust deps workloads ## Run every test; those that need root say so where they cannot run
	@scripts/test

test-machine: build ## The package, its units and limits on a machine of its own, with systemd and cgroup v2 alone (root, QEMU; 15 minutes where that emulates)
	@CARGO='$(CARGO)' BUILT='$(BUILT)' scripts/machine

soak: build ## Simulated clusters in which everything goes wrong, on every processor (SOAK_MINUTES=10)
	@$(KEEPTIME)-soak --minutes $(SOAK_MINUTES)

soak-calls: build ## A million calls of users, the broker killed between and inside them
	@$(KEEPTIME)-soak --seed 1 --calls 1000000 --faults broker-kills

lint: rust deps ## Format, lints and documentation, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet

ci: lint test ## Lints, then every test

bench: bench-plan bench-calendar bench-ledger bench-broker bench-door bench-fabric bench-regions bench-pools bench-balancers bench-sites bench-testbed bench-control bench-deadline bench-sim bench-profiler bench-enforce bench-cpu bench-rate bench-isolation bench-mpi bench-first-light ## All benchmarks; lists what is not met
	@$(KEEPTIME)-bench summary --out $(OUT)

bench-plan: ready ## Planning one request over 10,000 curve points and 1,000 nodes
	@$(KEEPTIME)-bench plan --out $(OUT)

bench-calendar: ready ## Earliest fit, admission and memory of 1,000 to 1,000,000 reservations
	@$(KEEPTIME)-bench calendar --out $(OUT)

bench-cpu: ready ## Shares of CPU by both mechanisms, how much can be given out, how soon a change is in force (root)
	@$(KEEPTIME)-bench cpu --out $(OUT)

bench-ledger: ready ## Durable appends per second, and reading 100,000 batches again
	@$(KEEPTIME)-bench ledger --out $(OUT)

bench-broker: ready ## Grants through a broker's socket, and its restart with 100,000 reservations
	@$(KEEPTIME)-bench broker --out $(OUT)

bench-door: ready ## What TLS, certificates and tokens cost
	@$(KEEPTIME)-bench door --out $(OUT)

bench-pools: ready ## Decisions about 1,000 nodes and 50 sites; policies compared in virtual time
	@$(KEEPTIME)-bench pools --out $(OUT)

bench-balancers: ready ## Requests lost over 1,000 moves behind HAProxy; nginx and Apache beside
	@$(KEEPTIME)-bench balancers --out $(OUT)

bench-sites: ready ## How soon a site that is flooded has a node more, with a broker, agents and HAProxy
	@$(KEEPTIME)-bench sites --out $(OUT)

bench-testbed: ready ## Bursts of orders to sites on real web servers, fixed shares and shared nodes (root)
	@$(KEEPTIME)-bench testbed --out $(OUT)

bench-fabric: ready ## All that the fabric promises, against raw TCP, a bare ring and other libraries (root for what takes several nodes)
	@scripts/setup peers
	@$(MAKE) --no-print-directory -C crates/bench/peers
	@$(KEEPTIME)-bench fabric --out $(OUT)

bench-regions: ready ## Reading another node's memory against asking it, idle and under load (root)
	@$(KEEPTIME)-bench regions --out $(OUT)

bench-control: ready ## Rate control on simulated programs, the paper's policy and ours
	@$(KEEPTIME)-bench control --out $(OUT)

bench-deadline: ready ## Late jobs of batch logs, with keeptime run --by, behind the broker's queue and by FCFS with backfill
	@$(KEEPTIME)-bench deadline --out $(OUT)

bench-sim: ready ## A simulated cluster of 10,000 nodes: decisions a second, promises against plain backfill
	@$(KEEPTIME)-bench sim --out $(OUT)

bench-rate: build workloads ## A real program held at parts of its full speed (root)
	@$(KEEPTIME)-bench rate --out $(OUT)

eval-time-sharing: build workloads bench-control bench-deadline ## Figures 2 to 15 of the time-sharing paper, done again, as one page (root, 80 minutes; goes on where it was interrupted; FIGURES=8,13-15)
	@$(KEEPTIME)-bench time-sharing --out $(OUT) $(if $(FIGURES),--figures $(FIGURES))

eval-sites: bench-regions bench-balancers bench-sites bench-testbed ## Figures 8 to 14 of the shared data centres paper, done again, as one page (root)
	@$(KEEPTIME)-bench shared-data-centers --out $(OUT)

bench-profiler: ready ## Runs that the profiler needs against the full grid
	@$(KEEPTIME)-bench profiler --out $(OUT)

bench-enforce: ready ## Reserved flows against greedy ones, rate error, leftover (root)
	@$(KEEPTIME)-bench enforce --out $(OUT)

bench-isolation: ready ## A node's compute time against what the other nodes do (root)
	@$(KEEPTIME)-bench isolation --out $(OUT)

bench-mpi: build workloads ## What MPI programs have that ask for quality of service (root)
	@$(KEEPTIME)-bench mpi --out $(OUT)

bench-first-light: build workloads ## Promised against actual under contention, with and without (root)
	@$(KEEPTIME)-bench first-light --out $(OUT)

eval-mpich-gq: build workloads ## Figures and a table of MPICH-GQ, done again (root, 20 minutes; goes on where it was interrupted)
	@$(KEEPTIME)-bench mpich-gq --out $(OUT)

eval-middleware: build workloads ## Chapter 4 of the middleware thesis, done again, as one page (root, 4 hours; goes on where it was interrupted)
	@$(KEEPTIME)-bench middleware --out $(OUT)

eval-rocl: ready ## Figures 2 to 12 of RoCL, done again, as one page (root; goes on where it was interrupted)
	@$(KEEPTIME)-bench rocl --out $(OUT)

install: build ## Install keeptime, the units, manual pages, completions and documents, libkeeptime_mpi and Slurm's plugin if built (PREFIX=/usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/lib/sysusers.d \
	        $(SHARE)/bash-completion/completions $(ZSH) $(SHARE)/fish/vendor_completions.d \
	        $(SHARE)/man/man1 $(addprefix $(SHARE)/doc/keeptime/docs/,formats pictures decisions)
	install $(BUILT)/keeptime $(DESTDIR)$(PREFIX)/bin
	-$(STRIP) $(DESTDIR)$(PREFIX)/bin/keeptime
	$(READABLE) $(BUILT)/keeptime completions bash > $(SHARE)/bash-completion/completions/keeptime
	$(READABLE) $(BUILT)/keeptime completions zsh > $(ZSH)/_keeptime
	$(READABLE) $(BUILT)/keeptime completions fish > $(SHARE)/fish/vendor_completions.d/keeptime.fish
	$(READABLE) $(BUILT)/keeptime manual --out $(SHARE)/man/man1
	install -m 644 README.md ARCHITECTURE.md HACKING.md CHANGELOG.md LICENSE-* $(SHARE)/doc/keeptime
	install -m 644 docs/*.md $(SHARE)/doc/keeptime/docs
	for part in formats pictures decisions; do \
	    install -m 644 docs/$$part/* $(SHARE)/doc/keeptime/docs/$$part || exit 1; \
	done
	install -m 644 contrib/systemd/keeptime.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d
	$(READABLE) for unit in contrib/systemd/*.service; do \
	    sed -e 's|/usr/bin/|$(PREFIX)/bin/|g' -e 's|/usr/share/|$(PREFIX)/share/|g' $$unit \
	        > $(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit 1; \
	done
	for built in mpi/build/*/libkeeptime_mpi.so; do \
	    [ -e $$built ] || continue; mpi=$${built#mpi/build/}; mpi=$${mpi%/*}; \
	    install -D -m 644 $$built $(DESTDIR)$(PREFIX)/lib/keeptime/$$mpi/libkeeptime_mpi.so || exit 1; \
	    install -D -m 644 mpi/keeptime_mpi.h $(DESTDIR)$(PREFIX)/include/keeptime_mpi.h || exit 1; \
	done
	[ ! -e slurm/build/keeptime.so ] || \
	    install -D -m 644 slurm/build/keeptime.so $(DESTDIR)$(PREFIX)/lib/keeptime/slurm/keeptime.so
	@ls mpi/build/*/libkeeptime_mpi.so >/dev/null 2>&1 || echo "install: without libkeeptime_mpi, which is not built (make mpi-library)"
	@[ -e slurm/build/keeptime.so ] || echo "install: without the plugin for Slurm, which is not built (make slurm-plugin)"

uninstall: ## Remove what `make install` and `make install-fabric` have installed (first, on each node: keeptime agent clear --config FILE)
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,keeptime keeptime-fabricd) \
	      $(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(notdir $(wildcard contrib/systemd/*.service))) \
	      $(DESTDIR)$(PREFIX)/lib/sysusers.d/keeptime.conf $(DESTDIR)$(PREFIX)/include/keeptime_mpi.h \
	      $(DESTDIR)$(PREFIX)/include/keeptime_fabric.h $(DESTDIR)$(PREFIX)/lib/libkeeptime_fabric.* \
	      $(DESTDIR)$(PREFIX)/lib/pkgconfig/keeptime_fabric.pc \
	      $(addprefix $(DESTDIR)$(PREFIX)/share/man/man3/,$(notdir $(wildcard crates/fabric-c/man/*.3))) \
	      $(addprefix $(DESTDIR)$(PREFIX)/share/man/man7/,$(notdir $(wildcard crates/fabric-c/man/*.7)))
	rm -f $(SHARE)/bash-completion/completions/keeptime $(wildcard $(SHARE)/zsh/*/_keeptime) \
	      $(SHARE)/fish/vendor_completions.d/keeptime.fish $(SHARE)/man/man1/keeptime.1 $(SHARE)/man/man1/keeptime-*.1
	rm -rf $(DESTDIR)$(PREFIX)/lib/keeptime $(SHARE)/doc/keeptime

deb: build ## A Debian package of what `make install` and `make install-fabric` install, in OUT
	CARGO='$(CARGO)' scripts/deb $(BUILT) $(OUT)

install-fabric: build ## Install libkeeptime_fabric, its header, manual pages and examples, and the daemon (PREFIX=/usr/local, FEATURES=)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig \
	        $(SHARE)/man/man1 $(SHARE)/man/man3 $(SHARE)/man/man7 $(SHARE)/doc/keeptime/examples
	install $(BUILT)/keeptime-fabricd $(DESTDIR)$(PREFIX)/bin
	install -m 644 crates/fabric-c/include/keeptime_fabric.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(BUILT)/libkeeptime_fabric_c.a $(DESTDIR)$(PREFIX)/lib/libkeeptime_fabric.a
	install -m 644 $(BUILT)/libkeeptime_fabric_c.so $(DESTDIR)$(PREFIX)/lib/libkeeptime_fabric.so.0
	ln -sf libkeeptime_fabric.so.0 $(DESTDIR)$(PREFIX)/lib/libkeeptime_fabric.so
	-$(STRIP) $(DESTDIR)$(PREFIX)/bin/keeptime-fabricd $(addprefix $(DESTDIR)$(PREFIX)/lib/libkeeptime_fabric.,a so.0)
	$(READABLE) sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' \
	        -e 's|@REQUIRES@|$(subst $(comma), ,$(FEATURES))|' crates/fabric-c/keeptime_fabric.pc.in \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/keeptime_fabric.pc
	install -m 644 crates/fabricd/man/*.1 $(SHARE)/man/man1
	install -m 644 crates/fabric-c/man/*.3 $(SHARE)/man/man3
	install -m 644 crates/fabric-c/man/*.7 $(SHARE)/man/man7
	install -m 644 crates/fabric-c/examples/*.c $(SHARE)/doc/keeptime/examples

clean:
	$(CARGO) clean
	rm -rf $(OUT) workloads/build mpi/build slurm/build
