# How the limit of the read throttle moves with replay lag, which lag does not
# move it, that lag keeps nobody out for good, and that a query that waits there
# goes on when replay waits for a lock of it.
#
# Lag is made without any timing. Replay is paused; while it is, the startup
# process is stopped by a signal and the pause is lifted, so that replay is held
# up by nothing that the server knows of, as if it had no CPU.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => q{
lockstep.read_throttle_max = 8
lockstep.read_throttle_min = 2
lockstep.read_throttle_lag = 100
lockstep.read_throttle_give_up = 0
lockstep.read_throttle_long_query = 0
max_standby_streaming_delay = -1
});

sub app { return LockstepSession->new($standby, user => 'app'); }

sub limit_is
{
	my ($limit, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_for_value($admin, 'SELECT concurrency_limit FROM lockstep_stat_throttle', $limit, $name);
}

sub replay { return $admin->value("SELECT $_[0] FROM lockstep_stat_replay"); }

limit_is(8, 'the limit starts at lockstep.read_throttle_max');
catch_up($on_primary, $admin);
wait_until($admin, 'SELECT lag_ms = 0 FROM lockstep_stat_replay', 'an idle primary is no lag');
is($admin->value('SELECT in_recovery AND received_lsn IS NOT NULL AND replayed_lsn <= received_lsn FROM lockstep_stat_replay'),
	't', 'the positions are those of a standby');

# ---- Replay paused on purpose is not for the throttle to mend ----

$admin->value('SELECT pg_wal_replay_pause()');
wait_until($admin, q{SELECT pg_get_wal_replay_pause_state() = 'paused'}, 'replay is paused');
$on_primary->value('INSERT INTO t VALUES (1)');
wait_until($admin, 'SELECT lag_ms > 500 AND lag_bytes > 0 FROM lockstep_stat_replay',
	'lag grows past the limit many times over');
is($admin->value('SELECT concurrency_limit FROM lockstep_stat_throttle'), 8, 'the limit stays');
$admin->value('SELECT pg_wal_replay_resume()');
catch_up($on_primary, $admin);
wait_until($admin, 'SELECT lag_ms = 0 AND lag_bytes = 0 FROM lockstep_stat_replay', 'no lag afterwards');

# ---- Nor is replay that waits for a query to end ----

is(replay('conflicts'), 0, 'no conflict so far');
my $old = LockstepSession->new($standby);
$old->value('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->value('SELECT count(*) FROM t');
# what the snapshot needs is removed; the last one flushes what vacuum has logged
$on_primary->value($_) for 'DELETE FROM t WHERE i <= 500', 'VACUUM t', 'INSERT INTO t VALUES (2)';
wait_until($admin, 'SELECT lag_ms > 500 AND last_conflict_ms > 500 FROM lockstep_stat_replay', 'lag and conflict grow');
is($admin->value('SELECT concurrency_limit FROM lockstep_stat_throttle'), 8, 'the limit stays');
is(replay('last_conflict'), 'IPC:RecoveryConflictSnapshot', 'the conflict is named');
is(replay('conflicts'), 1, 'and counted once');
is(replay('last_conflict_at < now()'), 't', 'it has a time');
$old->value('COMMIT');
catch_up($on_primary, $admin);
wait_until($admin, 'SELECT lag_ms = 0 FROM lockstep_stat_replay', 'no lag afterwards');

$admin->value('SELECT lockstep_stat_replay_reset()');
is_deeply($admin->query('SELECT conflicts, last_conflict, last_conflict_at, last_conflict_ms FROM lockstep_stat_replay')->{rows}[0],
	[ 0, undef, undef, undef ], 'the reset forgets conflicts');

# What an aborted insert has left is in no snapshot, but may only be removed
# while no query has its page pinned.
$on_primary->value($_) for 'CREATE TABLE pinned AS SELECT i FROM generate_series(1, 2) i',
  'BEGIN', 'INSERT INTO pinned VALUES (3)', 'ROLLBACK';
catch_up($on_primary, $admin);
$old->value($_) for 'BEGIN', 'DECLARE c CURSOR FOR SELECT i FROM pinned', 'FETCH c';
$on_primary->value($_) for 'VACUUM pinned', 'INSERT INTO t VALUES (2)';
wait_until($admin, 'SELECT conflicts = 1 FROM lockstep_stat_replay', 'a pinned page is a conflict');
is(replay('last_conflict'), $admin->value('SHOW server_version_num') >= 190000 ? 'Buffer:BufferCleanup' : 'BufferPin:BufferPin',
	'it is named');
$old->value('COMMIT');
catch_up($on_primary, $admin);
wait_until($admin, 'SELECT lag_ms = 0 FROM lockstep_stat_replay', 'no lag afterwards');
$admin->value('SELECT lockstep_stat_replay_reset()');

# ---- Lag ----

my $startup = $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});
$admin->value('SELECT pg_wal_replay_pause()');
wait_until($admin, q{SELECT pg_get_wal_replay_pause_state() = 'paused'}, 'replay is paused');
kill 'STOP', $startup;
# a failed test must not leave it so: the server could not stop
END { kill 'CONT', $startup if $startup; }
wait_until(undef, sub { stat_field($startup, 3) eq 'T' }, 'and stopped');
$admin->value('SELECT pg_wal_replay_resume()');
$on_primary->value('INSERT INTO t VALUES (3)');

