#!/usr/bin/env bash
# Tests of libkeeptime_mpi on loopback: without the library, without an agent, with one that grants all
# and writes down what it was told (tests/recorder.c). With a real agent: crates/cli/tests/mpi.rs.
#
# usage: tests/run.sh BUILD_FOLDER MPICC [LAUNCHER]     (make check calls it)
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 mpicc=$2 launcher=${3:-}
library=$PWD/$build/libkeeptime_mpi.so
work=$(mktemp -d)
recorder=
trap 'stop_recorder; rm -rf "$work"' EXIT
. ../scripts/testing.sh

# --- helpers ----------------------------------------------------------------------------------------

choose_launcher() {
    if "$mpicc" --showme:version >/dev/null 2>&1; then
        launch=("${launcher:-$(command -v mpirun.openmpi || echo mpirun)}" --oversubscribe --allow-run-as-root
            -mca mpi_yield_when_idle 1 -mca pml ob1 -mca btl tcp,self -mca btl_tcp_if_include lo)
    else
        # Over TCP some versions of MPICH hang in MPI_Finalize, with this library or without: only where
        # connections are looked at, by programs that say so when they come there.
        hangs=yes
        launch=(env "UCX_TLS=${transport:-sm},self" UCX_NET_DEVICES=lo FI_PROVIDER=tcp FI_TCP_IFACE=lo
            "${launcher:-$(command -v mpiexec.hydra || echo mpiexec)}")
    fi
}

# Bounds every run: a deadlock is a failure, not a day.
mpi() { # RANKS COMMAND...
    local ranks=$1
    shift
    ${exec:-} timeout -k 5 "${limit:-60}" "${launch[@]}" -n "$ranks" "$@"
}

preloaded() { # AGENT RANKS PROGRAM ARGUMENTS...
    local agent=$1 ranks=$2 program=$3
    shift 3
    mpi "$ranks" env LD_PRELOAD="$library" KEEPTIME_AGENT="$agent" "$build/$program" "$@"
}

# An agent at $work/agent that writes $work/record.
start_recorder() { # [MILLISECONDS | drop | slow | never | many | hasty | torn]
    rm -f "$work/agent" "$work/record" "$work/ready"
    touch "$work/record"
    # Given the end of a pipe that is open as long as it shall run.
    exec {recorder}> >("$build/recorder" "$work/agent" "$work/record" "$@" >"$work/ready")
    for _ in $(seq 6000); do
        grep -q ready "$work/ready" 2>/dev/null && return
        sleep 0.01
    done
    echo "the recorder does not start"
    return 1
}

stop_recorder() {
    [ -z "$recorder" ] || exec {recorder}>&-
    recorder=
}

exit_code() { # CODE COMMAND...
    local code=$1 got
    shift
    "$@"
    got=$?
    echo "exit code $got, expected $code"
    [ "$got" = "$code" ]
}

recorded() { # PATTERN [KIND OF PATTERN]
    grep -q "${2:--F}" -- "$1" "$work/record" || {
        echo "not told: $1; but"
        cut -c 1-600 "$work/record" | sort -u | head -20
        return 1
    }
}

# All ask for the same in these tests, but for the size of their messages.
recorded_of() { # MEMBERS MESSAGE_SIZE
    recorded "\"members\":\\[$1\\],\"index\":[0-9]+,\"talk\":\"all-to-all\"\\},\"change\":1,\"terms\":\\{\"class\":\"premium\",\"bits_per_second\":1000000,\"message_bytes_max\":$2," -E
}

# By what numbers communicators are told of that ask for messages of this size.
numbers_of() { # MESSAGE_SIZE
    grep -oE "\"index\":[0-9]+,\"talk\":\"all-to-all\"[^{]*\{[^}]*\"message_bytes_max\":$1," "$work/record" |
        grep -oE '"index":[0-9]+' | sort -u
}

# --- tests ------------------------------------------------------------------------------------------

test_units() {
    local unit checker=()
    if command -v valgrind >/dev/null; then
        checker=(valgrind -q --error-exitcode=9 --leak-check=full)
    else
        echo "skipped: memory checks (valgrind is not installed)"
    fi
    for unit in json period pacing; do
        test_that "$unit" "${checker[@]}" "$build/unit_$unit"
    done
}

