# SET lockstep.wait_for_lsn on a standby: it waits for replay, holds nothing
# that replay could need meanwhile, and every way out of it.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# a timeout that no test runs into, but for those that set their own
my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => q{
lockstep.wait_timeout = 0
max_standby_streaming_delay = 0
});

sub app { return LockstepSession->new($standby, user => 'app'); }

sub token { return $on_primary->value('SELECT lockstep_replay_token()'); }

# A position that no WAL of this test reaches.
my $never = 'FFFFFFFF/0';

sub pause_replay
{
	$admin->value('SELECT pg_wal_replay_pause()');
	return wait_until($admin, q{SELECT pg_get_wal_replay_pause_state() = 'paused'}, 'replay is paused');
}

sub resume_replay { return $admin->value('SELECT pg_wal_replay_resume()'); }

catch_up($on_primary, $admin);
$on_primary->value($_) for 'CREATE TABLE written (i int)', 'GRANT stranger TO app';

# ---- Read your writes ----

# Over and over, without waiting for anything else, and whether or not the
# commit was flushed when it was acknowledged.
my $app = app();
for my $synchronous_commit ('on', 'off')
{
	$on_primary->value("SET synchronous_commit = $synchronous_commit");
	my $missed = 0;
	for my $i (1 .. 25)
	{
		$on_primary->value("INSERT INTO written VALUES ($i)");
		my $token = token();
		my $reply = $app->query("SET lockstep.wait_for_lsn = '$token'");
		$missed++
		  if defined $reply->{sqlstate}
		  || $app->value("SELECT count(*) FROM written WHERE i = $i") ne
		  $on_primary->value("SELECT count(*) FROM written WHERE i = $i");
	}
	is($missed, 0, "25 writes were read back, synchronous_commit = $synchronous_commit");
}
$on_primary->value('RESET synchronous_commit');

# the token of a session that has written nothing covers what others committed
$on_primary->value('INSERT INTO written VALUES (100)');
my $token = LockstepSession->new($primary, user => 'app')->value('SELECT lockstep_replay_token()');
succeeds($app->query("SET lockstep.wait_for_lsn = '$token'"), 'the token of another session');
is($app->value('SELECT count(*) FROM written WHERE i = 100'), 1, 'covers the commit');
is($app->value('SHOW lockstep.wait_for_lsn'), $token, 'the setting has the position');

# what has been replayed needs no wait: not even with replay at a halt
pause_replay();
succeeds($app->query("SET lockstep.wait_for_lsn = '$token'"), 'a position already replayed');
succeeds($app->query("SET lockstep.wait_for_lsn = '0/1'"), 'one long ago');
succeeds($app->query("SET lockstep.wait_for_lsn = '0/0'"), 'zero');

# ---- Waiting ----

$on_primary->value('INSERT INTO written VALUES (101)');
$token = token();
$app->send("SET lockstep.wait_for_lsn = '$token'");
waits_for_lsn($admin, $app, 'a waiter shows its wait event and no backend_xmin');
is($admin->value('SELECT count(*) FROM pg_locks WHERE pid = ' . $app->pid . q{ AND locktype <> 'virtualxid'}),
	0, 'it holds no lock');

# in a transaction, and only for it
my @others = map { app() } 1 .. 2;
$others[0]->value('BEGIN');
$others[0]->send("SET lockstep.wait_for_lsn = '$token'");
$others[1]->value('BEGIN ISOLATION LEVEL REPEATABLE READ');
$others[1]->send("SET LOCAL lockstep.wait_for_lsn = '$token'");
waits_for_lsn($admin, $_, 'so does the first statement of a transaction') for @others;
# together with what it is for
push @others, app();
$others[2]->send("SET lockstep.wait_for_lsn = '$token'; SELECT count(*) FROM written WHERE i = 101");
waits_for_lsn($admin, $others[2], 'so does the first statement of several sent together');
my $pipeline = app();
$pipeline->send_pipeline("SET lockstep.wait_for_lsn = '$token'",
	'SELECT count(*) FROM written WHERE i = 101');
waits_for_lsn($admin, $pipeline, 'or in a pipeline');
# or after what only looks up a name
my $set_role = app();
$set_role->send("SET ROLE stranger; SET lockstep.wait_for_lsn = '$token'");
waits_for_lsn($admin, $set_role, 'so does one after SET ROLE in the same string');

# the kill switch is not for this: a session that asks to wait does wait
set_and_reload($standby, 'lockstep.enabled' => 'off');
push @others, app();
wait_until($others[3], q{SELECT current_setting('lockstep.enabled') = 'off'}, 'switched off');
$others[3]->send("SET lockstep.wait_for_lsn = '$token'");
waits_for_lsn($admin, $others[3], 'so does one with lockstep.enabled = off');
set_and_reload($standby, 'lockstep.enabled' => 'on');

