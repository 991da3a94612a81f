#!/usr/bin/env bash
# Tests of the MPI programs: pictures against references on 1, 2 and 4 ranks, the surface against what
# every closed surface obeys, who sends what to whom, sorted keys, told times, and bad input.
#
# usage: tests/run.sh BUILD_FOLDER MPICXX [LAUNCHER]     (make check calls it)
# UPDATE=1 takes the pictures of 1 rank as new references: look at them before you commit them.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 mpicxx=$2 launcher=${3:-}
volume=../data/mni152-t1.nii.gz
reference=tests/reference
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. ../scripts/testing.sh

# --- helpers ----------------------------------------------------------------------------------------

# Bounds every run: a deadlock is a failure, not a day.
mpi() { # RANKS PROGRAM ARGUMENTS...
    local ranks=$1 program=$2
    shift 2
    timeout -k 5 120 "${launch[@]}" -n "$ranks" "$build/$program" "$@"
}

choose_launcher() {
    if "$mpicxx" --showme:version >/dev/null 2>&1; then
        launch=("${launcher:-$(command -v mpirun.openmpi || echo mpirun)}" --oversubscribe --allow-run-as-root
            -mca mpi_yield_when_idle 1)
    else
        launch=("${launcher:-$(command -v mpiexec.hydra || echo mpiexec)}")
    fi
}

picture_matches() { # REFERENCE RANKS PROGRAM ARGUMENTS...
    local name=$1 ranks=$2
    shift 2
    rm -f "$work/picture.png"
    mpi "$ranks" "$@" --frames 1 --warmup 0 --out "$work/picture.png" || return 1
    if [ -n "${UPDATE:-}" ] && [ "$ranks" = 1 ]; then
        cp "$work/picture.png" "$reference/$name.png"
    fi
    "$build/pngdiff" "$reference/$name.png" "$work/picture.png"
}

# Runs until it has said this and nothing more for a second; 124, as of `timeout`, if it runs still.
hangs_after() { # PATTERN COMMAND...
    local process
    "${@:2}" &
    process=$!
    until grep -q "$1" "$work/times" || ! kill -0 "$process" 2>/dev/null; do sleep 0.05; done
    sleep 1
    kill -9 "$process" 2>/dev/null || return 1
    wait "$process"
    return 124
}

differ() { ! "$build/pngdiff" "$1" "$2"; }

# The exit code and one line on stderr; launchers may add lines of their own.
refuses() { # EXIT_CODE LINE COMMAND...
    local code=$1 line=$2 got
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    got=$?
    echo "exit code $got, stderr:"
    cat "$work/err"
    [ "$got" = "$code" ] && [ "$(grep -cF -- "$line" "$work/err")" = 1 ] && ! grep -qE "^seconds_per_" "$work/out"
}

said() { # FILE KEY: the value of a line `KEY VALUE`
    awk -v key="$2" '$1 == key { print $2 }' "$1"
}

says() { # FILE KEY VALUE
    echo "$2: $(said "$1" "$2"), expected $3"
    [ -n "$3" ] && [ "$(said "$1" "$2")" = "$3" ]
}

at_most() { # FILE KEY VALUE
    echo "$2: $(said "$1" "$2"), expected at most $3"
    [ -n "$(said "$1" "$2")" ] && [ "$(said "$1" "$2")" -le "$3" ]
}

# A little-endian NIfTI file of 40 x 40 x 40 bytes that look random, to meet all 256 cases of marching
# cubes: compressed data taken as voxels. Fields are named in common/volume.cpp.
noise_volume() {
    printf '\134\001\0\0' && head -c 36 /dev/zero
    printf '\3\0\50\0\50\0\50\0\1\0\1\0\1\0\1\0' && head -c 14 /dev/zero
    printf '\2\0\10\0' && head -c 34 /dev/zero
    printf '\0\0\260\103' && head -c 232 /dev/zero
    printf 'n+1\0\0\0\0\0'
    tail -c +1000 "$volume" | head -c 64000
}

