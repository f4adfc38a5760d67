# Replay by several processes until recovery is consistent: pages are those of stock, and
# the rules of replay/pipeline.c and replay/execute.c each bite when they are broken.

use strict;
use warnings FATAL => 'all';

use File::Compare;
use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $WORKERS = "lockstep.replay_workers = 2\n";
my $number  = 0;

# ---- Helpers of this test ----

# The primary's data as a kill leaves them.
sub crashed
{
	my ($node, $name) = @_;
	$node->stop('immediate');
	PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $node->backup_dir . "/$name",
		filterfn => sub { $_[0] ne 'postmaster.pid' && $_[0] ne 'log' });
	return;
}

# A server on a copy of these data, not yet started.
sub copy_of
{
	my ($node, $name, $conf) = @_;
	my $copy = PostgreSQL::Test::Cluster->new('copy' . ++$number);
	$copy->init_from_backup($node, $name);
	$copy->append_conf('postgresql.conf', "autovacuum = off\n$conf");
	return $copy;
}

sub recovered
{
	my ($node, $name, $conf) = @_;
	my $copy = copy_of($node, $name, $conf);
	$copy->start;
	return $copy;
}

sub pipeline
{
	my ($node, $column) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM lockstep_stat_replay_pipeline");
}

# Names of main forks that differ between two stopped servers.
sub differing
{
	my ($one, $other, @files) = @_;
	return join ' ', grep { compare($one->data_dir . "/$_", $other->data_dir . "/$_") != 0 } @files;
}

sub files_of
{
	my ($node) = @_;
	return split /\n/, $node->safe_psql('postgres', q{
		SELECT pg_relation_filepath(oid) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')});
}

# ---- Crash recovery is stock's, page for page ----

my $tablespace = PostgreSQL::Test::Utils::tempdir;
my $primary    = new_primary(conf => "checkpoint_timeout = 1h\nmax_wal_size = 10GB\n"
	. "wal_consistency_checking = 'heap,heap2,btree'\n$WORKERS");
$primary->safe_psql('postgres', 'SET allow_in_place_tablespaces = on', );
$primary->safe_psql('postgres', q{
	CREATE EXTENSION amcheck;
	CREATE TABLE a (id int PRIMARY KEY, k int, v text) WITH (fillfactor = 80);
	CREATE INDEX ON a (k);
	CREATE TABLE b (id serial PRIMARY KEY, u text, v text);
	CREATE INDEX ON b (u);
	CREATE TABLE grows (i int, filler text);
	CREATE TABLE shrinks (i int, filler text);
	CREATE TABLE goes (i int PRIMARY KEY, filler text);
	INSERT INTO a SELECT g, g, repeat('x', 100) FROM generate_series(1, 4000) g;
	INSERT INTO goes SELECT g, 'a' FROM generate_series(1, 2000) g;
	INSERT INTO shrinks SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g;
	VACUUM a;
	CHECKPOINT;
});
$primary->safe_psql('postgres', q{
	DO $$ BEGIN
		FOR n IN 1 .. 3000 LOOP
			UPDATE a SET k = k + 1, v = v || 'y' WHERE id = 1 + (n * 37) % 4000;
			INSERT INTO b (u, v) VALUES (md5(n::text), repeat('z', n % 300));
			UPDATE goes SET filler = filler || 'b' WHERE i = 1 + n % 2000;
			IF n % 10 = 0 THEN DELETE FROM a WHERE id = 1 + (n * 11) % 4000; COMMIT; END IF;
		END LOOP;
	END $$;
	INSERT INTO grows SELECT g, repeat('w', 200) FROM generate_series(1, 5000) g;
	UPDATE shrinks SET filler = filler || 'x' WHERE i % 3 = 0;
	DELETE FROM shrinks WHERE i > 100;
});
$primary->safe_psql('postgres', 'VACUUM shrinks');
$primary->safe_psql('postgres', q{
	INSERT INTO shrinks SELECT g, repeat('y', 500) FROM generate_series(1, 500) g;
	VACUUM a, b;
	UPDATE a SET k = -k WHERE id % 2 = 0;
	DROP TABLE goes;
	TRUNCATE grows;
	INSERT INTO grows SELECT g, repeat('v', 200) FROM generate_series(1, 3000) g;
	COPY (SELECT 1) TO STDOUT;
});
my @files = files_of($primary);
my $sums  = q{SELECT (SELECT md5(string_agg(a::text, ',' ORDER BY id)) FROM a),
	(SELECT md5(string_agg(b::text, ',' ORDER BY id)) FROM b),
	(SELECT md5(string_agg(g::text, ',' ORDER BY i)) FROM grows g),
	(SELECT md5(string_agg(s::text, ',' ORDER BY i, filler)) FROM shrinks s)};
my $expected = $primary->safe_psql('postgres', $sums);
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
crashed($primary, 'crash');

my $stock = recovered($primary, 'crash', "lockstep.replay_workers = 0\n");
is(pipeline($stock, 'parallel'), 'no: lockstep.replay_workers is 0', 'one server recovers without helpers');
is(pipeline($stock, 'dispatched'), 0, 'and dispatches nothing');
$stock->stop;

for my $small ('', "shared_buffers = 1MB\n")
{
	my $what = $small ? 'with few buffers' : 'with helpers';
	my $ours = recovered($primary, 'crash', $WORKERS . $small);
	is(pipeline($ours, 'parallel'), 'no: recovery has ended', "the other recovers $what");
	cmp_ok(pipeline($ours, 'dispatched'), '>', 10000, 'most records are dispatched');
	cmp_ok(pipeline($ours, 'done_by_helpers'), '>', 1000, 'and done by helpers when their turn comes');
	cmp_ok(pipeline($ours, 'barriers_ddl + barriers_other'), '>', 1, 'others are barriers');
	is($ours->safe_psql('postgres', 'SELECT sum(records) > 1000 FROM lockstep_stat_replay_workers'), 't', 'helpers say so, too');
	is(worker_pid($ours, 'lockstep replay helper'), undef, 'no helper is left');
	$ours->stop;
	is(differing($stock, $ours, @files), '', "pages are stock's, byte for byte, $what");
	$ours->start;
	is($ours->safe_psql('postgres', $sums), $expected, 'rows are those before the crash');
	is($ours->safe_psql('postgres', q{SELECT bt_index_check(indexrelid, true) FROM pg_index
		JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace}) =~ s/\s//gr,
		'', 'indexes have all rows');
	$ours->stop;
}
diag(slurp_file($stock->logfile) =~ /(redo done.*)/);

done_testing();
