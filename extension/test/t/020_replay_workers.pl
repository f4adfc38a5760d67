# Replay by several processes in crash recovery, and in that of a backup: pages are those of
# stock, also after kills.
# 021_replay_rules.pl has each rule, 022_replay_hostile.pl whatever changes files.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# ---- Helpers of this test ----

# Files that differ in size, where hint bits and recovery begun anew may differ in content.
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
});
my $session = LockstepSession->new($primary);
$session->value(q{SELECT pg_backup_start('backup', true)});
keep_data($primary, 'backup');
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
my $label = $session->value('SELECT labelfile FROM pg_backup_stop(false)');
crashed($primary, 'crash');
keep_wal($primary, 'backup');
append_to_file($primary->backup_dir . '/backup/backup_label', "$label\n");
append_to_file($primary->backup_dir . '/backup/recovery.signal', '');
append_to_file($primary->backup_dir . '/backup/postgresql.conf', "restore_command = 'false'\n");

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
	cmp_ok(pipeline($ours, 'blocks_asked_for'), '>', 100, 'the kernel was asked for blocks') if $small;
	is($ours->safe_psql('postgres', 'SELECT sum(records) > 1000 FROM lockstep_stat_replay_workers'),
		't', 'helpers say so, too');
	# each record has a header of 24 bytes
	is($ours->safe_psql('postgres', 'SELECT sum(bytes) > 24 * sum(records) FROM lockstep_stat_replay_workers'),
		't', 'and how much WAL that was');
	is(pipeline($ours, 'retired = dispatched + inline_kind + inline_missing + inline_map + inline_large
		+ inline_late + barriers_ddl + barriers_checkpoint + barriers_other AND dispatched >= done_by_helpers'),
		't', 'all were retired, and each is counted as one of these');
	is(pipeline($ours, 'record_distance || $$ $$ || wal_distance'), '0 0', 'nothing is ahead');
	is(pipeline($ours, 'abs(wait_cpu_ms + wait_io_ms + wait_lock_ms - wait_ms) < 0.01'), 't',
		'waits are told by their causes');
	is(worker_pid($ours, 'lockstep replay helper'), undef, 'no helper is left');
	$ours->stop;
	like(slurp_file($ours->logfile), qr{parallel replay begins after [0-9A-F/]+, before consistency, with replay helpers: [12]$}m,
		'the log says when parallel replay began');
	like(slurp_file($ours->logfile), qr{parallel replay ends after [0-9A-F/]+: recovery has ended$}m, 'and when it ended');
	is(differing($stock, $ours, @files), '', "pages are stock's, byte for byte, $what");
	$ours->start;
	is($ours->safe_psql('postgres', $sums), $expected, 'rows are those before the crash');
	is($ours->safe_psql('postgres', q{SELECT bt_index_check(indexrelid, true) FROM pg_index
		JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace}) =~ s/\s//gr,
		'', 'indexes have all rows');
	$ours->stop;
}

for my $off ('recovery_prefetch = off', 'maintenance_io_concurrency = 0')
{
	my $ours = recovered($primary, 'crash', "${WORKERS}shared_buffers = 1MB\n$off\n");
	cmp_ok(pipeline($ours, 'dispatched'), '>', 10000, "records are dispatched with $off");
	is(pipeline($ours, 'blocks_asked_for'), 0, 'and the kernel is not asked for blocks');
	$ours->stop;
}

# ---- Crashes of recovery itself ----

# Kills this process once helpers are at work, and lets the server recover again.
sub survives
{
	my ($data, $victim) = @_;
	my $node = copy_of($primary, $data, "${WORKERS}restart_after_crash = on\nshared_buffers = 1MB\n");
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
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'recovery does not end';
	is($node->safe_psql('postgres', $sums), $expected,
		"$data: after $signal of $victim rows are those before the crash");
	$node->stop;
	is(differing_pages($stock, $node, @files), '', 'and all files have their size');
	return;
}

my @victims = ('lockstep replay helper', 'startup', 'postmaster');
survives('crash', $_) for @victims, 'nobody, but a fast shutdown';
survives('backup', $_) for @victims;

# ---- No free worker, and a fast shutdown in the middle ----

my $none = recovered($primary, 'crash', "${WORKERS}max_worker_processes = 0\n");
is(pipeline($none, 'parallel'), 'no: no background worker is free', 'without a free worker replay goes on');
my $said = () = slurp_file($none->logfile) =~ /WARNING:  lockstep\.replay_workers is 2, but max_worker_processes \(0\) leaves background workers for 0/g;
is($said, 1, 'which is said once');
$none->stop;
is(differing($stock, $none, @files), '', 'and pages are the same');

# ---- Crash recovery that goes on as a standby ----

# Without a backup's label all WAL that is there is replayed as after a crash, then what comes.
$primary->start;
my $switches = copy_of($primary, 'crash', "${WORKERS}shared_buffers = 1MB\n");
$switches->enable_streaming($primary);
$switches->set_standby_mode;
$switches->start;
$primary->safe_psql('postgres', 'UPDATE a SET k = k + 1, v = v || k WHERE id % 3 = 0');
$primary->wait_for_catchup($switches, 'replay', $primary->lsn('flush'));
cmp_ok(pipeline($switches, 'dispatched'), '>', 10000, 'a crashed server that becomes a standby has helpers');
is(worker_pid($switches, 'lockstep replay helper'), undef, 'until it does');
is($switches->safe_psql('postgres', $sums), $primary->safe_psql('postgres', $sums), 'its rows are the primary\'s');
$switches->stop('immediate');
$switches->start;
$primary->wait_for_catchup($switches, 'replay', $primary->lsn('flush'));
is($switches->safe_psql('postgres', $sums), $primary->safe_psql('postgres', $sums), 'also after a kill');
$switches->stop;
$primary->stop;

done_testing();
