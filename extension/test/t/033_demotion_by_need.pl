# When sessions are demoted with lockstep.replay_priority = on: while replay waits for the CPU
# and lags, and no longer; and who is not demoted even then. lockstep.proc_root shows the
# extension times of this test's making, so this runs the same everywhere.
use strict;
use warnings FATAL => 'all';

use File::Path qw(make_path);
use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $proc = PostgreSQL::Test::Utils::tempdir() . '/proc';
my ($primary, $standby, $on_primary, $admin) =
  primary_and_standby(conf => "lockstep.read_throttle = off\nlockstep.proc_root = '$proc'");

# At once, so that nobody reads half a file.
sub write_file
{
	my ($name, $content) = @_;
	my ($dir) = "$proc/$name" =~ m{^(.*)/};
	make_path($dir);
	append_to_file("$proc/$name.new", $content);
	rename "$proc/$name.new", "$proc/$name" or die "cannot rename: $!";
	return;
}

sub view { return $admin->value("SELECT $_[0] FROM lockstep_stat_priority"); }

# What was written to a session's group. Nothing cuts the file: after "19" and "0" it holds "09".
sub group { return slurp_file("$proc/" . $_[0]->pid . '/autogroup'); }

# By process: the parts of the time that it is on a core and that it waits for one, from now on.
my (%share, %times);
my $last = time;

sub let
{
	my ($pid, $runs, $waits) = @_;
	$share{$pid} = [ $runs, $waits ];
	$times{$pid} //= [ 0, 0 ];
	return;
}

# Ticks in which each core had nothing to do, and the part of the time for which that is so from now on.
my $idle_ticks = 0;
my $idle;

sub advance
{
	my $elapsed = time - $last;
	$last += $elapsed;
	if (defined $idle)
	{
		$idle_ticks += 100 * $elapsed * $idle;
		write_file('stat', join '', "cpu  1 1 1 1 1 1 1 0 0 0\n",
			map { sprintf "cpu%d 0 0 0 %.0f 0 0 0 0 0 0\n", $_, $idle_ticks } 0 .. 127);
	}
	for my $pid (keys %share)
	{
		$times{$pid}[$_] += 1e9 * $elapsed * $share{$pid}[$_] for 0, 1;
		write_file("$pid/schedstat", sprintf("%.0f %.0f 1\n", @{ $times{$pid} }));
	}
	return 1;
}

# Time passes until a query of the view is true.
sub passes_until
{
	my ($condition, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($admin, sub { advance(); view($condition) eq 't' }, $name);
}

sub reader
{
	my $session = LockstepSession->new($standby, user => 'app');
	write_file($session->pid . '/autogroup', '?');
	let($session->pid, 0.3, 0.7);
	$session->send($FOREVER);
	return $session;
}

sub end_query
{
	my ($session) = @_;
	$session->cancel;
	refused($session->result, '57014', qr/user request/, 'the query');
	return;
}

my $startup = $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});
let($startup, 0, 0);
write_file('self/autogroup', "/autogroup-1 nice 0\n");
write_file('sys/kernel/sched_autogroup_enabled', "1\n");
write_file('self/cgroup', '');
write_file(controller_pid($standby) . '/autogroup', '?');
$standby->reload;
passes_until(q{method = 'autogroup'}, 'sessions can be demoted');

# ---- Replay wants nothing ----

my $first = reader();
passes_until('cpu_wait_ms > 500', 'a session with a long statement waits for a core, and the view says how long');
cmp_ok(view('lost_to_others_ms'), '>', 0, 'that it loses to other programs,');
cmp_ok(view('lost_to_replay_ms'), '<', view('lost_to_others_ms'), 'not to replay');
is(view('demotions'), 0, 'nobody was demoted');
is(view('demotes'), 'no', 'and nobody is to be');

# Cores that have nothing to do are lost to nobody, as where sessions are bound to a core of their own.
$idle = 1;
my $waited = view('cpu_wait_ms');
passes_until("cpu_wait_ms > $waited + 500", 'the kernel says which cores are idle');
my $lost = view('lost_to_others_ms');
$waited = view('cpu_wait_ms');
passes_until("cpu_wait_ms > $waited + 1000", 'time passes');
cmp_ok(view('lost_to_others_ms') - $lost, '<', 0.4 * (view('cpu_wait_ms') - $waited),
	'what a session waits while cores are idle is not lost to other programs');
$idle = 0;

# ---- Replay lags and waits for a core ----

