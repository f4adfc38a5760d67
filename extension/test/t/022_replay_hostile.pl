# Parallel replay against whatever changes files: pages of every fork of every relation are
# those of stock, byte for byte, in crash recovery and in that of a backup, with few buffers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::Bin/../perl";
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# SEED repeats a run; without it each run of the test has the same.
my $seed = $ENV{SEED} || 1;
my $steps = $ENV{LOCKSTEP_TEST_STEPS} || 40;
my @seeds = ($seed .. $seed + ($ENV{LOCKSTEP_TEST_SEEDS} || 2) - 1);

# ---- What is done to the primary ----

# Each kind of index, and columns that change them.
my $table = q{(id int, k int, t text, a int[], r int4range, p point, filler text)};
my @indexes = ('(id)', '(k)', 'USING hash (t)', 'USING gin (a)', 'USING gist (r)', 'USING spgist (p)',
	'USING brin (k) WITH (pages_per_range = 2, autosummarize = on)', '(t) WHERE k % 2 = 0');

sub indexed
{
	my ($name) = @_;
	return map { "CREATE INDEX ON $name $_" } @indexes;
}

sub rows
{
	my ($name, $count) = @_;
	return "INSERT INTO $name SELECT g, g % 97, md5(g::text), ARRAY[g % 7, g % 31], "
	  . "int4range(g, g + g % 9 + 1), point(g % 50, g % 41), repeat('x', g % 400) FROM generate_series(1, $count) g";
}

