# Replay by several processes while sessions read: pages are those of a stock standby, and
# snapshots see no more and no less than they should, meanwhile too. 026_hot_rules.pl breaks
# the rules.

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

# The soak runs more rounds, from several seeds.
my $rounds = $ENV{LOCKSTEP_TEST_ROUNDS} || 1;
my $seed = $ENV{SEED} || 1;

# The primary's data and those of standbys at the same LSN are compared byte for byte, so nobody
# may set hint bits. Sessions that look on use another database.
my $primary = new_primary(conf => "checkpoint_timeout = 1h\nmax_wal_size = 10GB\nmax_connections = 60\n"
	. "max_prepared_transactions = 5\n" . ($seed % 2 ? "wal_consistency_checking = 'heap,heap2,btree'\n" : ''));
$primary->safe_psql('template1', 'CREATE EXTENSION lockstep');
$primary->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, k int, v text) WITH (fillfactor = 80);
	CREATE INDEX ON a (k);
	CREATE TABLE b (id serial PRIMARY KEY, u text, v text);
	CREATE INDEX ON b (u);
	CREATE TABLE refers (i serial, a int REFERENCES a);
	-- always 2000 rows of 40 groups; the sum of balances is 0, old line pointers are used again
	CREATE TABLE account (id int PRIMARY KEY, slot int, balance int, filler text) WITH (fillfactor = 60);
	CREATE INDEX account_slot ON account (slot, id);
	CREATE SEQUENCE ids START 10001;
	INSERT INTO a SELECT g, g, repeat('x', 100) FROM generate_series(1, 3000) g;
	INSERT INTO b (u, v) SELECT md5(g::text), 'y' FROM generate_series(1, 3000) g;
	INSERT INTO account SELECT g, g % 40, 0, repeat('f', 50) FROM generate_series(1, 2000) g});
$primary->safe_psql('postgres', 'VACUUM a, b, account');

my $hot = "${WORKERS}lockstep.replay_hot_standby = on\nlockstep.replay_min_backlog = 0\n"
  . "max_standby_streaming_delay = -1\nautovacuum = off\nrestart_after_crash = on\n";
my $stock = new_standby($primary, name => 'stock', conf => "lockstep.replay_workers = 0\nautovacuum = off\n");
my $ours  = new_standby($primary, name => 'ours', conf => $hot);

my $script = PostgreSQL::Test::Utils::tempdir() . '/mixed.sql';
append_to_file($script, q{\set i random(1, 3000)
\set j random(1, 3000)
\set s random(0, 39)
\set d random(-50, 50)
BEGIN;
UPDATE a SET k = k + :d, v = left(v || 'y', 150) WHERE id = :i;
INSERT INTO b (u, v) VALUES (md5(:i::text || :j), repeat('z', :i % 300));
SAVEPOINT one;
DELETE FROM b WHERE id = :j;
INSERT INTO refers (a) VALUES (:i), (:j);
ROLLBACK TO one;
INSERT INTO refers (a) VALUES (:j);
COMMIT;
BEGIN;
SELECT FROM account WHERE slot = :s ORDER BY id FOR UPDATE;
UPDATE account SET balance = balance + :d WHERE id = (SELECT min(id) FROM account WHERE slot = :s);
SAVEPOINT two;
UPDATE account SET balance = balance - :d WHERE id = (SELECT max(id) FROM account WHERE slot = :s);
RELEASE two;
WITH gone AS (DELETE FROM account
	WHERE id = (SELECT min(id) FROM account WHERE slot = :s AND id > 500) RETURNING *)
INSERT INTO account SELECT nextval('ids'), slot, balance, filler FROM gone;
COMMIT;
});

my $vacuum = LockstepSession->new($primary);

# Writes, with vacuum beside them.
sub write_some
{
	my ($count) = @_;
	my $out;
	my $bench = IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-t', $count, '--random-seed', $seed,
		'--max-tries', 100, '-f', $script, $primary->connstr('postgres') ], '>', \$out, '2>', \my $err);
	while ($bench->pumpable)
	{
		$vacuum->query("VACUUM (TRUNCATE off) $_") for qw(account a b);
		$vacuum->query('CHECKPOINT') if rand() < 0.2;
		$bench->pump_nb;
		last if !kill 0, $bench->{KIDS}[0]{PID};
		select undef, undef, undef, 0.05;
	}
	$bench->finish;
	like($out, qr/number of transactions actually processed: (\d+)\/\1/, 'all transactions were committed');
	return;
}

