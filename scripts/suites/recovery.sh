# shellcheck shell=bash
# Sourced by scripts/test-pg-suites. src/test/recovery, with Lockstep loaded in every
# server. Its t/027_stream_regress.pl runs the whole core regression suite on a primary
# with a streaming standby and compares dumps of both.
#
# So that no test passes for the wrong reason, each server that starts is checked for
# Lockstep among the libraries that it has mapped: a server without it (with --stock:
# with it) fails the run, and so does --parallel if no server had a replay helper. No test
# file is left out, since none fails because of Lockstep or of the packaging.
# shellcheck disable=SC2154 # the variables of test-pg-suites

setup_for() { echo suites; }

build_what_is_tested() { [ "$variant" = stock ] || make --no-print-directory build-extension SETUP=suites; }

prepare() {
    : >"$run/extra.conf"
    if [ "$variant" = lockstep ]; then
        preload >"$run/extra.conf"
        [ -z "$parallel" ] || printf '%s\n' 'lockstep.replay_workers = 2' 'lockstep.replay_hot_standby = on' \
            'lockstep.replay_min_backlog = 0' >>"$run/extra.conf"
        # A test that preloads a library of its own adds it to ours.
        sed -i "s/shared_preload_libraries = '/&lockstep, /" "$run"/src/test/recovery/t/*.pl
    fi

    # A pg_ctl for the tests, which start all servers with it. It runs the real pg_ctl, then
    # records whether the server has mapped Lockstep.
    mkdir "$run/programs"
    cat >"$run/programs/pg_ctl" <<SCRIPT
#!/bin/bash
case " \$* " in
    *" start "* | *" restart "*) ;;
    *" stop "*)
        while read -r file; do
            pid=\$(sed -n 's/^PPid:[[:space:]]*//p' "\${file%cmdline}status" 2>/dev/null)
            readlink "/proc/\$pid/cwd" 2>/dev/null | sed 's/^/helped /' >>$run/work/starts
        done < <(grep -ls 'lockstep replay helper' /proc/[0-9]*/cmdline 2>/dev/null)
        exec $bin/pg_ctl "\$@"
        ;;
    *) exec $bin/pg_ctl "\$@" ;;
esac
status=0
$bin/pg_ctl "\$@" || status=\$?
[ \$status -eq 0 ] || exit \$status
while [ \$# -gt 1 ]; do
    case \$1 in -D | --pgdata) break ;; *) shift ;; esac
done
pid=\$(head -n 1 "\$2/postmaster.pid" 2>/dev/null)
case \$(cat "/proc/\$pid/maps" 2>/dev/null) in
    */lockstep.so*) found=with ;;
    *$bin/postgres*) found=without ;;
    *) found=gone ;; # a test may let a server start that ends at once
esac
echo "\$found \$2" >>$run/work/starts
SCRIPT
    chmod +x "$run/programs/pg_ctl"
    environment+=(PATH="$run/programs:$bin:/usr/bin:/bin:/usr/sbin:/sbin" TEMP_CONFIG="$run/extra.conf")
}

count_of() { grep -c "^$1 " "$run/work/starts" || true; }

run_part() {
    local status=0 right=with wrong=without result=passed what="preloaded lockstep${parallel:+, parallel replay}" files count skipped helped
    run_tests "$variant" -I ../perl -I . || status=1
    [ "$variant" = lockstep ] || right=without wrong=with what=stock

    # The core suite's own closing line, which the test does not print.
    sed -n 's/^[ #]*\(\(All\|[0-9]* of\) [0-9]* tests .*[^ ]\) *$/core regression suite: \1/p' \
        "$logs/$variant"/regress_log_027_stream_regress 2>/dev/null || true

    touch "$run/work/starts"
    echo "servers: $(count_of with) started with Lockstep, $(count_of without) without, $(count_of gone) ended before they could be asked"
    if grep "^$wrong " "$run/work/starts" | sort -u | sed 's/^/  not expected: /'; then status=1; fi
    [ "$(count_of $right)" -gt 0 ] || status=1
    if [ -n "$parallel" ]; then
        helped=$(sed -n "s|^helped $run/||p" "$run/work/starts" | sort -u | wc -l)
        echo "replay helpers: seen in $helped servers before a stop"
        [ "$helped" -gt 0 ] || status=1
    fi

    read -r files count < <(sed -n 's/^Files=\([0-9]*\), Tests=\([0-9]*\),.*/\1 \2/p' "$logs/$variant/prove.out") || status=1
    # Files that skip themselves: no injection points in the build, or unstable upstream.
    sed -n 's/^\(\[[0-9:]*\] \)\{0,1\}\(t\/[^ ]*\) .*skipped: /SKIP \2: /p' "$logs/$variant/prove.out"
    skipped=$(grep -c 'skipped: ' "$logs/$variant/prove.out" || true)
    if [ $status -ne 0 ] || ! grep -q '^Result: PASS' "$logs/$variant/prove.out"; then result=failed; fi
    echo "test-pg-suites: logs of this run: ${logs#"$clone/"}/$variant"
    echo "pg suites: $((${files:-0} - skipped)) files, ${count:-0} tests, $result, $what on PG $release"
    [ $result = passed ]
}