# --- pictures ---------------------------------------------------------------------------------------

test_pictures() {
    local ranks
    for ranks in 1 2 4; do
        test_that "raycast on $ranks" picture_matches raycast "$ranks" raycast --volume "$volume" --size 256
        test_that "raycast with interleave 2 on $ranks" \
            picture_matches raycast-interleave-2 "$ranks" raycast --volume "$volume" --size 256 --interleave 2
        test_that "render on $ranks" picture_matches render "$ranks" render --surface "$work/1.ply" --size 256
    done
    test_that "raycast with busy waiting" \
        picture_matches raycast 2 raycast --volume "$volume" --size 256 --wait poll
    test_that "an odd size on 4" mpi 4 raycast --volume "$volume" --size 251 --interleave 3 --frames 1
    # The camera turns: another frame is another picture, and the comparison sees it.
    mpi 1 raycast --volume "$volume" --size 256 --frames 2 --warmup 0 --out "$work/turned.png" >/dev/null
    test_that "frame 1 is not frame 0" differ "$reference/raycast.png" "$work/turned.png"
    test_that "interleave is seen" differ "$reference/raycast.png" "$reference/raycast-interleave-2.png"
}

# --- bytes ------------------------------------------------------------------------------------------

# Every message goes along an edge of the hypercube (the numbers of its ends differ in one bit), and in
# all the ranks send what the README's formula says.
sends() { # BYTES_OF_ALL_RANKS RANKS PROGRAM ARGUMENTS...
    local bytes=$1 ranks=$2 program=$3
    shift 3
    timeout -k 5 120 "${launch[@]}" -n "$ranks" env LD_PRELOAD="$PWD/$build/witness.so" "$build/$program" \
        --frames 1 --warmup 1 "$@" 2>&1 | tee "$work/sent"
    awk -v expected="$bytes" '
        function power_of_two(n) { while (n > 1 && n % 2 == 0) n /= 2; return n == 1 }
        $1 == "sent" { far = $2 > $3 ? $2 - $3 : $3 - $2; bytes += $4; edges++ }
        $1 == "sent" && !(power_of_two(far) && int($2 / far) % 2 != int($3 / far) % 2) {
            print "not an edge: " $2, $3; stray = 1 }
        $1 == "witness:" { stray = 1 }
        END { print bytes + 0 " bytes, expected " expected; exit stray || !edges || bytes != expected }
    ' "$work/sent"
}

# Two frames of: swap 8 (P-1) N, gather 2 N log2 P, start P log2 P; N rays or pixels (a multiple
# of P, else a piece is a pixel more or less), P ranks.
test_bytes() {
    test_that "raycast sends what is promised on 2" \
        sends $((2 * (8 * 1 * 65536 + 2 * 65536 * 1 + 2 * 1))) 2 raycast --volume "$volume" --size 256
    test_that "raycast sends what is promised on 8" \
        sends $((2 * (8 * 7 * 7744 + 2 * 7744 * 3 + 8 * 3))) 8 raycast --volume "$volume" --size 264 --interleave 2
    test_that "render sends what is promised on 4" \
        sends $((2 * (8 * 3 * 40000 + 2 * 40000 * 2 + 4 * 2))) 4 render --surface "$work/1.ply" --size 200
}

# --- surfaces ---------------------------------------------------------------------------------------

extract() { # NAME RANKS ARGUMENTS...
    local name=$1 ranks=$2
    shift 2
    mpi "$ranks" isosurface --frames 1 --warmup 0 --out "$work/$name.ply" "$@" &&
        "$build/plycheck" "$work/$name.ply" >"$work/$name.facts" && cat "$work/$name.facts"
}

