# What does not depend on any one feature: creating and dropping the extension
# on the primary, a server without the library, reload of every setting, and
# sessions that wait while the server restarts, crashes, shuts down, loses its
# controller or is promoted.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_primary(create_extension => 0);
my $standby = new_standby($primary, conf => q{
lockstep.read_throttle_max = 1
lockstep.read_throttle_long_query = 0
lockstep.wait_timeout = 0
restart_after_crash = on
});
# the library is installed there, but not preloaded
my $bare = new_standby($primary, name => 'bare', conf => q{shared_preload_libraries = ''});

my $on_primary = LockstepSession->new($primary);
my $on_bare    = LockstepSession->new($bare);
my $admin      = LockstepSession->new($standby);

# A position that no WAL of this test reaches.
my $never = 'FFFFFFFF/0';

sub app { return LockstepSession->new($standby, user => 'app'); }

# Occupies the one place and has other sessions wait for it.
sub fill_gate
{
	my ($number) = @_;
	my $holder = app();
	$holder->send($FOREVER);
	my @waiters = map { app() } 1 .. $number;
	comes_to_wait($admin, $_, 'SELECT 42', 'a query waits at the gate') for @waiters;
	return ($holder, @waiters);
}

sub end
{
	my (@sessions) = @_;
	for (@sessions) { $_->cancel; $_->result; $_->close; }
	return;
}

sub wait_for_lsn
{
	my ($lsn) = @_;
	my $session = app();
	$session->send("SET lockstep.wait_for_lsn = '$lsn'");
	waits_for_lsn($admin, $session, 'a session waits for an LSN');
	return $session;
}

# Once a server that restarts accepts connections.
sub connect_again
{
	wait_until(undef, sub { eval { $admin = LockstepSession->new($standby); 1 } }, 'the standby is back');
	wait_until(undef, sub { defined controller_pid($standby) }, 'with its controller');
	return;
}

my @views     = map { "lockstep_stat_$_" } qw(replay priority throttle);
my @functions = map { ("$_()", "${_}_reset()") } @views;

# ---- Created on the primary, and not created ----

my ($holder, $waiter) = fill_gate(1);
pass('the library does its work without the extension');
end($holder);
is($waiter->result->{rows}[0][0], 42, 'and lets in who waited');
is($waiter->query(q{SET lockstep.wait_for_lsn = '0/1'})->{sqlstate}, undef, 'SET needs no extension either');
is($admin->query("SELECT * FROM $views[0]")->{sqlstate}, '42P01', 'only the views are missing');

$on_primary->value('CREATE EXTENSION lockstep');
catch_up($on_primary, $admin);
catch_up($on_primary, $on_bare);
for my $view (@views)
{
	is($admin->value("SELECT count(*) FROM $view"), 1, "$view came with replication");
	refused($on_bare->query("SELECT * FROM $view"), '55000', qr/^lockstep is not loaded on this server/, "$view without preload");
}
for my $function (@functions)
{
	is($admin->query("SELECT $function")->{sqlstate}, undef, "$function works on a standby");
	my $reply = $on_bare->query("SELECT $function");
	refused($reply, '55000', qr/^lockstep is not loaded on this server/, "$function without preload");
	like($reply->{hint}, qr/Add lockstep to shared_preload_libraries and restart/, 'the error says what to do');
}
for my $session ($admin, $on_bare)
{
	my $reply = $session->query('SELECT lockstep_replay_token()');
	refused($reply, '55000', qr/^recovery is in progress/, 'a token on a standby');
	like($reply->{hint}, qr/on the primary/, 'the error says where');
}
is($on_bare->value('SELECT count(*) FROM t'), 1000, 'queries work without preload');
$bare->stop;

$on_primary->value('DROP EXTENSION lockstep');
catch_up($on_primary, $admin);
is($admin->query("SELECT * FROM $views[0]")->{sqlstate}, '42P01', 'dropped on the primary, gone on the standby');
is($admin->query("SELECT $functions[0]")->{sqlstate}, '42883', 'functions, too');
($holder, $waiter) = fill_gate(1);
end($holder);
is($waiter->result->{rows}[0][0], 42, 'the library goes on');
$on_primary->value('CREATE EXTENSION lockstep');
catch_up($on_primary, $admin);

# ---- Reload ----

my %changed = (
	'lockstep.enabled'                  => 'off',
	'lockstep.priority_irreversible'    => 'on',
	'lockstep.read_throttle'            => 'log',
	'lockstep.read_throttle_give_up'    => '345ms',
	'lockstep.read_throttle_lag'        => '123ms',
	'lockstep.read_throttle_long_query' => '234ms',
	'lockstep.read_throttle_max'        => '7',
	'lockstep.read_throttle_min'        => '3',
	'lockstep.read_throttle_timeout'    => '456ms',
	'lockstep.read_throttle_turn'       => '17ms',
	'lockstep.replay_hot_standby'       => 'on',
	'lockstep.replay_look_ahead'        => '3',
	'lockstep.replay_min_backlog'       => '2MB',
	'lockstep.replay_read_helpers'      => 'on',
	'lockstep.replay_priority'          => 'off',
	'lockstep.report_token'             => 'on',
	'lockstep.wait_timeout'             => '789ms',
	'lockstep.wal_segments_ahead'       => '2');
