# shellcheck shell=bash
# Counts tests of the C and C++ programs; sourced by mpi/tests/run.sh and workloads/tests/run.sh, which have set
# $work, a folder for what a test prints.
passed=0 failed=0

# For what a busy machine may come between: it holds once of so many times.
at_last() { # COMMAND...
    local try
    for try in 1 2 3 4 5 6 7 8; do
        echo "try $try:"
        "$@" && return
    done
    return 1
}

test_that() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $what"
        tail -n 15 "$work/log" | sed 's/^/    /'
    fi
}