ok($app->busy, 'it still waits');
resume_replay();
succeeds($app->result, 'it returns once replay goes on');
is($app->value('SELECT count(*) FROM written WHERE i = 101'), 1, 'the row is there');
succeeds($_->result, 'and the others') for @others, $set_role;
is($others[$_]->value('SELECT count(*) FROM written WHERE i = 101'), 1, 'which see it in their transaction') for 0, 1;
is($others[2]->result->{rows}[0][0], 1, 'or in the next statement of the same string');
is($pipeline->result->{rows}[0][0], 1, 'or of the same pipeline');
$_->value('COMMIT') for @others[ 0, 1 ];
is($others[1]->value('SHOW lockstep.wait_for_lsn'), '', 'SET LOCAL is gone after the transaction');
is($others[0]->value('SHOW lockstep.wait_for_lsn'), $token, 'SET is not');

# One record more than there is, and then exactly one record. No later record
# comes to wake the waiter, and the position moves after the redo of the last.
my $waits = q{SELECT coalesce(wait_event = 'LockstepWaitForLsn', false) FROM pg_stat_activity WHERE pid = } . $app->pid;
for my $i (1 .. 5)
{
	# The primary's own processes may write that record before the session is seen waiting.
	until ($app->busy)
	{
		catch_up($on_primary, $admin);
		my $next = $on_primary->value('SELECT pg_current_wal_insert_lsn() + 1');
		$app->send("SET lockstep.wait_for_lsn = '$next'");
		wait_until($admin, sub { !$app->busy || $admin->value($waits) eq 't' }, "waiting for the next record, $i");
	}
	continue { $app->result if !$app->busy }
	waits_for_lsn($admin, $app, 'and without a snapshot');
	$on_primary->value("SELECT pg_create_restore_point('record $i')");
	succeeds($app->result, 'the very last record wakes it');
}

# ---- Giving up ----

$app->value(q{SET lockstep.wait_timeout = '50ms'});
my $kept  = $app->value('SHOW lockstep.wait_for_lsn');
my $reply = $app->query("SET lockstep.wait_for_lsn = '$never'");
refused($reply, '57014', qr{^WAL position FFFFFFFF/0 was not replayed within lockstep.wait_timeout \(50 ms\)}, 'timeout');
like($reply->{detail}, qr{^Replay has reached [0-9A-F]+/[0-9A-F]+ of timeline 1\.$},
	'the error says how far replay is');
is($app->value('SHOW lockstep.wait_for_lsn'), $kept, 'the setting keeps its value');
$app->value('SET lockstep.wait_timeout = 0');

$app->send("SET lockstep.wait_for_lsn = '$never'");
waits_for_lsn($admin, $app, 'waiting, to be cancelled');
$app->cancel;
refused($app->result, '57014', qr/^canceling statement due to user request/, 'cancel');
$app->value(q{SET statement_timeout = '50ms'});
refused($app->query("SET lockstep.wait_for_lsn = '$never'"), '57014', qr/due to statement timeout/, 'statement_timeout');
$app->value('RESET statement_timeout');
is($app->value('SELECT 1'), 1, 'the session can be used');

my $terminated = app();
$terminated->send("SET lockstep.wait_for_lsn = '$never'");
waits_for_lsn($admin, $terminated, 'waiting, to be terminated');
$admin->value('SELECT pg_terminate_backend(' . $terminated->pid . ')');
refused($terminated->result, '57P01', qr/administrator command/, 'terminate');

# ---- Refused where it could wait for itself ----

for my $before ('SELECT 1', 'SELECT count(*) FROM written', 'LOCK TABLE written IN ACCESS SHARE MODE',
	'DECLARE c CURSOR FOR SELECT i FROM written')
{
	$app->value('BEGIN');
	$app->value($before);
	refused($app->query("SET lockstep.wait_for_lsn = '$never'"), '25001',
		qr/must come before any query of its transaction/, "after $before");
	$app->value('ROLLBACK');
}
refused($app->query("SELECT 1; SET lockstep.wait_for_lsn = '$never'"), '25001', qr/must come before/, 'in a string, after a query');
refused($app->query("DO 'BEGIN SET lockstep.wait_for_lsn = ''$never''; END'"), '25001', qr/must be a statement of its own/, 'in DO');
refused($app->query("SET lockstep.wait_for_lsn = 'nowhere'"), '22023', qr/invalid value/, 'a malformed position');