test_surfaces() {
    local name
    test_that "isosurface on 1" extract 1 1 --volume "$volume"
    test_that "isosurface on 2" extract 2 2 --volume "$volume"
    test_that "isosurface on 4" extract 4 4 --volume "$volume"
    test_that "the surface is closed on 1" says "$work/1.facts" open_edges 0
    test_that "no vertex is doubled on 1" says "$work/1.facts" vertices "$(said "$work/1.facts" places)"
    # 1 % is more than thin folds have (0.3 %), where a gradient over two voxels sees the other side.
    test_that "normals point outwards" at_most "$work/1.facts" inward_normals 2770
    for name in 2 4; do
        test_that "as many triangles on $name" says "$work/$name.facts" triangles "$(said "$work/1.facts" triangles)"
        test_that "vertices at the same places on $name" says "$work/$name.facts" places "$(said "$work/1.facts" places)"
        test_that "slabs fit together on $name" says "$work/$name.facts" open_seams 0
        test_that "normals agree where slabs meet on $name" says "$work/$name.facts" torn_normals 0
        test_that "as large on $name" says "$work/$name.facts" volume_ml "$(said "$work/1.facts" volume_ml)"
    done
    test_that "triangles are seen from the outside" \
        awk '$1 == "volume_ml" { exit !($2 > 1000 && $2 < 2000) }' "$work/1.facts"
    noise_volume >"$work/noise.nii"
    test_that "isosurface of noise" extract noise 1 --volume "$work/noise.nii" --smooth 0 --level 127.3
    test_that "the surface of noise is closed" says "$work/noise.facts" open_edges 0
}

# --- told times -------------------------------------------------------------------------------------

# Lines in order, one a frame, and the mean of the frames without the warm-up.
times_are_told() {
    mpi 2 "$@" --frames 3 --warmup 2 | tee "$work/times"
    awk '
        NF == 2 && $1 == "seconds_per_frame" { mean = $2; next }
        !/^(warmup|frame) [0-9]+ [0-9]+\.[0-9]+$/ { if ($1 != "vertices" && $1 != "triangles") exit 1; next }
        mean != "" { exit 1 }
        { if ($2 != count[$1]++) exit 1 }
        $1 == "frame" { sum += $3 }
        END { off = mean - sum / 3
              exit !(count["warmup"] == 2 && count["frame"] == 3 && mean > 0 && off < 2e-6 && off > -2e-6) }
    ' "$work/times"
}

test_times() {
    test_that "raycast tells times" times_are_told raycast --volume "$volume" --size 64
    test_that "render tells times" times_are_told render --surface "$work/1.ply" --size 64
    test_that "isosurface tells times" times_are_told isosurface --volume "$volume"
}

# --- bulk-synchronous programs and sorting ----------------------------------------------------------

# Lines in order, one an iteration, then the mean and its inverse.
iterations_are_told() { # COUNT COMMAND...
    local count=$1
    shift
    "$@" | tee "$work/times"
    awk -v count="$count" '
        $1 == "iteration" && ($2 != told++ || NF != 3 || mean != "") { exit 1 }
        $1 == "iteration" { sum += $3 }
        $1 == "seconds_per_iteration" { mean = $2 }
        $1 == "iterations_per_second" { rate = $2 }
        END { off = mean * told - sum
              exit !(told == count && mean > 0 && off < 1e-5 * told && off > -1e-5 * told &&
                     rate * mean > 0.99 && rate * mean < 1.01) }
    ' "$work/times"
}

# Who sends how much to whom in 3 iterations: "FROM TO BYTES" for each edge.
talks() { # EXPECTED RANKS ARGUMENTS...
    local expected=$1 ranks=$2
    shift 2
    timeout -k 5 120 "${launch[@]}" -n "$ranks" env LD_PRELOAD="$PWD/$build/witness.so" "$build/bsp" \
        --steps 1 --iterations 3 "$@" 2>&1 | tee "$work/sent"
    [ "$(awk '$1 == "sent" { print $2, $3, $4 }' "$work/sent" | sort | tr '\n' ';')" = "$expected" ]
}

