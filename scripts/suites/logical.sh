# shellcheck shell=bash
# Sourced by scripts/test-pg-suites. src/test/regress, PostgreSQL's core regression suite, on the source of a
# replica with --ddl. follow_regression.pl, beside this file, runs it, does what the replica's words say where it
# stops, and compares all tables and views afterwards: 90 % must be equal.
#
# A test of the suite whose output differs does not fail this part: what counts is that source and target are
# alike. With other event triggers than its own some tests print other lines; those are named.
# shellcheck disable=SC2154 # the variables of test-pg-suites

setup_for() { echo relay-suite; }

build_what_is_tested() {
    [ "$variant" = stock ] || make --no-print-directory build-extension SETUP=relay-suite
    scripts/cargo build --locked --bin lockstep
}

prepare() {
    environment+=(LOCKSTEP_PROGRAM="$run/lockstep" LOCKSTEP_TESTS="${tests[*]}" LOCKSTEP_REPORT="$run/work/report.json")
    mkdir -p "$run/src/test/logical/t"
    cp scripts/suites/follow_regression.pl "$run/src/test/logical/t"
    cp build/target/debug/lockstep "$run"
    tests=(t/follow_regression.pl)
    [ "$variant" = lockstep ] || return 0
    preload >"$run/lockstep.conf"
    # Later minor releases accept only the output plugins that a setting names.
    if "$bin/postgres" --describe-config | grep '^output_plugin_libraries' >/dev/null; then
        echo "output_plugin_libraries = 'pgoutput, lockstep, test_decoding'" >>"$run/lockstep.conf"
    fi
    environment+=(TEMP_CONFIG="$run/lockstep.conf")
}

# The report for people.
print_report() {
    perl -MJSON::PP -e '
        local $/;
        my $all = decode_json(<STDIN>);
        my $suite = $all->{suite};
        binmode STDOUT, ":utf8";
        printf "the suite: %d tests in %d s, %d with other output than expected%s\n", $suite->{tests}, $suite->{seconds},
            scalar @{ $suite->{different_output} }, join("", map { " $_" } @{ $suite->{different_output} });
        printf "the replica: %d commands, followed %d s after the suite, %s\n", $all->{commands},
            $all->{seconds_after_the_suite}, $all->{followed_to_its_end} eq "1" ? "to its end" : "NOT to its end: "
            . $all->{followed_to_its_end};
        my $stops = $all->{stops};
        printf "%d stops, by cause:\n", scalar @{ $all->{stopped_at} };
        printf "  %4d  %s\n", $stops->{$_}, $_ for sort { $stops->{$b} <=> $stops->{$a} || $a cmp $b } keys %$stops;
        printf "%d tables and views differ:\n", scalar @{ $all->{different} };
        printf "  %s: %s (%s)\n", @$_{qw(name what why)} for @{ $all->{different} };
        printf "logical: %d of %d tables and views equal (%.1f %%)\n", $all->{equal}, $all->{tables_and_views},
            100 * $all->{equal} / ($all->{tables_and_views} || 1);
    ' <"$1"
}

run_part() {
    local status=0
    run_tests "$variant" -I ../perl -I . || status=1
    if cp "$run/work/report.json" "$logs/$variant/" 2>/dev/null; then
        print_report "$logs/$variant/report.json" || status=1
    fi
    echo "test-pg-suites: logs of this run: ${logs#"$clone/"}/$variant"
    echo "logical: $([ $status -eq 0 ] && echo passed || echo failed) on PG $release"
    return $status
}