test_without() {
    local ranks
    for ranks in 1 4; do
        test_that "no library, $ranks ranks" mpi "$ranks" "$build/attributes" 0
        test_that "library and no agent to look for, $ranks ranks" preloaded "" "$ranks" attributes 0
        test_that "no agent answers, $ranks ranks" preloaded /nowhere/agent.sock "$ranks" attributes 1
    done
    test_that "threads, no agent answers" preloaded /nowhere/agent.sock 2 threads
    test_that "threads, no library" mpi 2 "$build/threads"
}

test_with_agent() {
    local ranks
    start_recorder || return
    for ranks in 1 2 4; do
        test_that "an agent grants, $ranks ranks" preloaded "$work/agent" "$ranks" attributes 2
    done
    test_that "linked" mpi 2 env KEEPTIME_AGENT="$work/agent" "$build/attributes-linked" 2
    test_that "threads" preloaded "$work/agent" 2 threads
    test_that "endpoints are mirror images" endpoints_are_mirror_images
    test_that "a goal" goal_is_promised
    test_that "what is refused leaves what was granted" preloaded "$work/agent" 2 refused
    test_that "a child has no connection" preloaded "$work/agent" 1 forked
    test_that "begun by another name" preloaded "$work/agent" 2 foreign
    test_that "in whatever order attributes are set" all_count_alike_in_any_order
    test_that "whenever ranks begin to ask" all_count_alike_that_begin_late
    test_that "two threads set one attribute again and again" one_communicator_asks_once
    stop_recorder
    start_recorder slow || return
    test_that "who waits for a copy holds up nobody" preloaded "$work/agent" 1 copies
    test_that "who is stopped now and then is answered" preloaded "$work/agent" 1 stopped
    test_that "another value while the first is waited for" another_value_is_no_other_ask
    stop_recorder
    start_recorder drop || return
    test_that "who is hung up on calls now and then" calls_are_far_between
    stop_recorder
    start_recorder many || return
    test_that "more is told to be paced than there is room for" one_call_is_enough
    stop_recorder
    start_recorder torn || return
    test_that "an answer that breaks off paces nothing" preloaded "$work/agent" 1 torn
    stop_recorder
    start_recorder never || return
    test_that "what is not decided is asked for less often later" reports_become_fewer
    stop_recorder
    start_recorder 60000 || return
    test_that "who ends does not wait to be let in" preloaded "$work/agent" 1 leaves
    stop_recorder
}

another_value_is_no_other_ask() {
    : >"$work/record"
    preloaded "$work/agent" 1 setters >"$work/out" || return
    cat "$work/out"
    grep -q skipped "$work/out" || one_number_is_told
}

one_communicator_asks_once() {
    : >"$work/record"
    preloaded "$work/agent" 1 setters again >"$work/out" || return
    cat "$work/out"
    grep -q skipped "$work/out" || one_number_is_told
}

one_number_is_told() {
    grep -oE '"index":[0-9]+' "$work/record" | sort -u >"$work/numbers"
    cat "$work/numbers"
    [ "$(wc -l <"$work/numbers")" = 1 ]
}

# Seven communicators of the same ranks, and what one of them asks for beside what it has lent to a copy.
all_count_alike_in_any_order() {
    local mark
    : >"$work/record"
    preloaded "$work/agent" 2 orders || return
    for mark in $(seq 3001 3008); do
        all_count_alike "$mark" || return
    done
    for mark in $(seq 3001 3008); do
        numbers_of "$mark"
    done | sort -u >"$work/numbers"
    [ "$(wc -l <"$work/numbers")" = 8 ]
}

# Of a program that began without coming by the library.
all_count_alike_that_begin_late() {
    : >"$work/record"
    preloaded "$work/agent" 2 late || return
    all_count_alike 3101 && all_count_alike 3102
}

calls_are_far_between() {
    preloaded "$work/agent" 2 holds 1000 2 >"$work/out" || return
    cat "$work/out"
    echo "$(grep -c called "$work/record") calls in two seconds"
    # Each when it starts, when it asks, and once a second; more where the machine is slow.
    [ "$(grep -c called "$work/record")" -le 40 ] && [ "$(grep -o 'hangs up' "$work/out" | wc -l)" = 2 ]
}