lasts() { # SECONDS COMMAND...
    local seconds=$1
    shift
    "$@" | tee "$work/times"
    awk -v least="$seconds" '$1 == "iteration" { sum += $3 } END { exit !(sum >= least && sum < least + 60) }' "$work/times"
}

# A rank that computes for twice as long makes all wait for it.
heavier() {
    mpi 2 bsp --steps 20000 --iterations 20 >"$work/even" && mpi 2 bsp --steps 20000 --iterations 20 --imbalance 200 >"$work/uneven" &&
        awk '$1 == "seconds_per_iteration" { time[++n] = $2 } END { print time[1], time[2]; exit !(time[2] > 1.6 * time[1]) }' \
            "$work/even" "$work/uneven"
}

writes_and_cleans_up() {
    mpi 2 bsp --steps 1 --iterations 2 --disk-mib 1 --disk-file "$work/disk" && ! ls "$work"/disk.* 2>/dev/null
}

# Rank 1 alone wants 64 GiB, and may have 32: all end, and it is told why.
one_rank_lacks_memory() {
    local got
    # shellcheck disable=SC2016
    timeout -k 5 60 "${launch[@]}" -n 2 bash -c '
        [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}" = 1 ] || exec "$0" --steps 1 --iterations 2
        ulimit -v 33554432
        exec "$0" --steps 1 --iterations 2 --working-set 65536' "$build/bsp" >"$work/out" 2>&1
    got=$?
    cat "$work/out"
    echo "exit code $got"
    [ "$got" != 0 ] && [ "$got" != 124 ] && grep -q 'bsp: not enough memory' "$work/out"
}

finds_bytes() { # LEAST MOST ARGUMENTS...
    local least=$1 most=$2
    shift 2
    mpi 2 bsp --compute 5 --iterations 3 "$@" | tee "$work/bytes"
    awk -v least="$least" -v most="$most" '$1 == "bytes" { bytes = $2 } END { exit !(bytes >= least && bytes <= most) }' "$work/bytes"
}

test_bsp() {
    local pattern
    for pattern in all-to-all ring neighbours hypercube pairs tree gather none; do
        test_that "bsp tells iterations, $pattern" iterations_are_told 5 \
            mpi 4 bsp --pattern "$pattern" --steps 10 --iterations 5
    done
    test_that "bsp on 3, polling" iterations_are_told 4 mpi 3 bsp --steps 1 --iterations 4 --wait poll --granularity 5
    test_that "bsp sends along a ring" talks "0 1 300;1 2 300;2 0 300;" 3 --pattern ring --bytes 100
    test_that "bsp sends to neighbours once where they are the same" talks "0 1 300;1 0 300;" 2 --pattern neighbours --bytes 100
    test_that "bsp sends along a tree" talks "0 1 300;0 2 300;1 0 300;1 3 300;2 0 300;3 1 300;" 4 --pattern tree --bytes 100
    test_that "bsp divides bytes among supersteps" talks "0 1 300;1 0 300;" 2 --pattern pairs --bytes 100 --granularity 4
    printf '# a triangle\n0 1\n1 2  # and back\n\n2 0\n' >"$work/flows"
    test_that "bsp sends along a file's flows" talks "0 1 30;1 2 30;2 0 30;" 3 --flows "$work/flows" --bytes 10
    printf '0 1\n0 3\n' >"$work/bad"
    test_that "flows beyond the ranks" refuses 2 'line 2: "0 3": not accepted; give two different ranks from 0 to 2' \
        mpi 3 bsp --flows "$work/bad"
    test_that "bsp goes on as long as it is told" lasts 2 mpi 2 bsp --compute 5 --iterations 1 --at-least 2
    test_that "a heavier rank is waited for" at_last heavier
    # 20 ms are a message of megabytes, and of more than this even where each look has to wait; no message takes 0.5 us.
    test_that "bsp finds bytes for a ratio" at_last finds_bytes 100000 200000000 --ratio 0.25
    test_that "bsp finds when no bytes are few enough" at_last finds_bytes 1 1 --ratio 10000
    # Where nobody sends, no number of bytes takes long: it finds its most, 256 MB, in each of ten supersteps.
    test_that "bsp tells more bytes than an int holds" \
        finds_bytes 2560000000 2560000000 --pattern none --ratio 0.0001 --granularity 10
    test_that "bsp writes and cleans up" writes_and_cleans_up
    test_that "bsp cannot write" refuses 2 "cannot be made (No such file" "$build/bsp" --disk-mib 1 --disk-file "$work/no/where"
    test_that "bsp ends when one rank lacks memory" one_rank_lacks_memory
    test_that "an odd number of pairs" refuses 64 "start it on an even number" mpi 3 bsp --pattern pairs
    test_that "unknown pattern" refuses 64 "give all-to-all or ring" "$build/bsp" --pattern star
    test_that "bsp crashes when told" breaks_in_iteration_1 "-ne 0" mpi 2 bsp --fault crash --steps 1
    test_that "bsp hangs when told" breaks_in_iteration_1 "-eq 124" hangs_after '^iteration 0 ' "$build/bsp" --fault hang --steps 1
}