is_deeply([ sort keys %changed ],
	[ map { $_->[0] } @{ $admin->query(q{
		SELECT name FROM pg_settings WHERE name LIKE 'lockstep.%' AND context NOT IN ('internal', 'postmaster')
		  AND name <> 'lockstep.wait_for_lsn'
		ORDER BY name COLLATE "C"})->{rows} } ],
	'this test knows every setting that can be reloaded');
my %before = map { $_ => $admin->value("SHOW $_") } keys %changed;
set_and_reload($standby, %changed);
for my $name (sort keys %changed)
{
	isnt($before{$name}, $changed{$name}, "$name is changed to something new");
	wait_for_value($admin, "SHOW $name", $changed{$name}, 'by a reload, for open sessions');
}
is(app()->value('SHOW lockstep.wait_timeout'), '789ms', 'and for new ones');
# nobody would wait for a token in a file
set_and_reload($standby, 'lockstep.wait_for_lsn' => 'A/1', 'lockstep.wait_timeout' => '790ms');
wait_for_value($admin, 'SHOW lockstep.wait_timeout', '790ms', 'what else is in the file counts');
is($_->value('SHOW lockstep.wait_for_lsn'), '', 'the token does not') for $admin, app();
set_and_reload($standby, %before, 'lockstep.wait_for_lsn' => '');
wait_for_value($admin, "SHOW $_", $before{$_}, "$_ is as it was") for sort keys %before;

set_and_reload($standby, 'lockstep.read_throttle' => 'maybe', 'lockstep.read_throttle_min' => 2);
$standby->wait_for_log(qr/invalid value for parameter "lockstep.read_throttle": "maybe"/);
wait_for_value($admin, 'SHOW lockstep.read_throttle_min', 2, 'a good value beside a wrong one is used');
is($admin->value('SHOW lockstep.read_throttle'), 'on', 'the wrong one is not');
set_and_reload($standby, 'lockstep.read_throttle' => 'on', 'lockstep.read_throttle_min' => 1);
wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'one place again');

# ---- Shutdown and restart, with sessions waiting ----

my $lsn;
($holder, my @waiters) = fill_gate(3);
$lsn = wait_for_lsn($never);
ok($standby->stop('fast', fail_ok => 1), 'fast shutdown succeeds');
refused($_->result, '57P01', qr/^terminating connection due to administrator command/, 'a session that waited') for @waiters, $lsn;
command_like([ 'pg_controldata', $standby->data_dir ], qr/cluster state:\s+shut down in recovery/, 'it was a clean one');
$standby->start;
connect_again();
gate_holds($admin, 0, 0, 'the gate is empty after a restart');
($holder, @waiters) = fill_gate(2);
end($holder);
is($_->result->{rows}[0][0], 42, 'and works') for @waiters;

# ---- Crash ----

for my $victim ('a session that waits', 'a session that has a place', 'the controller')
{
	($holder, @waiters) = fill_gate(3);
	$lsn = wait_for_lsn($never);
	my $old_controller = controller_pid($standby);
	my %pid_of = (
		'a session that waits'       => $waiters[0]->pid,
		'a session that has a place' => $holder->pid,
		'the controller'             => $old_controller);
	kill 'KILL', $pid_of{$victim};
	ok($_->result->{lost}, "kill -9 of $victim ends all sessions") for $holder, @waiters, $lsn;
	connect_again();
	isnt(controller_pid($standby), $old_controller, 'a new one');
	gate_holds($admin, 0, 0, 'the gate is empty after a crash');
	$on_primary->value('INSERT INTO t VALUES (1)');
	catch_up($on_primary, $admin);
	($holder, @waiters) = fill_gate(2);
	end($holder);
	is($_->result->{rows}[0][0], 42, 'the gate works again') for @waiters;
	gate_holds($admin, 0, 0, 'and is empty');
}

# ---- Without the controller ----

($holder, @waiters) = fill_gate(3);
kill 'TERM', controller_pid($standby);
is($_->result->{rows}[0][0], 42, 'nobody is held back when there is no controller') for @waiters;
ok($holder->busy, 'although the place is occupied');
end($holder);
# A waiter for an LSN is not forgotten either. The primary's own processes write some WAL at any time.
$lsn = wait_for_lsn($on_primary->value('SELECT pg_current_wal_insert_lsn() + 100000'));
$on_primary->value(q{SELECT pg_logical_emit_message(false, '', repeat('x', 100000))});
$on_primary->value('INSERT INTO t VALUES (2)');
is($lsn->result->{sqlstate}, undef, 'waiting for an LSN does not need it');
wait_until(undef, sub { defined controller_pid($standby) }, 'the postmaster starts it again');

# ---- Promotion ----

# with many that wait
($holder, @waiters) = fill_gate(25);
$lsn = wait_for_lsn($never);
$standby->promote;
is($_->result->{rows}[0][0], 42, 'promotion lets in who waits') for @waiters;
refused($lsn->result, '55000', qr/^recovery ended/, 'and tells who waits for an LSN');
ok($holder->busy, 'queries go on');
is($waiters[0]->value('SELECT 43'), 43, 'nobody waits on a primary');
is($admin->value('SELECT concurrency_limit FROM lockstep_stat_throttle'), undef, 'there is no limit');
is($admin->value('SELECT in_recovery FROM lockstep_stat_replay'), 'f', 'the view knows');
is($admin->value('CREATE TABLE new_primary AS SELECT lockstep_replay_token() AS token'), undef, 'it takes writes');
end($holder);
gate_holds($admin, 0, 0, 'the gate is empty');
ok($standby->stop('fast', fail_ok => 1), 'and shuts down');

done_testing();
