# Replay priority with lockstep.replay_priority = always: who is demoted and who is not, by
# what the kernel says of real processes, and the way back by reload and by promotion. When
# sessions are demoted with "on" is what t/033_demotion_by_need.pl is about.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# without the throttle, which would make the sessions of this test wait
my ($primary, $standby, $on_primary, $admin) =
  primary_and_standby(conf => "lockstep.read_throttle = off\nlockstep.replay_priority = always");

wait_until($admin, q{SELECT detail NOT LIKE '%has not run%' FROM lockstep_stat_priority},
	'the controller has looked at the kernel');
my $method = $admin->value('SELECT method FROM lockstep_stat_priority');
my $detail = $admin->value('SELECT detail FROM lockstep_stat_priority');
note "method: $method ($detail)";
if ($method eq 'none')
{
	diag "SKIP t/001_priority.pl: no way to demote here: $detail";
	SKIP: { skip "no way to demote here: $detail", 1; }
	done_testing();
	exit;
}

sub low { return is_low($method, $_[0]->pid); }

# Runs heavy statements until the controller has seen enough.
sub run_until_low
{
	my ($session, $name) = @_;
	return wait_until($admin, sub { $session->value($HEAVY); low($session) }, $name);
}

# ---- Sessions with long statements ----

my $app = LockstepSession->new($standby, user => 'app');
ok(!low($app), 'a new session has normal priority');
run_until_low($app, 'a session with many heavy statements is demoted');

my $long = LockstepSession->new($standby, user => 'app');
$long->send($FOREVER);
wait_until($admin, sub { low($long) }, 'a session in one long statement is demoted');
wait_for_value($admin, 'SELECT demoted FROM lockstep_stat_priority', 2, 'the view counts both');
$long->cancel;
refused($long->result, '57014', qr/user request/, 'a demoted query can be cancelled');
$long->close;
wait_until($admin, 'SELECT demoted = 1 FROM lockstep_stat_priority', 'a session that ends is not counted');

# Commands that work without a query of their own.
my $block = LockstepSession->new($standby, user => 'app');
$block->send(q{DO 'BEGIN LOOP END LOOP; END'});
wait_until($admin, sub { low($block) }, 'a session in a long DO block is demoted');
$block->cancel;
refused($block->result, '57014', qr/user request/, 'and can be cancelled');
$block->close;
$on_primary->value('CREATE TABLE many AS SELECT i FROM generate_series(1, 50000) i');
catch_up($on_primary, $admin);
my $copy = LockstepSession->new($standby, user => 'app');
wait_until($admin, sub { $copy->query('COPY many TO STDOUT'); low($copy) }, 'so is one that copies');
$copy->close;
wait_until($admin, 'SELECT demoted = 1 FROM lockstep_stat_priority', 'they are gone');

# ---- Sessions that are left alone ----

# A light session, for as long as it takes to demote a heavy one that came
# later: the controller weighs all sessions in one round.
my $light = LockstepSession->new($standby, user => 'app');
$light->value('SELECT 1') for 1 .. 200;
my $later = LockstepSession->new($standby, user => 'app');
$later->send($FOREVER);
my $light_was_low = 0;
wait_until($admin,
	sub {
		for (1 .. 50) { $light->value('SELECT 1'); $light_was_low ||= low($light); }
		low($later);
	},
	'a heavy session is demoted meanwhile');
ok(!$light_was_low, 'a session with light statements is not');
$later->cancel;
$later->result;
$later->close;

# Exempt sessions, started before a heavy one that is not exempt.
my %exempt = map { $_ => LockstepSession->new($standby, user => $_) } qw(monitor replicator);
$exempt{superuser} = LockstepSession->new($standby);
# the session's user decides, not the role it has set
$exempt{'superuser with SET ROLE'} = LockstepSession->new($standby);
$exempt{'superuser with SET ROLE'}->value('SET ROLE app');
$_->send($FOREVER) for values %exempt;
my $last = LockstepSession->new($standby, user => 'app');
$last->send($FOREVER);
wait_until($admin, sub { low($last) }, 'a session without privileges is demoted among exempt ones');
wait_for_value($admin, 'SELECT pending FROM lockstep_stat_priority', 0, 'no other is to be demoted');
for my $who (sort keys %exempt)
{
	ok(!low($exempt{$who}), "$who is not demoted");
	$exempt{$who}->cancel;
	refused($exempt{$who}->result, '57014', qr/user request/, "$who");
	$exempt{$who}->close;
}

# Replay itself, and what feeds it. They are at work: something was written.
$on_primary->value('INSERT INTO t SELECT generate_series(1, 100)');
catch_up($on_primary, $admin);
my %pid_of = map { $_->[0] => $_->[1] } @{
	$admin->query(q{SELECT backend_type, pid FROM pg_stat_activity
		WHERE backend_type <> 'client backend'})->{rows} };
