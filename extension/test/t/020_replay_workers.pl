# Replay by several processes until recovery is consistent: pages are those of stock, and
# two rules (1, and the one in place of 11) that are broken on purpose are noticed.

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
	$node->stop('immediate') if defined $node->{_pid};
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

# The same by size, where hint bits and recovery begun anew may differ.
sub differing_pages
{
	my ($one, $other, @files) = @_;
	return join ' ', grep { -s $one->data_dir . "/$_" != -s $other->data_dir . "/$_" } @files;
}

# Processes of a server whose postmaster is gone.
sub children_of
{
	my ($postmaster, $node) = @_;
	my $name = $node->name;
	for my $path (glob '/proc/[0-9]*/cmdline')
	{
		open my $fh, '<', $path or next;
		my $title = <$fh> // '';
		close $fh;
		return 1 if $title =~ /^postgres: \Q$name\E:? /;
	}
	return 0;
}

sub files_of
{
	my ($node) = @_;
	return split /\n/, $node->safe_psql('postgres', q{
		SELECT pg_relation_filepath(oid) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')});
}

# ---- Crash recovery is stock's, page for page ----

my $primary    = new_primary(conf => "checkpoint_timeout = 1h\nmax_wal_size = 10GB\n"
	. "wal_consistency_checking = 'heap,heap2,btree'\n$WORKERS");
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
	is($ours->safe_psql('postgres', 'SELECT sum(records) > 1000 FROM lockstep_stat_replay_workers'),
		't', 'helpers say so, too');
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
# ---- Rule 1: broken on purpose, recovery fails or pages differ ----

for my $rule (qw(order))
{
	my $broken = copy_of($primary, 'crash', "${WORKERS}lockstep.broken_rule = $rule\n");
	my $found  = 1;
	if ($broken->start(fail_ok => 1))
	{
		$broken->stop;
		$found = differing($stock, $broken, @files) ne '';
	}
	ok($found, "without rule '$rule' recovery fails or pages differ");
}

# ---- Crashes of crash recovery itself ----

# Kills this process once helpers are at work, and lets the server recover again.
for my $victim ('lockstep replay helper', 'startup', 'postmaster', 'nobody, but a fast shutdown')
{
	my $node = copy_of($primary, 'crash', "${WORKERS}restart_after_crash = on\nshared_buffers = 1MB\n");
	my $log  = $node->logfile;
	# not waited for: the server starts meanwhile
	system_or_bail('pg_ctl', '-W', '-D', $node->data_dir, '-l', $log,
		'-o', '--cluster-name=' . $node->name, 'start');
	my $pid;
	wait_until(undef, sub { $pid = eval { worker_pid($node, 'lockstep replay helper') } },
		'a helper is at work');
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	$pid = $postmaster if $victim eq 'postmaster';
	$pid = worker_pid($node, 'startup') if $victim eq 'startup';
	my $signal = $victim =~ /shutdown/ ? 'INT' : 'KILL';
	$pid = $postmaster if $signal eq 'INT';
	kill $signal, $pid if defined $pid;
	# killed, its children end by themselves; a startup process takes the server along
	if ($victim ne 'lockstep replay helper')
	{
		wait_until(undef, sub { !kill(0, $postmaster) }, 'the server has ended');
		wait_until(undef, sub { !children_of($postmaster, $node) }, 'with all its processes');
		unlike(slurp_file($log), qr/terminated by signal|exited with exit code [^01]|PANIC|FATAL/,
			'without a fault')
		  if $signal eq 'INT';
		unlink $node->data_dir . '/postmaster.pid';
		$node->start;
	}
	else
	{
		wait_until(undef, sub { slurp_file($log) =~ /ready to accept connections/ },
			'the server is ready');
		like(slurp_file($log), qr/replay helper.* was terminated by signal 9.*redo starts at.*redo done/s,
			'it began anew');
		$node->_update_pid(1);
	}
	is($node->safe_psql('postgres', $sums), $expected,
		"after $signal of $victim rows are those before the crash");
	$node->stop;
	is(differing_pages($stock, $node, @files), '', 'and all files have their size');
}

# ---- In place of rule 11: a block that is lost ----

my $holes = PostgreSQL::Test::Cluster->new('holes');
$holes->init;
$holes->append_conf('postgresql.conf',
	"autovacuum = off\nfull_page_writes = off\nmax_wal_size = 10GB\n$WORKERS");
$holes->start;
$holes->safe_psql('postgres', q{
	CREATE TABLE z (i int, filler text) WITH (fillfactor = 50);
	INSERT INTO z SELECT g, repeat('x', 500) FROM generate_series(1, 3000) g;
	CREATE TABLE y (i int);
	CHECKPOINT;
	INSERT INTO y SELECT g FROM generate_series(1, 100000) g;
	UPDATE z SET i = -i;
	INSERT INTO y SELECT g FROM generate_series(1, 10000) g});
my $z = $holes->safe_psql('postgres', q{SELECT pg_relation_filepath('z')});
$holes->stop('immediate');
open my $file, '+<', $holes->data_dir . "/$z" or die $!;
binmode $file;
syswrite $file, "\0" x (8192 * 200);
close $file;
crashed($holes, 'zeroed');
my $by_helper = qr/is uninitialized\n[^\n]*CONTEXT: [^\n]*in a replay helper/;
my $node      = recovered($holes, 'zeroed', "${WORKERS}log_min_messages = debug1\n");
my $log       = slurp_file($node->logfile);
like($log, qr/page \d+ of relation \S+ is uninitialized/, 'a page of zeros is noted');
unlike($log, $by_helper, 'by the startup process, which alone keeps a list of such pages');
$node->stop;
$node = recovered($holes, 'zeroed', "${WORKERS}log_min_messages = debug1\nlockstep.broken_rule = new_page\n");
like(slurp_file($node->logfile), $by_helper, 'without the rule a helper notes it, in vain');
$node->stop;

# ---- Rule 12: a helper's error is the startup process's ----

open $file, '+<', $holes->data_dir . "/$z" or die $!;
binmode $file;
syswrite $file, "\xff" x (8192 * 200);
close $file;
PostgreSQL::Test::RecursiveCopy::copypath($holes->data_dir, $holes->backup_dir . '/damaged',
	filterfn => sub { $_[0] ne 'postmaster.pid' && $_[0] ne 'log' });
$node = copy_of($holes, 'damaged', $WORKERS);
ok(!$node->start(fail_ok => 1), 'a page that a helper cannot read ends recovery');
like(slurp_file($node->logfile), qr/FATAL:  invalid page in block \d+ of relation/, 'with its message');
like(slurp_file($node->logfile), qr/shutting down due to startup process failure/,
	'and the server with it, as in stock');

# ---- No free worker, and a fast shutdown in the middle ----

my $none = recovered($primary, 'crash', "${WORKERS}max_worker_processes = 0\n");
is(pipeline($none, 'parallel'), 'no: no background worker is free', 'without a free worker replay goes on');
my $said = () = slurp_file($none->logfile) =~ /replay helpers cannot run: no background worker is free/g;
is($said, 1, 'which is said once');
$none->stop;
is(differing($stock, $none, @files), '', 'and pages are the same');

# ---- Rule 9: a standby runs ahead until its minimum recovery point ----

$primary->append_conf('postgresql.conf', "wal_consistency_checking = ''\n");
$primary->start;
my $standby = new_standby($primary, conf => $WORKERS);
$primary->safe_psql('postgres', 'UPDATE a SET k = k + 1 WHERE id <= 2000');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
$standby->stop('immediate');
my $control = $standby->data_dir;
my ($point) = `pg_controldata $control` =~ /Minimum recovery ending location:\s+(\S+)/;
$standby->start;
like(pipeline($standby, 'parallel'), qr/^no: (it is consistent|the minimum recovery point is reached)/,
	'a standby has no helpers once it is consistent');
is(pipeline($standby, "coalesce(dispatched_until, '0/0') <= '$point'"), 't',
	'and dispatched nothing behind its minimum recovery point');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
is($standby->safe_psql('postgres', $sums), $primary->safe_psql('postgres', $sums), 'rows are the primary\'s');
$standby->stop;
$primary->stop;

done_testing();