limit_is(2, 'the limit falls to lockstep.read_throttle_min');
wait_for_value($admin, 'SELECT phase FROM lockstep_stat_throttle', 'lowest', 'the view says what is done about lag');
cmp_ok(replay('lag_ms'), '>', 100, 'by then the lag is over lockstep.read_throttle_lag');
cmp_ok(replay('lag_bytes'), '>', 0, 'in bytes as well');
is(replay('conflicts'), 0, 'it is no conflict');

# what the limit means: two compute, the third waits
my @inside = (app(), app());
for my $n (0, 1)
{
	$inside[$n]->send($FOREVER);
	gate_holds($admin, $n + 1, 0, ($n + 1) . ' may execute');
}
my $third = app();
$third->send('SELECT 3');
waits_at_gate($admin, $third, 'a third one waits');

# lag is one of the two uses of the gate: without it lag does not count
set_and_reload($standby, 'lockstep.read_throttle_lag' => 0);
limit_is(8, 'with read_throttle_lag = 0 the limit is back, whatever the lag');
is($third->result->{rows}[0][0], 3, 'and who waited goes on');
cmp_ok(replay('lag_ms'), '>', 100, 'while the lag is still there');
set_and_reload($standby, 'lockstep.read_throttle_lag' => 100);
limit_is(2, 'with read_throttle_lag = 100 it falls again');

# Another lowest limit. It shows that the controller has the setting.
set_and_reload($standby, 'lockstep.read_throttle_min' => 3);
limit_is(3, 'a higher floor lifts it');
push @inside, app();
$inside[2]->send($FOREVER);
gate_holds($admin, 3, 0, 'three may execute');
$third->send('SELECT 4');
waits_at_gate($admin, $third, 'a fourth one waits');

# Long queries keep nobody out, however long the lag lasts.
set_and_reload($standby, 'lockstep.read_throttle_long_query' => 50);
is($third->result->{rows}[0][0], 4, 'until those that execute count as long');
ok($_->busy, 'which go on') for @inside;
set_and_reload($standby, 'lockstep.read_throttle_min' => 1);
limit_is(1, 'the floor is one');
is($third->value('SELECT 5'), 5, 'it is left to others beside three long queries');
cmp_ok(replay('lag_ms'), '>', 100, 'while replay lags');
set_and_reload($standby, 'lockstep.read_throttle_long_query' => 0);
comes_to_wait($admin, $third, 'SELECT 6', 'with 0 they keep others out');

# Lag that does not end by holding queries back: here replay is stopped.
set_and_reload($standby, 'lockstep.read_throttle_give_up' => 50);
is($third->result->{rows}[0][0], 6, 'after lockstep.read_throttle_give_up the query goes on');
limit_is(8, 'as the limit is at its maximum');
wait_until($admin, q{SELECT phase = 'given up' FROM lockstep_stat_throttle}, 'the view says why');
cmp_ok(replay('lag_ms'), '>', 100, 'and replay still lags');
wait_until($admin, q{SELECT phase = 'lowest' AND concurrency_limit = 1 FROM lockstep_stat_throttle}, 'later it is tried anew');
set_and_reload($standby, 'lockstep.read_throttle_give_up' => 0);
wait_until($admin,
	q{SELECT phase = 'lowest' AND current_setting('lockstep.read_throttle_give_up') = '0' FROM lockstep_stat_throttle},
	'with 0 the limit stays low');
comes_to_wait($admin, $third, 'SELECT 7', 'and queries wait again');