# Whoever cannot read an answer hangs up, and calls again.
one_call_is_enough() {
    preloaded "$work/agent" 1 holds 1000 2 >"$work/out" || return
    cat "$work/out"
    echo "$(grep -c called "$work/record") calls, $(grep -c '"change":1,' "$work/record") reports"
    [ "$(grep -c called "$work/record")" = 1 ] && grep -q 'state 2 ' "$work/out"
}

# Every 50 ms for the six seconds that the program waits, and once a second after that; fewer where the machine is slow.
reports_become_fewer() {
    local reports
    preloaded "$work/agent" 1 holds 1000 8 >"$work/out" || return
    cat "$work/out"
    reports=$(grep -c '"change":1,' "$work/record")
    echo "$reports reports in eight seconds"
    [ "$reports" -ge 3 ] && [ "$reports" -le 135 ] && grep -q 'state 1 .*nothing is decided' "$work/out"
}

test_spawned() {
    if [ -n "${hangs:-}" ]; then
        echo "skipped: a spawned world (this MPI may hang)"
        return
    fi
    start_recorder || return
    test_that "a spawned world asks for nothing" preloaded "$work/agent" 1 spawned
    stop_recorder
}

goal_is_promised() {
    preloaded "$work/agent" 2 holds 0 0 0.25 >"$work/out" || return
    cat "$work/out"
    recorded '"class":"best-effort","bits_per_second":0' && recorded '"within_nanos":250000000' &&
        grep -q '0.2 s promised' "$work/out"
}

# Its exit code; 0 too if it has said all that it has to say and hangs where some versions of MPICH do.
until_said() { # COUNT PATTERN COMMAND...: into $work/out
    local count=$1 pattern=$2 process left=10
    shift 2
    exec=exec "$@" >"$work/out" &
    process=$!
    while kill -0 "$process" 2>/dev/null; do
        # Launchers may put the lines of several ranks into one.
        [ "$(grep -o -- "$pattern" "$work/out" | wc -l)" -lt "$count" ] || left=$((left - 1))
        if [ "$left" = 0 ] && [ -n "${hangs:-}" ]; then
            kill "$process"
            wait "$process"
            return 0
        fi
        sleep 0.2
    done
    wait "$process"
}

# Every rank does all that it should; what MPICH does in MPI_Finalize is its own matter.
comes_to_its_end() { # RANKS PROGRAM ARGUMENTS...
    local ranks=$1 code
    until_said "$ranks" 'at the end' preloaded "$work/agent" "$@"
    code=$?
    cat "$work/out"
    echo "exit code $code"
    [ "$(grep -o 'at the end' "$work/out" | wc -l)" = "$ranks" ] && [ "$code" = 0 ]
}

# Every line `endpoint RANK HOST:PORT PEER HOST:PORT` with both halves exchanged is there too.
endpoints_are_mirror_images() {
    transport=tcp choose_launcher
    until_said 12 '^endpoint' preloaded "" 4 attributes 0
    choose_launcher
    grep '^endpoint' "$work/out" | sort >"$work/ours"
    awk '{ print $1, $4, $5, $2, $3 }' "$work/ours" | sort >"$work/mirrored"
    cat "$work/ours"
    [ "$(wc -l <"$work/ours")" -ge 12 ] && cmp "$work/ours" "$work/mirrored"
}

test_what_is_told() {
    start_recorder || return
    transport=tcp choose_launcher
    test_that "shapes, and pacing" comes_to_its_end 4 shapes paced
    test_that "all to all" recorded_of 0,1,2,3 1001
    test_that "a grid talks to neighbours" recorded '"talk":"0>2 0>1 1>3 1>0 2>0 2>3 3>1 3>2"},"change":1,"terms":{"class":"premium","bits_per_second":1000000,"message_bytes_max":1002'
    test_that "half of them" recorded_of 2,3 1003
    test_that "an intercommunicator talks across" recorded '"talk":"0>2 2>0 0>3 3>0 1>2 2>1 1>3 3>1"},"change":1,"terms":{"class":"premium","bits_per_second":1000000,"message_bytes_max":1004'
    test_that "a graph" recorded '"talk":"0>1 1>0"},"change":1,"terms":{"class":"premium","bits_per_second":1000000,"message_bytes_max":1005'
    test_that "a distributed graph" recorded '"talk":"2>3 3>0"},"change":1,"terms":{"class":"premium","bits_per_second":1000000,"message_bytes_max":1006'
    test_that "oneself" recorded_of 1 1007
    test_that "who has no neighbours tells of itself" recorded_of 3 1008
    test_that "and counts as the others do" all_count_alike 1009
    stop_recorder
    # What is asked while the agent is being called must neither be lost nor stop the program.
    start_recorder 1500 || return
    test_that "shapes, the agent slow to answer the call" comes_to_its_end 4 shapes paced
    test_that "what stood was told" recorded '"message_bytes_max":0'
    stop_recorder
    choose_launcher
}

