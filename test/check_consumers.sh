#!/bin/bash
# SPDX-License-Identifier: MIT
# check_consumers.sh - build the programs of test/consumers as a user would, with each compiler and
# libc here, and compare what they count with what they did.
#
# Seen to fail: with adds that are a plain load and store (signal_counters, fibers, exporter,
# malloc_count); with a take that forgets the last one (fork_server); with plugins that are not left
# before they are unmapped (plugin_host: the kernel kills it).
cd "$(dirname "$0")/.." || exit 2
src=test/consumers
. test/matrix/tap.sh
said=$tmp/err
trap '' PIPE # a program that ends early is a failed check, not the end of this script
unset GLIBC_TUNABLES
OFF=GLIBC_TUNABLES=glibc.pthread.rseq=0
warn="-Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Wcast-qual -Werror"

# build NAME COMMAND...: a warning is a failure.
build() {
    local out=$1
    shift
    # shellcheck disable=SC2086 # lists of words
    "$@" $warn -O2 -I. -pthread -o "$tmp/$out" >"$tmp/err" 2>&1 && return 0
    result 1 "build $out: $*"
    return 1
}
# same NAME EXPECTED COMMAND...: exit status 0 and exactly this output.
same() {
    local name=$1 expected=$2 got rc
    shift 2
    got=$(timeout 60 env "$@" 2>"$tmp/err")
    rc=$?
    printf 'exit status %s\nexpected:\n%s\ngot:\n%s\n' $rc "$expected" "$got" >>"$tmp/err"
    [ $rc = 0 ] && [ "$got" = "$expected" ]
    result $? "$name"
}

signal_counters() { # MODE PROGRAM: the number of ticks is the timer's, everything else is known
    local got rc
    got=$(timeout 60 env $1 "$2" 2>"$tmp/err")
    rc=$?
    echo "exit status $rc: $got" >>"$tmp/err"
    [ $rc = 0 ] && echo "$got" | awk -F '[= ]' '
        { ok = NF == 8 && $1 == "requests" && $2 == 8000000 && $3 == "slow" && $4 == 8000 &&
               $5 == "ticks" && $6 >= 3 && $7 == "events" && $8 == $2 + $4 + $6 }
        END { exit !(NR == 1 && ok) }'
    result $? "$3: requests, handlers and their sum agree"
}

# ---- The malloc interposer
# counted NAME MODE COMMAND...: the same program with and without; a second interposer that counts
# with plain atomics has seen the same.
counted() {
    local name=$1 mode=$2 with without
    shift 2
    rm -f "$tmp/count" "$tmp/witness"
    without=$(timeout 60 "$@" 2>&1; echo "exit status $?")
    # By env, so that nothing but the program is preloaded into.
    # shellcheck disable=SC2086 # two words, or one
    with=$(timeout 60 env $mode LD_PRELOAD="$tmp/count.so $tmp/witness.so" \
        MALLOC_COUNT="$tmp/count" MALLOC_WITNESS="$tmp/witness" "$@" 2>&1; echo "exit status $?")
    printf 'without:\n%s\nwith:\n%s\n' "$(echo "$without" | tail -2)" \
        "$(echo "$with" | tail -2)" >"$tmp/err"
    cat "$tmp/count" "$tmp/witness" >>"$tmp/err" 2>&1
    [ "$with" = "$without" ] && [ -s "$tmp/count" ] && grep -q 'allocs=[1-9]' "$tmp/count" &&
        ! grep -qv '^allocs=[0-9]* frees=[0-9]* bytes=[0-9]*$' "$tmp/count" &&
        cmp -s "$tmp/count" "$tmp/witness"
    result $? "$name"
}
# On musl nothing has allocated before the four threads do, at the same time.
counted_starts() { # NAME MODE
    local i bad=0
    for i in {1..40}; do
        rm -f "$tmp/count" "$tmp/witness"
        # shellcheck disable=SC2086 # two words, or one
        env $2 LD_PRELOAD="$tmp/count.so $tmp/witness.so" MALLOC_COUNT="$tmp/count" \
            MALLOC_WITNESS="$tmp/witness" "$tmp/malloc_user" 20 >"$tmp/err" 2>&1 &&
            cmp "$tmp/count" "$tmp/witness" >>"$tmp/err" 2>&1 || { bad=1; break; }
    done
    { echo "run $i:"; cat "$tmp/count" "$tmp/witness"; } >>"$tmp/err" 2>&1
    result $bad "$1"
}
# One run's three numbers.
counts_of() { # MODE COMMAND...
    local mode=$1
    shift
    rm -f "$tmp/count"
    env $mode LD_PRELOAD="$tmp/count.so" MALLOC_COUNT="$tmp/count" "$@" >"$tmp/err" 2>&1
    tr -c '0-9\n' ' ' <"$tmp/count"
}
malloc_user_exact() { # NAME MODE: what 1000 rounds add is known
    local a0 f0 b0 a1 f1 b1
    read -r a0 f0 b0 < <(counts_of "$2" "$tmp/malloc_user" 0)
    read -r a1 f1 b1 < <(counts_of "$2" "$tmp/malloc_user" 1000)
    echo "without work: $a0 $f0 $b0, with: $a1 $f1 $b1" >"$tmp/err"
    # per thread and round: malloc, calloc, realloc, posix_memalign
    [ $((a1 - a0)) = $((4 * 1000 * 4)) ] && [ $((f1 - f0)) = $((4 * (1000 * 4 - 5))) ] &&
        [ $((b1 - b0)) = $((4 * 1000 * (100 + 70 + 150 + 64))) ]
    result $? "$1"
}