breaks_in_iteration_1() { # CONDITION_ON_EXIT_CODE COMMAND...
    local condition got
    read -ra condition <<<"$1"
    shift
    "$@" --fault-iteration 1 --iterations 3 >"$work/times" 2>&1
    got=$?
    cat "$work/times"
    test "$got" "${condition[@]}" && grep -q '^iteration 0 ' "$work/times" && ! grep -qE '^(iteration 1|seconds_per)' "$work/times"
}

# Ranks in the middle get most of what is distributed like a bell.
bell() {
    mpi 4 is --keys 16 --split range --iterations 1 | tee "$work/keys"
    awk '$1 == "keys" { got[$2] = $3 } END { exit !(got[1] > 2 * got[0] && got[2] > 2 * got[3]) }' "$work/keys"
}

test_is() {
    local ranks
    for ranks in 1 2 3 4; do
        test_that "is verifies on $ranks" bash -c "$(declare -f mpi); launch=(${launch[*]@Q}) build=$build; mpi $ranks is --keys 14 --iterations 5 | grep -qx 'verified 5'"
    done
    test_that "is tells iterations" iterations_are_told 3 mpi 2 is --keys 12 --iterations 3 --bits 8
    test_that "few keys of few bits" iterations_are_told 2 mpi 4 is --keys 4 --bits 4 --iterations 2 --wait poll
    test_that "equal ranges are unequal work" bell
    test_that "a wrong order is found" refuses 1 "not verified: not in order" mpi 2 is --keys 12 --spoil order
    test_that "wrong keys are found" refuses 1 "not verified: other keys than before" mpi 2 is --keys 12 --spoil keys
    test_that "too many keys" refuses 64 "--keys 31: not accepted" "$build/is" --keys 31
}

# --- external load ----------------------------------------------------------------------------------

# Ends by itself, and does what was asked for. What comes of it depends on who else is on the machine; for how long it
# wanted the processor does not, but for the turns that it has to wait at the end of each of its own.
loads() { # KEY LEAST MOST ARGUMENTS...
    local key=$1 least=$2 most=$3
    shift 3
    timeout -k 1 60 "$build/load" "$@" | tee "$work/load"
    awk -v key="$key" -v least="$least" -v most="$most" '$1 == key { value = $2 } END { exit !(value >= least && value <= most) }' "$work/load"
}

leaves_no_file_when_killed() {
    timeout -s KILL 1 "$build/load" --disk-mib 1 --disk-rate 2 --seconds 60 --disk-file "$work/killed"
    [ "$?" = 137 ] && [ ! -e "$work/killed" ]
}

at_most_competed() {
    awk '$1 == "competed_seconds" { competed = $2 } $1 == "cpu_seconds" { used = $2 }
        END { exit !(used > 0 && used < competed + 0.1) }' "$work/load"
}