# All ranks tell of a communicator with the same number.
all_count_alike() { # MESSAGE_SIZE
    local numbers
    numbers=$(numbers_of "$1")
    echo "$numbers"
    [ -n "$numbers" ] && [ "$(wc -l <<<"$numbers")" = 1 ]
}

test_progress() {
    start_recorder || return
    test_that "a busy program" preloaded "$work/agent" 2 busy
    test_that "six operations are an iteration" recorded '"period":6,"told":0'
    test_that "a busy program that tells" preloaded "$work/agent" 2 busy tells
    test_that "it told" grep -q '"told":[1-9]' "$work/record"
    stop_recorder
    # Who was not heard says it again, though nothing has changed since.
    start_recorder hasty || return
    test_that "a program that tells once, the agent hangs up" preloaded "$work/agent" 1 quiet
    test_that "it told again" [ "$(grep -c '"told":7' "$work/record")" = 2 ]
    stop_recorder
}

# What others wrote computes the same with the library as without, and says nothing else.
test_programs_of_others() {
    local programs=../workloads/$build
    if [ ! -x "$programs/ft" ]; then
        echo "skipped: programs of others ($programs is not built: make workloads)"
        return
    fi
    start_recorder || return
    test_that "integer sort" computes_the_same 2 "$programs/is" --keys 16 --iterations 5
    test_that "conjugate gradients" computes_the_same 2 "$programs/cg" --rows 2000 --iterations 3
    test_that "Fourier transforms" computes_the_same 2 "$programs/ft" --size 32 --iterations 3
    test_that "latency" computes_the_same 2 "$programs/osu" --test latency --most 65536 --times 50
    test_that "bandwidth" computes_the_same 2 "$programs/osu" --test bandwidth --most 65536 --times 5
    test_that "they ask for nothing" recorded_nothing_of '"change"'
    test_that "one that asks is granted" asks_and_computes_the_same 2 "$programs/cg" --rows 2000 --iterations 3
    stop_recorder
}

# Without what depends on the time.
computed() {
    awk '/_per_/ { next } $1 == "latency" || $1 == "bandwidth" { $0 = $1 " " $2 } $1 == "iteration" { $NF = "" } { print }' |
        sort
}

computes_the_same() { # RANKS PROGRAM ARGUMENTS...
    local ranks=$1
    shift
    mpi "$ranks" "$@" 2>&1 | computed >"$work/without" || return 1
    mpi "$ranks" env LD_PRELOAD="$library" KEEPTIME_AGENT="$work/agent" "$@" 2>&1 | computed >"$work/with" || return 1
    [ -s "$work/without" ] && diff "$work/without" "$work/with"
}

asks_and_computes_the_same() { # RANKS PROGRAM ARGUMENTS...
    computes_the_same "$@" --qos premium --kbps 1000 >"$work/difference"
    cat "$work/difference"
    # In all else they agree.
    [ "$(grep -c '^[<>]' "$work/difference")" = 2 ] && grep -q '^< qos not-asked' "$work/difference" &&
        grep -q '^> qos granted' "$work/difference"
}

recorded_nothing_of() { # PATTERN
    ! grep -F -- "$1" "$work/record"
}

# The same exit code with the library and without.
test_bad_ends() {
    local how code
    start_recorder || return
    for how in abort kill; do
        mpi 2 "$build/abort" "$how" >"$work/log" 2>&1
        code=$?
        test_that "$how without the library fails" [ "$code" != 0 ]
        test_that "$how with it, the same" exit_code "$code" preloaded "$work/agent" 2 abort "$how"
    done
    stop_recorder
}

choose_launcher
test_units
test_without
test_with_agent
test_spawned
test_what_is_told
test_progress
test_programs_of_others
test_bad_ends
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