$admin->value('SELECT pg_wal_replay_pause()');
$on_primary->value('INSERT INTO t VALUES (0)');
wait_until($admin, 'SELECT lag_ms > 200 FROM lockstep_stat_replay', 'replay lags');
my $elapsed = view('cpu_wait_ms');
passes_until("cpu_wait_ms > $elapsed + 500", 'time passes');
is(view('demotions'), 0, 'replay that does not wait for the CPU lets nobody be demoted');

let($startup, 0.1, 0.8);
passes_until('demoted = 1', 'while it does, the session is demoted');
is(group($first), '19', 'its group has nice 19');
cmp_ok(view('replay_cpu_wait_ms'), '>', 0, 'the view says how long replay waited');
passes_until('demoted_cpu_wait_ms > 0', 'and the demoted session');

let($startup, 0.9, 0.01);
passes_until('demoted = 0', 'replay has what it wants: the session is restored');
is(group($first), '09', 'its group has nice 0');

# ---- Other programs have the CPU, not readers ----

let($startup, 0.05, 0.9);
passes_until('demoted = 1', 'demoted again');
let($first->pid, 0.01, 0.99);
passes_until('demoted = 0', 'a demoted session that has nothing is restored: replay loses to others');
let($first->pid, 0.3, 0.7);
passes_until('demoted = 1', 'it has something again, and is demoted');

# ---- Who ends ----

# SIGINT, which the session had no CPU to receive
my $demotions = view('demotions');
write_file($first->pid . '/status', "Name:\tpostgres\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000002\n");
passes_until('demoted = 0', 'a session is restored that was cancelled and has no CPU to notice');
$elapsed = view('cpu_wait_ms');
passes_until("cpu_wait_ms > $elapsed + 500", 'time passes');
is(view('demotions'), $demotions, 'it stays so');
unlink "$proc/" . $first->pid . '/status';
end_query($first);
$first->send($FOREVER);
passes_until('demoted = 1', 'until its next statement');

write_file($first->pid . '/autogroup', '19');
end_query($first);
$first->close;
passes_until('demoted = 0', 'a session that ends is not counted');
wait_until(undef, sub { advance(); group($first) eq '09' }, 'it is restored for that');

# ---- Nobody is there to restore who ends ----

my $left = reader();
passes_until('demoted = 1', 'one more session is demoted');
my $controller = controller_pid($standby);
kill 'STOP', $controller;
# a failed test must not leave it so: the server could not stop
END { kill 'CONT', $controller if $controller; }
end_query($left);
$left->close;
wait_until($admin, sub { view('demoted') eq '0' }, 'a demoted session that ends while the controller stands still is not counted');
kill 'CONT', $controller;

# ---- SCHED_IDLE, which is the kernel's own ----

# May this server go back from it? As the extension asks: RLIMIT_NICE counts 20 - nice.
my ($limit) = slurp_file('/proc/self/limits') =~ /^Max nice priority\s+(\S+)/m;
my $can_be_undone = $limit eq 'unlimited' || $limit >= 20 - getpriority(0, 0);
unlink "$proc/self/autogroup";
set_and_reload($standby, 'lockstep.priority_irreversible' => 'on');
passes_until(q{method = 'sched_idle'}, 'without groups the policy counts');
my $bare = reader();
passes_until('demoted = 1', 'a session is demoted');
is(policy_of($bare->pid), 5, 'it runs under SCHED_IDLE');
write_file($bare->pid . '/status', "Name:\tpostgres\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000002\n");
passes_until('demoted = 0', 'it is to be restored when it was cancelled and has no CPU to notice');
is(view('stuck') . ' ' . policy_of($bare->pid), $can_be_undone ? '0 0' : '1 5', 'which the kernel allows, or it counts as stuck');
unlink "$proc/" . $bare->pid . '/status';
end_query($bare);
$bare->close;
passes_until('demoted = 0 AND stuck = 0', 'it has ended');
write_file('self/autogroup', "/autogroup-1 nice 0\n");
set_and_reload($standby, 'lockstep.priority_irreversible' => 'off');
passes_until(q{method = 'autogroup'}, 'groups are used again');

# ---- On promotion ----

my $second = reader();
passes_until('demoted = 1', 'another session is demoted');
$admin->value('SELECT pg_wal_replay_resume()');
$standby->promote;
passes_until(q{detail LIKE 'not in recovery%'}, 'promoted');
is(group($second), '09', 'it is restored');
is(view('demotes'), 'no', 'nobody is to be demoted');
end_query($second);

done_testing();