$pid_of{controller} = controller_pid($standby);
for my $type (sort keys %pid_of)
{
	ok(!is_low($method, $pid_of{$type}), "$type is at normal priority");
}
ok($pid_of{$_}, "$_ is one of them") for 'startup', 'walreceiver', 'controller';
$last->cancel;
$last->result;
$last->close;

# ---- Sessions that replay waits for ----

# What a demoted session does not get done, because other programs want its CPU,
# must not hold back replay.
my $holder = LockstepSession->new($standby, user => 'app');
run_until_low($holder, 'a session is demoted');
$holder->value('BEGIN; SELECT count(*) FROM t');
my $bystander = LockstepSession->new($standby, user => 'app');
run_until_low($bystander, 'and another');
$on_primary->value('ALTER TABLE t ADD COLUMN j int');
wait_until($admin, q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'startup'},
	'replay waits for a lock of the first');
wait_until($admin, sub { !low($holder) }, 'it is back at normal priority');
ok(low($bystander), 'the other is not');
$holder->value('COMMIT');
catch_up($on_primary, $admin);
run_until_low($holder, 'it is demoted again once replay goes on');
$_->close for $holder, $bystander;

# ---- Parallel workers ----

my $leader = LockstepSession->new($standby, user => 'app', options => join ' ',
	map { "-c $_" } qw(max_parallel_workers_per_gather=1 parallel_setup_cost=0 min_parallel_table_scan_size=0));
# long enough by far: 10^9 rows; ended by cancelling
my $cross = 'SELECT count(*) FROM t a, t b, t c WHERE a.i + b.i + c.i > 0';
like(join('', map { $_->[0] } @{ $leader->query("EXPLAIN $cross")->{rows} }),
	qr/Partial Aggregate.*Workers Planned|Workers Planned: 1.*Partial Aggregate/, 'the plan is parallel');
$leader->send($cross);
wait_until($admin, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'parallel worker'},
	'a parallel worker runs');
my $worker = $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker'});
my $worker_alone = 0;
wait_until($admin,
	sub { my $is = is_low($method, $worker); $worker_alone ||= $is && !low($leader); $is },
	'the parallel worker is demoted');
ok(low($leader), 'so is its leader');
ok(!$worker_alone, 'the worker never ranked below it');
$leader->cancel;
refused($leader->result, '57014', qr/user request/, 'the parallel query');
$leader->close;

# ---- Back and forth by reload; the session is idle and need not help ----

ok(low($app), 'the first session is still demoted, though idle');
for my $setting ('lockstep.replay_priority', 'lockstep.enabled')
{
	set_and_reload($standby, $setting => 'off');
	wait_until($admin, sub { !low($app) }, "$setting = off brings it back");
	wait_until($admin, 'SELECT demoted + pending + stuck = 0 FROM lockstep_stat_priority',
		"the view agrees");
	my $on = $setting eq 'lockstep.enabled' ? 'on' : 'always';
	set_and_reload($standby, $setting => $on);
	wait_until($admin, sub { low($app) }, "$setting = $on demotes it again");
}

# While it is off, nothing heavy is demoted either.
set_and_reload($standby, 'lockstep.enabled' => 'off');
wait_until($admin, sub { !low($app) }, 'back to normal');
my $demotions = $admin->value('SELECT demotions FROM lockstep_stat_priority');
$app->value($HEAVY) for 1 .. 20;
is($admin->value('SELECT demotions FROM lockstep_stat_priority'), $demotions,
	'no demotion with lockstep.enabled = off');
set_and_reload($standby, 'lockstep.enabled' => 'on');
run_until_low($app, 'demoted again');
wait_for_value($admin, 'SELECT demoted FROM lockstep_stat_priority', 1, 'and counted');

# ---- Statistics ----

cmp_ok($admin->value('SELECT restores FROM lockstep_stat_priority'), '>=', 3, 'restores were counted');
$admin->value('SELECT lockstep_stat_priority_reset()');
is_deeply(
	$admin->query('SELECT demotions, restores, refusals, last_refusal, demoted FROM lockstep_stat_priority')->{rows}[0],
	[ 0, 0, 0, undef, 1 ],
	'the reset clears counters, not what is');

# ---- Promotion ----

my $busy = LockstepSession->new($standby, user => 'app');
$busy->send($FOREVER);
wait_until($admin, sub { low($busy) }, 'one more session is demoted, in the middle of a query');
$standby->promote;
wait_until($admin, sub { !low($app) }, 'an idle session is back at normal priority after promotion');
wait_until($admin, sub { !low($busy) }, 'so is one in the middle of a query');
wait_until($admin, q{SELECT detail LIKE 'not in recovery%' FROM lockstep_stat_priority},
	'the controller has finished');
is_deeply(
	$admin->query('SELECT method, demoted, pending, stuck FROM lockstep_stat_priority')->{rows}[0],
	[ 'none', 0, 0, 0 ], 'the view says so');
wait_until($admin, sub { !defined controller_pid($standby) }, 'the controller ends');
$busy->cancel;
$busy->result;
$app->value($HEAVY) for 1 .. 20;
ok(!low($app), 'heavy statements on a primary are not demoted');

done_testing();