# Statements, each of which is a transaction of its own unless it says BEGIN. $at numbers the
# step and names what it makes.
sub step
{
	my ($at) = @_;
	my $some = 200 + int rand 600;
	my $part = 2 + int rand 7;
	my @kinds = (
		sub { rows('m', $some) },
		sub { "UPDATE m SET k = k + 1, t = t || 'y', a = a || $at, r = int4range(id, id + $part), "
			  . "p = point(k, $at) WHERE id % $part = 0" },
		sub { "UPDATE m SET filler = filler || 'z' WHERE id % $part = 1" },
		sub { "DELETE FROM m WHERE id % $part = 0" },
		sub { 'VACUUM m' },
		sub { 'VACUUM busy' },
		sub { 'VACUUM (FREEZE) m' },
		sub { 'DELETE FROM m WHERE ctid > (SELECT max(ctid) FROM m WHERE id < 50)', 'VACUUM m' },
		sub { 'BEGIN', 'TRUNCATE n', rows('n', $some), 'COMMIT', "UPDATE n SET k = -k WHERE id % $part = 0" },
		sub { 'BEGIN', 'TRUNCATE n', rows('n', $some), 'ROLLBACK' },
		sub { "CREATE TABLE x$at $table", indexed("x$at"), rows("x$at", $some), "VACUUM x$at",
			  "UPDATE x$at SET k = 1", (rand() < 0.5 ? "DROP TABLE x$at" : ()) },
		sub { "CREATE UNLOGGED TABLE u$at AS SELECT g FROM generate_series(1, $some) g",
			  "CREATE INDEX ON u$at (g)" },
		sub { 'CREATE INDEX extra ON m (filler)', "UPDATE m SET k = k + 1 WHERE id % $part = 0",
			  'DROP INDEX extra' },
		sub { 'REINDEX TABLE n' },
		sub { 'VACUUM FULL n' },
		sub { 'CLUSTER m USING m_k_idx' },
		sub { "SELECT count(nextval('s')) FROM generate_series(1, $some)" },
		sub { "BEGIN; SELECT count(*) FROM (SELECT FROM m WHERE id % $part = 0 FOR KEY SHARE) l; SAVEPOINT a; "
			  . "UPDATE m SET filler = 'q' WHERE id % $part = 0; ROLLBACK TO a; "
			  . "SELECT count(*) FROM (SELECT FROM m WHERE id % $part = 0 FOR SHARE) l; COMMIT" },
		sub { "DO \$\$ BEGIN FOR n IN 1 .. 80 LOOP BEGIN INSERT INTO m (id, k) VALUES (n, $at); "
			  . "IF n % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; "
			  . "END; END LOOP; END \$\$" },
		sub { 'BEGIN', "UPDATE m SET k = k + 7 WHERE id % $part = 0", "PREPARE TRANSACTION 'p$at'",
			  (rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED 'p$at'" },
		sub { "BEGIN; TRUNCATE c; COPY c FROM PROGRAM 'seq 1 " . $some * 10 . "' WITH (FREEZE); COMMIT",
			  "UPDATE c SET i = -i WHERE i % $part = 0" },
		sub { 'CHECKPOINT' },
		sub { 'ALTER TABLE n SET TABLESPACE ' . (qw(one two pg_default))[ rand 3 ],
			  "UPDATE n SET k = k + 1 WHERE id % $part = 0" },
		sub { "CREATE TABLESPACE t$at LOCATION ''", "CREATE TABLE y$at $table TABLESPACE t$at",
			  rows("y$at", $some), "UPDATE y$at SET k = 2", "DROP TABLE y$at", "DROP TABLESPACE t$at" },
		sub { "CREATE DATABASE d$at STRATEGY " . (qw(wal_log file_copy))[ rand 2 ], "\\c d$at",
			  "CREATE TABLE z $table", indexed('z'), rows('z', $some), 'UPDATE z SET k = k + 1', '\c postgres',
			  (rand() < 0.7 ? "DROP DATABASE d$at" : ()) },
		# the same files, in one folder, another, and the first again
		sub { map { my $space = $_; "ALTER DATABASE moves SET TABLESPACE $space", '\c moves',
			  "UPDATE m SET k = k + 1, filler = 'in $space' WHERE id % $part = 0", '\c postgres' }
			  qw(two pg_default) },
	);
	return $kinds[ rand @kinds ]->();
}

# Two sessions that write at the same time.
sub beside
{
	my ($node) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/beside.sql';
	append_to_file($script, q{\set i random(1, 500)
BEGIN;
INSERT INTO busy SELECT i, i, 'new' FROM generate_series(:i, :i + 5) i;
UPDATE busy SET k = k + 1 WHERE id % 50 = :i % 50;
SAVEPOINT s;
DELETE FROM busy WHERE id = :i;
ROLLBACK TO s;
SELECT FROM busy WHERE id = :i FOR KEY SHARE;
DELETE FROM busy WHERE id % 60 = :i % 60;
COMMIT;
});
	return IPC::Run::start([ 'pgbench', '-n', '-c', 2, '-t', 150, '--random-seed', $seed, '--max-tries', 50,
		'-f', $script, $node->connstr('postgres') ], '>', \my $out, '2>', \my $err);
}

# Runs the statements; what is wrong in one ends the test.
sub run_script
{
	my ($node, @statements) = @_;
	$node->safe_psql('postgres', join '', map { /^\\/ ? "$_\n" : "$_;\n" } @statements);
	return;
}

# ---- Recovery with and without helpers ----

# The primary's data, from before the steps, with all WAL since.
sub kept
{
	my ($seed, $conf) = @_;
	my $primary = PostgreSQL::Test::Cluster->new("primary$seed");
	$primary->init(allows_streaming => 1,
		$seed % 2 ? (extra => ['--data-checksums']) : without_checksums($primary));
	$primary->append_conf('postgresql.conf', "autovacuum = off\nallow_in_place_tablespaces = on\n"
		. "wal_keep_size = 4GB\ncheckpoint_timeout = 1h\nmax_wal_size = 10GB\nmax_prepared_transactions = 5\n"
		. "track_commit_timestamp = on\nshared_buffers = 4MB\n$conf");
	$primary->start;
	$primary->safe_psql('template1', 'CREATE EXTENSION lockstep');
	my @everywhere = ("CREATE TABLE m $table", indexed('m'), rows('m', 1000));
	run_script($primary, "CREATE TABLESPACE one LOCATION ''", "CREATE TABLESPACE two LOCATION ''",
		@everywhere, "CREATE TABLE n $table", indexed('n'), rows('n', 500), 'CREATE TABLE c (i int)',
		'CREATE SEQUENCE s', 'CREATE TABLE busy (id int, k int, t text)', 'CREATE INDEX ON busy (id)',
		'CREATE INDEX ON busy (k)', 'CREATE DATABASE moves', '\c moves', @everywhere, '\c postgres');
	my $session = LockstepSession->new($primary);
	$session->value("SELECT pg_backup_start('kept', true)");
	keep_data($primary, 'kept');
	srand $seed;
	my @script = map { step($_) } 1 .. $steps;
	note "seed $seed: ", join "; ", @script if $ENV{LOCKSTEP_TEST_NOTE};
	my $others = beside($primary);
	run_script($primary, @script);
	$others->finish or die 'pgbench failed';
	my $label = $session->value('SELECT labelfile FROM pg_backup_stop(false)');
	run_script($primary, map { step($_) } $steps + 1 .. $steps + 5);
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	my @but = split /\n/, $primary->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = 'template1'");
	$primary->stop('immediate');
	keep_wal($primary, 'kept');
	return ($primary, $label, @but);
}

# Compared at the end of all WAL. The backup is promoted there.
sub compare_with_stock
{
	my ($seed, $conf) = @_;
	my ($primary, $label, @but) = kept($seed, $conf);
	for my $kind ('crash recovery', 'backup')
	{
		my $stock = recovers($primary, $label, $kind,
			"lockstep.replay_workers = 0\nlockstep.replay_look_ahead = 0\n");
		$stock->stop;
		for my $small ('', "shared_buffers = 1MB\nlockstep.replay_queue_size = 512kB\n")
		{
			my $what = "seed $seed, $kind" . ($small && ', few buffers, helpers read');
			my $ours = recovers($primary, $label, $kind, ($small ? $READING : $WORKERS) . $small);
			cmp_ok(pipeline($ours, 'dispatched', 'template1'), '>', 100, "$what: records run ahead");
			note pipeline($ours, 'dispatched, done_by_helpers, parallel', 'template1');
			unlike(slurp_file($ours->logfile), qr/WARNING:  (?!unexpected directory entry)|PANIC|FATAL/,
				'nothing alarming is said');
			$ours->stop;
			# Free space maps are hints. With checksums replay does not mark their pages as
			# dirty, so whether a change is kept depends on when the page leaves its buffer;
			# and with few buffers maps differ between two recoveries by stock without
			# checksums as well (17.11, seed 2). t/021 looks at these maps.
			my @different = split / /, differing_files($stock, $ours, @but);
			@different = grep { !/_fsm/ } @different if $small || $seed % 2;
			is("@different", '', "$what: all files are stock's");
			$ours->clean_node;
		}
		$stock->clean_node;
	}
	$primary->clean_node;
	return;
}

sub recovers
{
	my ($primary, $label, $kind, $conf) = @_;
	my $node = copy_of($primary, 'kept', "wal_keep_size = 0\n$conf");
	if ($kind eq 'backup')
	{
		append_to_file($node->data_dir . '/backup_label', $label . "\n");
	}
	$node->start;
	$node->poll_query_until('template1', 'SELECT NOT pg_is_in_recovery()') or die 'recovery does not end';
	return $node;
}

for my $at (@seeds)
{
	compare_with_stock($at, ("\n", "wal_consistency_checking = all\n", "full_page_writes = off\n")[ $at % 3 ]);
}

done_testing();