# a lock that replay cannot want is no reason
$app->value('SELECT pg_advisory_lock(1)');
succeeds($app->query(q{SET lockstep.wait_for_lsn = '0/1'}), 'with an advisory lock');
$app->value('SELECT pg_advisory_unlock(1)');

# ---- Only assigned, not waited for ----

is($app->value("SELECT set_config('lockstep.wait_for_lsn', '$never', false)"), $never, 'set_config() returns');
# rollback assigns the value from before
$app->value('BEGIN');
$app->value(q{SET LOCAL lockstep.wait_for_lsn = '0/1'});
succeeds($app->query('ROLLBACK'), 'rollback returns');
is($app->value('SHOW lockstep.wait_for_lsn'), $never, 'with the old value');
succeeds($app->query('RESET lockstep.wait_for_lsn'), 'RESET returns');
succeeds($app->query('DISCARD ALL'), 'DISCARD ALL returns');

# ---- Refused, since nobody would wait ----

my $only_set = qr/can only be set by SET/;
refused($on_primary->query("ALTER ROLE stranger SET lockstep.wait_for_lsn = '$never'"), '22023', $only_set, 'a setting of a role');
my (undef, undef, $said) = $standby->psql('postgres', 'SELECT 1',
	connstr => $standby->connstr('postgres') . " options='-c lockstep.wait_for_lsn=$never'");
like($said, qr/FATAL: .*$only_set/, 'an option of a connection');

# ---- A vacuum conflict does not cancel a waiter ----

# Replay waits for the next segment, while a session with a snapshot shows that
# there is a conflict.
catch_up($on_primary, $admin);
my $ahead = $on_primary->value('SELECT pg_current_wal_insert_lsn() + 16 * 1024 * 1024::numeric');
$app->send("SET lockstep.wait_for_lsn = '$ahead'");
waits_for_lsn($admin, $app, 'waiting for the next segment');
my $reader = app();
$reader->value('BEGIN ISOLATION LEVEL REPEATABLE READ');
$reader->value('SELECT count(*) FROM written');
# the last one is for its commit, which flushes what vacuum has logged
$on_primary->value($_) for 'DELETE FROM written', 'VACUUM written', 'INSERT INTO written VALUES (1)';
catch_up($on_primary, $admin);
$reply = $reader->query('SELECT 1');
like($reply->{sqlstate} // 'success', qr/^40001$/, 'a session with a snapshot is cancelled');
like($reply->{message}, qr/conflict with recovery/, 'by the conflict');
ok($app->busy, 'the waiter is not');
waits_for_lsn($admin, $app, 'it waits on');
for (1 .. 2)
{
	$on_primary->value('INSERT INTO written VALUES (102)');
	$on_primary->value('SELECT pg_switch_wal()');
}
$on_primary->value('INSERT INTO written VALUES (102)');
succeeds($app->result, 'until its position has been replayed');
is($app->value('SELECT count(*) > 0 FROM written WHERE i = 102'), 't', 'and sees what was written before it');

# ---- Promoted while waiting ----

# WAL that is here but not replayed is replayed before promotion ends. So the
# session that waits for it must succeed, and the one that waits for more fail.
catch_up($on_primary, $admin);
pause_replay();
$on_primary->value('INSERT INTO written VALUES (103)');
$token = token();
wait_until($admin, q{SELECT pg_last_wal_receive_lsn() >= '} . $token =~ s{^1/}{}r . q{'}, 'received');
my ($reached, $beyond) = (app(), app());
$reached->send("SET lockstep.wait_for_lsn = '$token'");
$beyond->send("SET lockstep.wait_for_lsn = '1/$never'");
$app->send("SET lockstep.wait_for_lsn = '$never'");
waits_for_lsn($admin, $_, 'waiting') for $reached, $beyond, $app;
$primary->stop;
$standby->promote;
succeeds($reached->result, 'what was received before promotion is reached');
is($reached->value('SELECT count(*) FROM written WHERE i = 103'), 1, 'and seen');
$reply = $app->result;
refused($reply, '55000', qr{^recovery ended before WAL position FFFFFFFF/0 was replayed}, 'what was not');
like($reply->{hint}, qr/may be missing here/, 'the error says what that means');
refused($beyond->result, '55000', qr{^WAL position $never of timeline 1 is not in the history of this server},
	'nor what timeline 1 never had');
refused($app->query(q{SET lockstep.wait_for_lsn = '0/1'}), '55000', qr/this server is not in recovery/,
	'from then on');
succeeds($app->query("SET lockstep.wait_for_lsn = '$token'"), 'but a token says that the write is here');
like($app->value('SELECT lockstep_replay_token()'), qr{^2/}, 'it gives tokens itself');

done_testing();