test_load() {
    test_that "half a process" at_last loads competed_seconds 0.8 1.4 --cpu 0.5 --seconds 2
    test_that "it used no more than it wanted" at_most_competed
    printf '0.5 1 # one after half a second\n1 0\n' >"$work/trace"
    test_that "a trace" at_last loads competed_seconds 0.4 0.7 --trace "$work/trace" --seconds 2
    test_that "memory" loads memory_passes 1 1e9 --memory-mib 4 --seconds 1
    test_that "a disk within its rate" at_last loads disk_mib 1 5 --disk-mib 1 --disk-rate 2 --seconds 1 --disk-file "$work/loaded"
    test_that "its file is removed" test ! -e "$work/loaded"
    test_that "killed, it leaves none" leaves_no_file_when_killed
    printf '0 1\n0 2\n' >"$work/trace"
    test_that "a trace that does not go on" refuses 2 'line 2: "0 2": not accepted' "$build/load" --trace "$work/trace"
    test_that "without end" refuses 64 "--seconds 3601: not accepted" "$build/load" --seconds 3601
}

# --- bad input --------------------------------------------------------------------------------------

# Each program has a folder with its main.cpp.
helps_fit() {
    local main program
    for main in */main.cpp; do
        program=${main%/main.cpp}
        "$build/$program" --help >"$work/help" || return 1
        awk -v program="$program" 'length > 80 { print program ": " $0; wide = 1 } END { exit wide || NR == 0 }' \
            "$work/help" || return 1
    done
}

test_usage() {
    local one="$build/raycast"
    test_that "every help has 80 columns at most" helps_fit
    test_that "help" bash -c "'$one' --help | grep -q -- '--interleave .*rays'"
    test_that "help on 2 comes once" bash -c "[ \$($(printf '%q ' "${launch[@]}") -n 2 '$one' --help | grep -c Examples) = 1 ]"
    test_that "unknown option" refuses 64 "--sice: no such option; known are --volume" "$one" --sice 3
    test_that "size of letters" refuses 64 "--size 12x: not accepted; give a whole number from 16 to 4096" "$one" --size 12x
    test_that "size too small" refuses 64 "--size 15: not accepted" "$one" --volume "$volume" --size=15
    test_that "size too large" refuses 64 "--size 4097: not accepted" "$one" --volume "$volume" --size 4097
    test_that "value missing" refuses 64 "--size: value missing; give a whole number" "$one" --size
    test_that "no volume named" refuses 64 "--volume is missing" "$one"
    test_that "unknown fault" refuses 64 "--fault fire: not accepted; give none or crash or hang" "$one" --fault fire
    test_that "level of nothing" refuses 64 "--level nan: not accepted" "$build/isosurface" --level nan
    test_that "usage error on 2 is told once" refuses 64 "--size 1: not accepted" mpi 2 raycast --size 1
    test_that "three ranks" refuses 64 "3 ranks: not accepted; start it on a power of two" mpi 3 raycast --volume "$volume"
}