sub paused
{
	my ($node, $write) = @_;
	$node->safe_psql('template1', 'SELECT pg_wal_replay_pause()');
	$write->();
	$primary->wait_for_catchup($node, 'flush', $primary->lsn('flush'));
	$node->safe_psql('template1', 'SELECT pg_wal_replay_resume()');
	return;
}

# ---- Pages are stock's ----

for my $round (1 .. $rounds)
{
	paused($ours, sub { write_some(150) });
	write_some(50);
}
my $end = $primary->lsn('flush');
$primary->wait_for_catchup($_, 'replay', $end) for $stock, $ours;
cmp_ok(pipeline($ours, 'dispatched', 'template1'), '>', 5000, 'records were dispatched in hot standby');
cmp_ok(pipeline($ours, 'done_by_helpers', 'template1'), '>', 500, 'and done by helpers');
is($ours->safe_psql('template1', 'SELECT count(*) FROM lockstep_stat_replay_workers WHERE records > 0'), 2,
	'by two of them, whatever cores there are');
unlike(slurp_file($ours->logfile), qr/past current point|PANIC|FATAL|WARNING/, 'nobody was warned');
is($ours->safe_psql('template1', q{SELECT min_recovery_end_lsn >= dispatched_until
	FROM pg_control_recovery(), lockstep_stat_replay_pipeline}), 't',
	'the minimum recovery point is not before any of them');
