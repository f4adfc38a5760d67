# shellcheck shell=bash
# Sourced by scripts/test-pg-suites. src/test/subscription, twice: on stock servers, and
# with a relay of this tree before every publisher, through which every subscription goes.
# ThroughRelay.pm, beside this file, does that and says what it adapts; the tests' files
# stay as they are. The servers have Lockstep loaded, so that relays decode with its
# output plugin; with --stock only the stock run is made.
#
# So that no test passes for the wrong reason, a file without a subscription through a
# relay fails. A file that skips itself is printed as SKIP and not counted.
# shellcheck disable=SC2154 # the variables of test-pg-suites

setup_for() { if [ "$variant" = stock ]; then echo suites; else echo relay-suite; fi; }

# Files for `make test`: a few seconds each. Together they cover initial
# synchronization, an altered subscription and dropping it.
short_choice() { echo t/004_sync.pl t/008_diff_schema.pl t/024_add_drop_pub.pl; }

build_what_is_tested() {
    [ "$variant" = stock ] && return
    [ -z "$short" ] || return 0 # `make test` has built both, and uses them at the same time
    make --no-print-directory build-extension SETUP=relay-suite
    scripts/cargo build --locked --bin lockstep
}

prepare() {
    [ "$variant" = stock ] && return
    preload >"$run/lockstep.conf"
    # Later minor releases accept only the output plugins that a setting names.
    if "$bin/postgres" --describe-config | grep '^output_plugin_libraries' >/dev/null; then
        echo "output_plugin_libraries = 'pgoutput, lockstep'" >>"$run/lockstep.conf"
    fi
    mkdir "$run/perl"
    cp scripts/suites/ThroughRelay.pm "$run/perl"
    cp build/target/debug/lockstep "$run"
}

# Why a file cannot pass through a relay; nothing for all others.
cannot_pass() {
    case $1,$PG in
        t/015_stream.pl,15 | t/016_stream_subxact.pl,15 | t/018_stream_subxact_abort.pl,15) ;;
        t/015_stream.pl,* | t/016_stream_subxact.pl,* | t/018_stream_subxact_abort.pl,*)
            echo "waits for what a parallel apply worker logs, and a relay sends whole transactions" ;;
        t/020_messages.pl,*) echo "reads the subscription's slot with SQL functions of the publisher" ;;
    esac
}

# result_of VARIANT FILE: ok, skipped or FAILED, and the time if prove printed it.
result_of() {
    local line
    line=$(grep -E "^(\[[0-9:]*\] )?$2 \.+ *(ok|skipped)" "$logs/$1/prove.out" || true)
    case $line in
        '') echo FAILED ;;
        *skipped*) echo skipped ;;
        *) sed 's/.* ok *\([0-9]\{1,\} ms\)\{0,1\}.*/ok \1/' <<<"$line" ;;
    esac
}

# The first thing that went wrong in a file, from its log.
reason_of() {
    local name=${2#t/}
    { grep -m 1 -oE "not ok [0-9]+ - .*|Failed test .*|[^]]*[Tt]imed out.*|error running SQL: .*|psql error: .*|never so: .*|death by signal.*|[^]]*relay.* at .* line .*" \
        "$logs/$1/regress_log_${name%.pl}" 2>/dev/null || echo "see its log"; } | cut -c1-160
}

# judge FILE: prints its line and adds it to passed, skipped or failed of run_part.
judge() {
    local file=$1 stock relay used='' cannot
    stock=$(result_of stock "$file")
    relay=$(result_of relay "$file")
    used=$(grep "^$file " "$run/work/relays" | cut -d' ' -f2- || true)
    case $relay,$used in ok*,'' | ok*,*subscriptions=0\ *) relay=FAILED used="no subscription went through a relay" ;; esac
    printf '  %-38s stock %-14s relay %-14s %s\n' "$file" "$stock" "$relay" "$used"
    cannot=$(cannot_pass "$file")
    case $relay in
        skipped) skipped+=("$file") ;;
        FAILED)
            failed+=("$file: ${cannot:+cannot pass: $cannot; }$(reason_of relay "$file")")
            [ -n "$cannot" ] || status=1
            ;;
        *)
            passed=$((passed + 1))
            [ -z "$cannot" ] || { failed+=("$file: passed, so cannot_pass in scripts/suites/subscription.sh should not name it"); status=1; }
            ;;
    esac
    case $stock in FAILED) failed+=("$file: on stock: $(reason_of stock "$file")"); status=1 ;; esac
}

run_part() {
    local file passed=0 status=0 failed=() skipped=()
    echo "subscription: on stock"
    run_tests stock -I ../perl -I . || status=$?
    if [ "$variant" = stock ]; then
        echo "test-pg-suites: logs of this run: ${logs#"$clone/"}/stock"
        echo "subscription: stock $([ $status -eq 0 ] && echo passed || echo failed) on PG $release"
        return $status
    fi
    status=0
    as_owner work touch relays
    environment+=(TEMP_CONFIG="$run/lockstep.conf" LOCKSTEP_PROGRAM="$run/lockstep" LOCKSTEP_RELAY_REPORT="$run/work/relays")
    echo "subscription: through relays"
    run_tests relay --exec "perl -I ../perl -I . -I $run/perl -MThroughRelay" || true

    echo "subscription, on PG $release:"
    for file in "${tests[@]}"; do judge "$file"; done
    [ ${#skipped[@]} -eq 0 ] || printf 'SKIP %s\n' "${skipped[@]}"
    [ ${#failed[@]} -eq 0 ] || printf 'failed: %s\n' "${failed[@]}"
    echo "test-pg-suites: logs of this run: ${logs#"$clone/"}"
    echo "subscription: $passed of $((${#tests[@]} - ${#skipped[@]})) files passed"
    return $status
}