test_bad_files() {
    gunzip -c "$volume" >"$work/whole.nii"
    head -c 100000 "$work/whole.nii" >"$work/short.nii"
    head -c 100000 "$volume" >"$work/short.nii.gz"
    { head -c 400000 "$volume" && printf XXXX && tail -c +400005 "$volume"; } >"$work/damaged.nii.gz"
    { head -c 40 "$work/whole.nii" && printf '\3\0\377\177' && tail -c +45 "$work/whole.nii"; } >"$work/huge.nii"
    { head -c 70 "$work/whole.nii" && printf '\200\0' && tail -c +73 "$work/whole.nii"; } >"$work/colours.nii"
    head -c 352 /dev/zero >"$work/zeros.nii"
    { head -c 352 "$work/noise.nii" && head -c 64000 /dev/zero; } >"$work/empty.nii"
    local name
    for name in short.nii:"bytes too early" short.nii.gz:"damaged or cut off" damaged.nii.gz:"damaged or cut off" \
        huge.nii:"not a volume of 2 to 2048" colours.nii:"NIfTI type 128" zeros.nii:"not a little-endian NIfTI-1" \
        empty.nii:"--volume: the volume has no voxel above 0" missing.nii:"cannot be opened (No such file"; do
        test_that "volume ${name%%:*}" refuses 2 "${name#*:}" "$build/raycast" --volume "$work/${name%%:*}"
    done
    # Two voxels, 0 and 1 of a row: of 16 parts those of its lower half are empty, and the others are not.
    { head -c 352 "$work/noise.nii" && head -c 32000 /dev/zero && printf '\1\1' && head -c 31998 /dev/zero; } >"$work/two.nii"
    # Ranks that never yield take minutes to start sixteen on a few cores.
    if [[ "${launch[*]}" == *mpi_yield_when_idle* ]]; then
        test_that "a volume that is too small for some ranks" refuses 2 "the volume is too small for 16 ranks" \
            mpi 16 raycast --volume "$work/two.nii" --size 16
    fi
    test_that "and not for fewer" mpi 8 raycast --volume "$work/two.nii" --size 16 --frames 1
    test_that "bad volume on 2 is told once" refuses 2 "bytes too early" mpi 2 isosurface --volume "$work/short.nii"

    head -c 50000 "$work/1.ply" >"$work/short.ply"
    { head -c -4 "$work/1.ply" && printf '\377\377\377\177'; } >"$work/damaged.ply"
    test_that "short surface" refuses 2 "cut off" "$build/render" --surface "$work/short.ply"
    test_that "damaged surface" refuses 2 "a face is not a triangle" "$build/render" --surface "$work/damaged.ply"
    test_that "surface that is none" refuses 2 "not a binary little-endian PLY" "$build/render" --surface "$volume"
    test_that "picture into nowhere" failing_output
}

failing_output() {
    "$build/raycast" --volume "$volume" --size 16 --frames 1 --out "$work/no/where.png" 2>"$work/err"
    [ $? = 2 ] && grep -F "where.png: cannot be written (No such file" "$work/err"
}

# --- faults -----------------------------------------------------------------------------------------

# Frames before the fault are told, none after it, and no result.
breaks_after_frame_1() { # CONDITION_ON_EXIT_CODE COMMAND...
    local condition got
    read -ra condition <<<"$1"
    shift
    "$@" --fault-frame 2 --frames 5 --warmup 0 --volume "$volume" --size 32 >"$work/times" 2>&1
    got=$?
    cat "$work/times"
    echo "exit code $got"
    test "$got" "${condition[@]}" && grep -q '^frame 1 ' "$work/times" && ! grep -qE '^(frame 2|seconds_per_frame) ' "$work/times"
}

# --- measuring programs -----------------------------------------------------------------------------

tells() { # KEY RANKS PROGRAM ARGUMENTS...
    local key=$1
    shift
    mpi "$@" >"$work/times" && cat "$work/times" && [ -n "$(said "$work/times" "$key")" ]
}

same_on_all() { # KEY-PATTERN PROGRAM ARGUMENTS...: lines that do not depend on the number of ranks
    local pattern=$1 ranks
    shift
    for ranks in 1 2 4; do
        mpi "$ranks" "$@" >"$work/times" || return 1
        grep -E "$pattern" "$work/times" | awk '{ printf "%s %.5f %.5f\n", $1 $2, $3, (NF > 4 ? $4 : 0) }' >"$work/$ranks.lines"
        cat "$work/$ranks.lines"
    done
    [ -s "$work/1.lines" ] && cmp "$work/1.lines" "$work/2.lines" && cmp "$work/1.lines" "$work/4.lines"
}

# 5,000 bytes twenty times a second: a busy machine may be late with the last of them.
streams() {
    tells mbit 2 stream --bytes 5000 --fps 20 --seconds 1 && awk '$1 == "mbit" { exit !($2 > 0.76 && $2 < 0.84) }' "$work/times"
}