is(pipeline($ours, 'retired = dispatched + inline_kind + inline_missing + inline_map + inline_large
	+ inline_late + barriers_ddl + barriers_checkpoint + barriers_other AND dispatched >= done_by_helpers', 'template1'),
	't', 'all were retired, and each is counted as one of these');
is(pipeline($ours, q{record_distance || ' ' || wal_distance}, 'template1'), '0 0', 'nothing is ahead');
wait_until(undef, sub { $ours->safe_psql('template1', q{
	SELECT bool_and(wait_event = 'LockstepReplayQueue' AND wait_event_type IS NOT NULL AND queue_depth = 0)
	FROM lockstep_stat_replay_workers WHERE pid IS NOT NULL}) eq 't' }, 'helpers wait for records, and say so');
is($ours->safe_psql('template1', q{SELECT sum(bytes) > 24 * sum(records) FROM lockstep_stat_replay_workers}),
	't', 'how much WAL they have executed is told');
$ours->safe_psql('template1', 'SELECT lockstep_stat_replay_reset()');
cmp_ok(pipeline($ours, 'retired', 'template1'), '<', 1000, 'a reset begins to count anew');
$_->stop for $stock, $ours;
my @but = split /\n/, $primary->safe_psql('postgres', q{
	SELECT oid FROM pg_database WHERE datname = 'template1'});
my @different = grep { !/_fsm/ } split / /, differing_files($stock, $ours, @but);
is("@different", '', 'all files are those of the stock standby');
$_->start for $stock, $ours;

# ---- Snapshots, while records run ahead ----

my %plans = (
	'sequential' => 'SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off',
	'index'      => 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off',
	'index-only' => 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexscan = off',
	'bitmap'     => 'SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off');
my $rows = q{SELECT count(*) || ' rows, ' || sum(balance) || ', ' || count(DISTINCT slot) || ', '
	|| md5(string_agg(id || ' ' || slot || ' ' || balance, ',' ORDER BY id))
	FROM account WHERE slot BETWEEN 0 AND 39};
my $keys = q{SELECT count(*) || ' ' || md5(string_agg(slot || ' ' || id, ',' ORDER BY slot, id))
	FROM account WHERE slot BETWEEN 0 AND 39};
my $other = q{SELECT count(*) FROM a WHERE k BETWEEN -100000000 AND 100000000};
my $checks = 0;
my @faults;

sub fault { push @faults, join ': ', @_; return; }

# One look at everything, with one snapshot.
sub look
{
	my ($session) = @_;
	my %seen;
	$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	for my $plan (sort keys %plans)
	{
		$session->query($_) for split /; /, $plans{$plan};
		for my $sql ($keys, $other, $plan eq 'index-only' ? () : $rows)
		{
			my $reply = $session->query($sql);
			if (defined $reply->{sqlstate})
			{
				fault($plan, $reply->{sqlstate}, $reply->{message});
				$session->query('ROLLBACK');
				$session->query('RESET ALL');
				return;
			}
			my $value = $reply->{rows}[0][0];
			$checks++;
			fault($plan, $value) if $sql eq $rows && $value !~ /^2000 rows, 0, 40,/;
			fault($plan, $value) if $sql eq $keys && $value !~ /^2000 /;
			fault($plan, $value) if $sql eq $other && $value ne '3000';
			fault($plan, $value, "not $seen{$sql}") if defined $seen{$sql} && $seen{$sql} ne $value;
			$seen{$sql} = $value;
		}
		$session->query('RESET ALL');
	}
	$session->query('COMMIT');
	return $seen{$rows};
}

# A snapshot that is held all the time sees the same all the time. Replay waits for it where
# something that it sees is removed, and records run ahead meanwhile.
sub look_while_replaying
{
	my ($node) = @_;
	my $session = LockstepSession->new($node);
	my $old = LockstepSession->new($node);
	$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	my $sees = $old->value($rows);
	my $until = $primary->lsn('flush');
	$node->safe_psql('template1', 'SELECT pg_wal_replay_resume()');
	for (1 .. 10)
	{
		look($session);
		for my $plan (sort keys %plans)
		{
			$old->query("SAVEPOINT p");
			$old->query($_) for split /; /, $plans{$plan};
			my $now = $old->value($rows);
			fault('old snapshot', $plan, $now) if $now ne $sees;
			$checks++;
			$old->query('ROLLBACK TO p');
		}
	}
	$old->close;
	look($session) while $session->value("SELECT pg_last_wal_replay_lsn() < '$until'") eq 't';
	look($session);
	$session->close;
	return;
}

for my $round (1 .. $rounds)
{
	$ours->safe_psql('template1', 'SELECT pg_wal_replay_pause()');
	write_some(100);
	$primary->wait_for_catchup($ours, 'flush', $primary->lsn('flush'));
	look_while_replaying($ours);
}
is(join("\n", @faults), '', "$checks checks in live snapshots found nothing");

# ---- Kill, restart, compare ----

my $sums = q{SELECT (SELECT md5(string_agg(a::text, ',' ORDER BY id)) FROM a),
	(SELECT md5(string_agg(b::text, ',' ORDER BY id)) FROM b),
	(SELECT md5(string_agg(r::text, ',' ORDER BY i)) FROM refers r),
	(SELECT md5(string_agg(c::text, ',' ORDER BY id)) FROM account c)};

# An old snapshot keeps replay at a place while records after it run ahead; then all is killed.
for my $victim ('postmaster', 'lockstep replay helper')
{
	my $old = LockstepSession->new($ours);
	$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$old->value($rows);
	my $before = pipeline($ours, 'dispatched', 'template1');
	paused($ours, sub { write_some(100) });
	wait_until(undef, sub { $ours->safe_psql('template1', qq{SELECT wait_event = 'RecoveryConflictSnapshot'
		FROM pg_stat_activity, lockstep_stat_replay_pipeline
		WHERE backend_type = 'startup' AND dispatched > $before}) eq 't' }, 'replay waits for an old snapshot');
	$ours->safe_psql('template1', 'CHECKPOINT');
	if ($victim eq 'postmaster')
	{
		$old->vanish;
		$ours->stop('immediate');
		$ours->start;
	}
	else
	{
		kill 'KILL', worker_pid($ours, $victim);
		wait_until(undef, sub { slurp_file($ours->logfile) =~ /replay helper.* was terminated by signal 9/ },
			'a killed helper is noticed');
		$ours->poll_query_until('template1', 'SELECT true') or die;
		$ours->_update_pid(1);
	}
	$primary->wait_for_catchup($ours, 'replay', $primary->lsn('flush'));
	is($ours->safe_psql('postgres', $sums), $primary->safe_psql('postgres', $sums),
		"after a kill of the $victim rows are the primary's");
}

# ---- WAL that is not streamed ----

# In pg_wal, or restored from an archive. Segments that are complete are replayed ahead.
$primary->backup('early');
write_some(100);
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->safe_psql('postgres', 'CREATE TABLE ends_it ()');
my $expected = $primary->safe_psql('postgres', $sums);
my $until = $primary->lsn('flush');
my $archive = PostgreSQL::Test::Utils::tempdir();
system "cp " . $primary->data_dir . "/pg_wal/0* $archive";
for my $kind ('pg_wal', 'an archive')
{
	keep_wal($primary, 'early') if $kind eq 'pg_wal';
	unlink glob $primary->backup_dir . '/early/pg_wal/0*' if $kind ne 'pg_wal';
	my $node = copy_of($primary, 'early', "${WORKERS}lockstep.replay_hot_standby = on\n"
		. ($kind eq 'pg_wal' ? '' : "restore_command = 'cp $archive/%f %p'\n"));
	$node->set_standby_mode;
	$node->start;
	$node->poll_query_until('postgres', "SELECT pg_last_wal_replay_lsn() >= '$until'") or die 'it stops';
	is($node->safe_psql('postgres', $sums), $expected, "from $kind rows are the primary's");
	cmp_ok(pipeline($node, 'dispatched', 'template1'), '>', 5000, 'and records ran ahead');
	$node->stop;
	$node->clean_node;
}

# ---- A backup of the standby, a standby of it, and another timeline ----

$ours->safe_psql('template1', 'SELECT pg_wal_replay_pause()');
write_some(100);
$primary->wait_for_catchup($ours, 'flush', $primary->lsn('flush'));
$ours->safe_psql('template1', 'SELECT pg_wal_replay_resume()');
my $follower = new_standby($ours, name => 'follower', conf => $hot);
$primary->wait_for_catchup($ours, 'replay', $primary->lsn('flush'));
$ours->wait_for_catchup($follower, 'replay', $ours->lsn('replay'));
is($follower->safe_psql('postgres', $sums), $primary->safe_psql('postgres', $sums),
	'a standby made of a backup of the standby has its rows');

# ---- Fast shutdown and promotion, under load ----

paused($ours, sub { write_some(100) });
$ours->stop('fast');
unlike(slurp_file($ours->logfile), qr/PANIC/, 'a fast shutdown in the middle is clean');
$ours->start;
$primary->wait_for_catchup($ours, 'replay', $primary->lsn('flush'));
paused($ours, sub { write_some(150) });
$expected = $primary->safe_psql('postgres', $sums);
$primary->stop('immediate');
$ours->promote;
is($ours->safe_psql('postgres', $sums), $expected, 'a promoted standby has all that it had received');
is(pipeline($ours, 'parallel', 'template1'), 'no: recovery has ended', 'and says that replay is over');
wait_until(undef, sub { !defined worker_pid($ours, 'lockstep replay helper') }, 'no helper is left');
$ours->safe_psql('postgres', $_)
  for 'CREATE EXTENSION amcheck', 'UPDATE a SET k = k + 1', 'DELETE FROM b WHERE id % 3 = 0';
$ours->wait_for_catchup($follower, 'replay', $ours->lsn('flush'));
is($follower->safe_psql('postgres', $sums), $ours->safe_psql('postgres', $sums),
	'its standby follows to the new timeline');
is($ours->safe_psql('postgres', q{SELECT bt_index_check(indexrelid, true) FROM pg_index
	JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace}) =~ s/\s//gr,
	'', 'indexes have all rows');
is($ours->safe_psql('postgres', q{SELECT * FROM pg_class c, verify_heapam(c.oid)
	WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'}), '', 'and tables no fault');
$_->stop for $stock, $follower, $ours;

done_testing();