# ---- The exporter
# The text exposition format, strictly: HELP, TYPE, samples per metric; each metric once; counters
# end in _total; no stray line. Reads stdin.
exposition() {
    awk '
        function bad(why) { print "line " NR ": " why ": " $0 > "/dev/stderr"; failed = 1 }
        /\r/ { bad("carriage return") }
        /^# HELP / {
            if ($3 !~ /^[a-zA-Z_:][a-zA-Z0-9_:]*$/ || NF < 4) bad("HELP")
            if ($3 in help) bad("a second HELP")
            help[$3] = 1; current = $3; typed = 0; next
        }
        /^# TYPE / {
            if (NF != 4 || $3 != current || typed) bad("TYPE that does not follow its HELP")
            if ($4 !~ /^(counter|gauge|histogram|summary|untyped)$/) bad("unknown type")
            if ($4 == "counter" && $3 !~ /_total$/) bad("a counter not named _total")
            type = $4; typed = 1; next
        }
        {
            name = $1; sub(/[{].*/, "", name)
            if (name !~ /^[a-zA-Z_:][a-zA-Z0-9_:]*$/) { bad("neither comment nor sample"); next }
            if (name != current || !typed) bad("a sample without HELP and TYPE before it")
            if ($1 ~ /[{]/ &&
                $1 !~ /^[^{]*[{]([a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*",?)*[}]$/) bad("labels")
            if (NF != 2 ||
                $2 !~ /^([-+]?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?|NaN|[+-]Inf)$/) bad("value")
            if (type == "counter" && $2 ~ /^-/) bad("a negative counter")
            if ($1 in seen) bad("a sample twice")
            seen[$1] = 1; samples++
        }
        END { exit failed || !samples }'
}
exposition_rejects() { # NAME TEXT: so that the check is known to be one
    printf '%b' "$2" | exposition 2>"$tmp/err"
    [ $? != 0 ]
    result $? "the format check rejects $1"
}
scrape() { # PORT PATH: headers to $tmp/head, body to $tmp/body
    exec 4<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&4
    timeout 20 cat <&4 >"$tmp/answer"
    exec 4>&-
    sed '/^\r$/q' "$tmp/answer" | tr -d '\r' >"$tmp/head"
    sed '1,/^\r$/d' "$tmp/answer" >"$tmp/body"
}
sample() { awk -v name="$1" '$1 == name { print $2 }' "$tmp/body"; }
exporter() { # MODE PROGRAM NAME
    local word port last=0 jobs rising=1 i status
    exec 5< <(timeout 60 env $1 "$2" 30 5; echo "exit $?")
    read -r -t 30 -u 5 word port
    : >"$tmp/err"
    for i in 1 2 3; do # while it counts, most likely; the format and the order hold in any case
        scrape "$port" /metrics && exposition <"$tmp/body" 2>>"$tmp/err" || rising=0
        jobs=$(sample demo_jobs_total)
        [ "${jobs:-0}" -ge "$last" ] && [ "${jobs:-99999999}" -le 4000000 ] || rising=0
        last=${jobs:-0}
        echo "scrape $i: $jobs jobs" >>"$tmp/err"
    done
    [ "$word" = port ] && [ $rising = 1 ]
    result $? "$3: scrapes while it counts are well formed and never go back"
    scrape "$port" /else
    { head -1 "$tmp/head" | grep -q '^HTTP/1.0 404 ' && [ ! -s "$tmp/body" ]; } 2>>"$tmp/err"
    result $? "$3: another path is refused"
    read -r -t 30 -u 5 word
    scrape "$port" /metrics
    read -r -t 30 -u 5 status
    cp "$tmp/body" "$tmp/err"
    [ "$word" = "done" ] && [ "$(sample demo_jobs_total)" = 4000000 ] &&
        [ "$(sample demo_errors_total)" = 40000 ] &&
        [ "$(sample demo_bytes_total)" = 1998000000 ] && [ "$(sample demo_last_bytes)" = 999 ] &&
        grep -q "^Content-Length: $(($(wc -c <"$tmp/body")))\$" "$tmp/head" &&
        grep -q '^Content-Type: text/plain; version=0.0.4' "$tmp/head"
    result $? "$3: exact when the workers are done"
    echo "status: $status" >"$tmp/err"
    [ "$status" = "exit 0" ]
    result $? "$3: stops by itself"
    exec 5<&-
}
# Debian packs promtool into `prometheus`. Only that file is taken out, once; nothing is installed.
find_promtool() {
    promtool=$(command -v promtool) && return 0
    promtool=$PWD/build/promtool
    [ -x "$promtool" ] && return 0
    have apt-get && have dpkg-deb || return 1
    (cd "$tmp" && timeout 60 apt-get -q download prometheus) >/dev/null 2>&1 || return 1
    mkdir -p build
    dpkg-deb --fsys-tarfile "$tmp"/prometheus_*.deb |
        tar xOf - ./usr/bin/promtool >"$promtool.new" &&
        chmod +x "$promtool.new" && mv "$promtool.new" "$promtool"
}

built_by=
for cc in gcc clang musl-gcc; do
    have $cc || { skip "consumers built with $cc" "no $cc here"; continue; }
    built_by=$cc
    libs=-ldl modes="plain $OFF" std=-std=gnu11
    [ $cc != musl-gcc ] || modes=plain
    build signal_counters $cc $std $src/signal_counters.c
    build fork_server $cc $std $src/fork_server.c
    build exporter $cc $std $src/exporter.c
    build malloc_user $cc $std $src/malloc_user.c
    build count.so $cc $std -shared -fPIC $src/malloc_count.c $libs
    build witness.so $cc $std -shared -fPIC -include $src/malloc_witness.h \
        -DREPORT='"MALLOC_WITNESS"' $src/malloc_count.c $libs
    for p in red green blue; do
        build $p.so $cc $std -shared -fPIC -DNAME="\"$p\"" $src/plugin.c
    done
    build plugin_host $cc $std -rdynamic $src/plugin_host.c $libs
    build plugin_host_unshared $cc $std $src/plugin_host.c $libs
    [ $cc = musl-gcc ] || build fibers $cc $std $src/fibers.c
    # musl's dlclose keeps everything mapped.
    unmapped=6
    [ $cc != musl-gcc ] || unmapped=0
    rounds=$(for r in 0 1; do for p in red green blue; do echo "round $r $p=60000"; done; done)
    for mode in $modes; do
        name=$cc
        [ $mode = plain ] && mode=-u\ NONE || name="$cc, libc told not to register"
        signal_counters "$mode" "$tmp/signal_counters" "signal_counters, $name"
        # shellcheck disable=SC2086 # two words, or one
        {
            same "fork_server, $name: what the workers report is what clients got" \
                "answered=300 requests=300 bytes=19200 started=8 parent=1000 failed=0" \
                $mode "$tmp/fork_server"
            for host in plugin_host plugin_host_unshared; do
                same "$host, $name: shared and private counts, unloaded twice" "$rounds
calls=360006 bytes=3600000 unmapped=$unmapped" $mode "$tmp/$host" "$tmp/red.so" "$tmp/green.so" \
                    "$tmp/blue.so"
            done
            if [ $cc = musl-gcc ]; then
                skip "fibers, $name" "musl has no ucontext"
            else
                same "fibers, $name: exact, and moved at each yield" \
                    "steps=120000 moves=60000 finished=60" $mode "$tmp/fibers"
            fi
        }
        malloc_user_exact "malloc_count, $name: a known program, exactly" "$mode"
        exporter "$mode" "$tmp/exporter" "exporter, $name"
        counted "malloc_count, $name: four threads" "$mode" "$tmp/malloc_user" 20000
        counted_starts "malloc_count, $name: threads that allocate first, 40 times" "$mode"
        [ $cc != musl-gcc ] || continue
        seq 20000 -1 1 >"$tmp/numbers"
        counted "malloc_count, $name: ls" "$mode" /bin/ls -la /usr/bin
        counted "malloc_count, $name: sort, in threads" "$mode" \
            sort --parallel=4 -S 64k "$tmp/numbers"
        for lang in perl python3; do
            # The interpreter itself, not a wrapper script
            if [ -x /usr/bin/$lang ]; then
                case $lang in
                perl)
                    program='my %h; $h{$_ % 97} .= "x" x $_ for 1 .. 3000;
print scalar(keys %h), "\n"'
                    flag=-e
                    ;;
                python3) program='import threading, json
t = [threading.Thread(target=lambda: json.dumps(list(range(9999)))) for _ in range(8)]
[x.start() for x in t]; [x.join() for x in t]; print(len(t))' flag=-c ;;
                esac
                counted "malloc_count, $name: $lang" "$mode" /usr/bin/$lang $flag "$program"
            else
                skip "malloc_count, $name: $lang" "no /usr/bin/$lang"
            fi
        done
    done
done
for cxx in g++ clang++; do
    have $cxx || { skip "object_counts, $cxx" "no $cxx here"; continue; }
    for std in c++11 c++17; do
        build object_counts $cxx -std=$std -Wold-style-cast $src/object_counts.cpp \
            $src/object_counts_serve.cpp || continue
        for mode in "-u NONE" $OFF; do
            # shellcheck disable=SC2086
            same "object_counts, $cxx $std${mode##-*}: one counter per type, in two files" \
                "messages alive=11 ever=400011 replies alive=0 ever=200000
sizes 4001 4000 8000 16000 32000 64000 72000 0" $mode "$tmp/object_counts"
        done
    done
done
skip "object_counts, musl" "no C++ library for musl here"

exposition_rejects "a sample without TYPE" '# HELP a_total x.\na_total 1\n'
exposition_rejects "a counter without _total" '# HELP a x.\n# TYPE a counter\na 1\n'
exposition_rejects "a value that is none" '# HELP a x.\n# TYPE a gauge\na one\n'
exposition_rejects "a metric twice" \
    '# HELP a x.\n# TYPE a gauge\na 1\n# HELP a x.\n# TYPE a gauge\na 2\n'
exposition_rejects "an empty line" '# HELP a x.\n# TYPE a gauge\na 1\n\n'
exposition_rejects "nothing at all" ''
if [ -z "$built_by" ] || [ ! -s "$tmp/body" ]; then
    skip "promtool reads the metrics" "no exporter was built"
elif find_promtool; then
    "$promtool" check metrics <"$tmp/body" >"$tmp/err" 2>&1
    result $? "promtool reads the metrics, without a remark"
    printf '# TYPE a counter\na 1\n' | "$promtool" check metrics >"$tmp/err" 2>&1
    [ $? != 0 ]
    result $? "promtool has remarks where there is something to remark"
else
    skip "promtool reads the metrics" \
        "no promtool here, and Debian's prometheus package is not to be had"
fi
finish