kill 'CONT', $startup;
catch_up($on_primary, $admin);
is($third->result->{rows}[0][0], 7, 'which go on once replay has caught up');
limit_is(8, 'the limit climbs back');
is($admin->value('SELECT phase FROM lockstep_stat_throttle'), 'calm', 'and the view knows');
wait_until($admin, 'SELECT lag_ms = 0 FROM lockstep_stat_replay', 'the lag is gone');
for (@inside) { $_->cancel; $_->result; $_->close; }

# ---- Replay that waits for a lock ----

# A query that waits at the gate has its table locked. If replay needs that
# table for itself, it would wait for a query that waits for its turn.
set_and_reload($standby,
	'lockstep.read_throttle_min'        => 1,
	'lockstep.read_throttle_max'        => 1,
	'lockstep.read_throttle_long_query' => 0);
limit_is(1, 'one place');
my $holder = app();
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'it is occupied, by a query that does not use the table');
my @waiters = (app(), app());
$_->send('SELECT count(*) FROM t') for @waiters;
waits_at_gate($admin, $_, 'a query of the table waits') for @waiters;
my $elsewhere = app();
$elsewhere->send('SELECT count(*) FROM pg_am');
waits_at_gate($admin, $elsewhere, 'and one of another table');

$on_primary->value('ALTER TABLE t ADD COLUMN added int');
is($_->result->{sqlstate}, undef, 'the query is let in and finishes') for @waiters;
catch_up($on_primary, $admin);
is($admin->value(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'added'}),
	1, 'replay has changed the table');
ok($holder->busy, 'all the while the place was occupied');
is(replay('last_conflict'), 'Lock:relation', 'the conflict is named');
waits_at_gate($admin, $elsewhere, 'and the query of another table still waits');

# A session that holds the lock and does not wait at the gate opens it for nobody.
$holder->cancel;
$holder->result;
$elsewhere->result;
$old->value($_) for 'BEGIN', 'SELECT count(*) FROM t';
gate_holds($admin, 0, 0, 'an idle transaction has the table locked');
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the place is occupied');
$on_primary->value('ALTER TABLE t ADD COLUMN more int');
wait_until($admin, q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'startup'},
	'replay waits for that lock');
comes_to_wait($admin, $elsewhere, 'SELECT count(*) FROM pg_am', 'queries of other tables wait at the gate');
is($old->value('SELECT count(*) FROM pg_am'), $on_primary->value('SELECT count(*) FROM pg_am'), 'those of the transaction do not');
$old->value('COMMIT');
catch_up($on_primary, $admin);
waits_at_gate($admin, $elsewhere, 'nor does the end of the conflict let others in');

comes_to_wait($admin, $waiters[0], 'SELECT count(*) FROM t', 'queries wait again');
$holder->cancel;
$holder->result;
is($waiters[0]->result->{sqlstate}, undef, 'for its turn');
$elsewhere->result;
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# ---- Nothing is streamed ----

wait_for_value($admin, 'SELECT streaming::text FROM lockstep_stat_replay', 'true', 'WAL is streamed');
wait_for_value($admin, 'SELECT lag_bytes + lag_ms FROM lockstep_stat_replay', 0, 'and all of it is replayed');
$admin->value('SELECT pg_wal_replay_pause()');
wait_until($admin, q{SELECT pg_get_wal_replay_pause_state() = 'paused'}, 'replay is paused');
$on_primary->value('INSERT INTO t VALUES (2)');
$primary->stop;
wait_for_value($admin, 'SELECT streaming::text FROM lockstep_stat_replay', 'false', 'nothing is streamed any more');
is($admin->value('SELECT received_lsn > replayed_lsn FROM lockstep_stat_replay'), 't', 'something is left to replay');

# Nobody knows what the primary has written since: whatever is left, replay may lag by more.
sub lag_is_unknown
{
	my ($name) = @_;
	is_deeply($admin->query('SELECT lag_bytes, lag_ms FROM lockstep_stat_replay')->{rows}[0], [ undef, undef ],
		"$name: nobody knows how far replay lags");
	wait_for_value($admin, 'SELECT phase FROM lockstep_stat_throttle', 'unknown', 'and the throttle says so');
	return;
}
lag_is_unknown('while some is left');
$admin->value('SELECT pg_wal_replay_resume()');
wait_until($admin, 'SELECT received_lsn = replayed_lsn FROM lockstep_stat_replay', 'all that came is replayed');
lag_is_unknown('when none is left');

done_testing();
