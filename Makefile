# Keeptime: `make demo` shows the main job on real input, `make test` runs every test.
# Both install what they need (scripts/setup) and build in release mode.

CARGO ?= cargo
KEEPTIME = target/release/keeptime
OUT ?= out
SOAK_MINUTES ?= 10

.PHONY: help build deps workloads demo test lint ci bench bench-enforce bench-first-light \
        bench-plan bench-calendar bench-pools bench-balancers bench-ledger bench-broker bench-door bench-profiler bench-isolation soak soak-calls clean

help: ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 22

deps:
	@scripts/setup

build: deps ## Build the keeptime binary
	$(CARGO) build --release --locked --workspace

workloads: deps ## Build the MPI programs and libkeeptime_mpi for Open MPI and MPICH
	@$(MAKE) --no-print-directory -C workloads MPICXX=mpicxx.openmpi MPI_NAME=open-mpi
	@$(MAKE) --no-print-directory -C workloads MPICXX=mpicxx.mpich MPI_NAME=mpich
	@$(MAKE) --no-print-directory -C mpi MPICC=mpicc.openmpi MPI_NAME=open-mpi all programs
	@$(MAKE) --no-print-directory -C mpi MPICC=mpicc.mpich MPI_NAME=mpich all programs

demo: build workloads ## From a goal to a kept promise, on a lab of 4 nodes (root, under 8 minutes)
	@$(KEEPTIME) demo --out $(OUT)/demo

test: build workloads ## Run every test; those that need root say so where they cannot run
	@scripts/test

soak: build ## Simulated clusters in which everything goes wrong, on every processor (SOAK_MINUTES=10)
	@$(KEEPTIME)-soak --minutes $(SOAK_MINUTES)

soak-calls: build ## A million calls of users, the broker killed between and inside them
	@$(KEEPTIME)-soak --seed 1 --calls 1000000 --faults broker-kills

lint: deps ## Format, lints and documentation, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet

ci: lint test ## What the gate runs, and the lints

bench: bench-plan bench-calendar bench-ledger bench-broker bench-door bench-pools bench-balancers bench-profiler bench-enforce bench-isolation bench-first-light ## All benchmarks; lists what is not met
	@$(KEEPTIME)-bench summary --out $(OUT)

bench-plan: build ## Planning one request over 10,000 curve points and 1,000 nodes
	@$(KEEPTIME)-bench plan --out $(OUT)

bench-calendar: build ## Earliest fit, admission and memory of 1,000 to 1,000,000 reservations
	@$(KEEPTIME)-bench calendar --out $(OUT)

bench-ledger: build ## Durable appends per second, and reading 100,000 batches again
	@$(KEEPTIME)-bench ledger --out $(OUT)

bench-broker: build ## Grants through a broker's socket, and its restart with 100,000 reservations
	@$(KEEPTIME)-bench broker --out $(OUT)

bench-door: build ## What TLS, certificates and tokens cost
	@$(KEEPTIME)-bench door --out $(OUT)

bench-pools: build ## Decisions about 1,000 nodes and 50 sites; policies compared in virtual time
	@$(KEEPTIME)-bench pools --out $(OUT)

bench-balancers: build ## Requests lost over 1,000 moves behind HAProxy; nginx and Apache beside
	@$(KEEPTIME)-bench balancers --out $(OUT)

bench-profiler: build ## Runs that the profiler needs against the full grid
	@$(KEEPTIME)-bench profiler --out $(OUT)

bench-enforce: build ## Reserved flows against greedy ones, rate error, leftover (root)
	@$(KEEPTIME)-bench enforce --out $(OUT)

bench-isolation: build ## A node's compute time against what the other nodes do (root)
	@$(KEEPTIME)-bench isolation --out $(OUT)

bench-first-light: build workloads ## Promised against actual under contention, with and without (root)
	@$(KEEPTIME)-bench first-light --out $(OUT)

clean:
	$(CARGO) clean
	rm -rf $(OUT) workloads/build mpi/build