# Of seven bytes four are sent, as one word. Times are told to a microsecond, rates to a kbit/s.
alltoall_tells_what_it_sends() {
    tells pair_mbit 4 alltoall --bytes 7 --times 20 &&
        awk '$1 == "seconds" { median = $2 } $1 == "pair_mbit" { bytes = $2 * median / 8e-6 }
            END { print bytes " bytes"; exit !(bytes > 2.5 && bytes < 5.5) }' "$work/times"
}

# The smallest eigenvalue is 1; a start that is its eigenvector would be there at once.
cg_comes_close() {
    mpi 2 cg --rows 3000 --iterations 15 >"$work/times" && cat "$work/times"
    awk '$1 == "iteration" && $2 == 0 { far = $3 > 2 } $1 == "zeta" { near = $2 > 1 - 1e-6 && $2 < 1.001 }
        END { exit !(far && near) }' "$work/times"
}

test_measuring() {
    test_that "pingpong" tells one_way_mbit 2 pingpong --bytes 1000 --seconds 0.2
    test_that "two pairs play pingpong" tells round_trip_us 4 pingpong --seconds 0.2 --warmup 3
    test_that "a stream has its rate" at_last streams
    test_that "alltoall" tells pair_mbit 4 alltoall --bytes 1000 --times 5
    test_that "alltoall tells what it sends" at_last alltoall_tells_what_it_sends
    test_that "a wrong word in a block is told by all" refuses 1 "a block from rank 3 to rank 1 is not what was sent" \
        mpi 4 alltoall --times 3 --spoil block
    test_that "osu latency" tells latency 2 osu --least 8 --most 64 --times 20
    test_that "osu bandwidth" tells bandwidth 2 osu --test bandwidth --least 65536 --most 131072 --times 3
    test_that "cg is the same on all" same_on_all '^iteration' cg --rows 3000 --iterations 4
    test_that "cg begins far off and comes close" cg_comes_close
    test_that "cg on 3, long after it is there" tells zeta 3 cg --rows 1000 --iterations 60
    test_that "a wrong solution is found" refuses 1 "iteration 0: not solved: the residual is" \
        mpi 3 cg --rows 1000 --spoil solution
    test_that "a zeta that is too low is found" refuses 1 "and cannot be below 1" mpi 2 cg --rows 1000 --spoil low
    test_that "a zeta that rises is found" refuses 1 "and cannot be above" mpi 2 cg --rows 1000 --spoil high
    test_that "ft is the same on all" same_on_all '^iteration' ft --size 16 --iterations 3
    test_that "ft goes there and back" tells round_trip_error 2 ft --size 16 --iterations 1
    test_that "by no more than rounding" awk '$1 == "round_trip_error" { exit !($2 < 1e-12) }' "$work/times"
    test_that "values in a wrong place are found, there and back" \
        refuses 1 "not transformed: there and back, a value is off" mpi 2 ft --size 16 --spoil round-trip
    test_that "and in an iteration" refuses 1 "iteration 1: not transformed: Parseval's sums differ" \
        mpi 4 ft --size 16 --spoil iteration
    test_that "without the library nothing is asked" tells qos 2 pingpong --seconds 0.1 --qos premium --kbps 100
    test_that "and the program says so" grep -q '^qos not-asked 0$' "$work/times"
    test_that "three ranks" refuses 64 "3 ranks: not accepted; start it on an even number" mpi 3 pingpong
    test_that "a size that is no power" refuses 64 "--size 12: not accepted; give a power of two" "$build/ft" --size 12
}

test_faults() {
    test_that "crash" breaks_after_frame_1 "-ne 0" mpi 2 raycast --fault crash
    test_that "hang" breaks_after_frame_1 "-eq 124" hangs_after '^frame 1 ' "$build/raycast" --fault hang
}

choose_launcher
test_surfaces
test_pictures
test_bytes
test_times
test_bsp
test_is
test_load
test_usage
test_bad_files
test_measuring
test_faults
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
