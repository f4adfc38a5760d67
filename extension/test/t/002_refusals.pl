# A kernel that cannot or will not change priorities: the view says why, the
# log says it once, queries are not harmed. lockstep.proc_root shows the
# extension a /proc of this test's making, so this runs the same everywhere.
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
use Time::HiRes;

my $proc = PostgreSQL::Test::Utils::tempdir() . '/proc';
my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => "lockstep.read_throttle = off\nmax_standby_streaming_delay = -1\nlockstep.replay_priority = always\nlockstep.proc_root = '$proc'");

sub write_file
{
	my ($name, $content) = @_;
	my ($dir) = "$proc/$name" =~ m{^(.*)/};
	make_path($dir);
	unlink "$proc/$name";
	append_to_file("$proc/$name", $content);
	return;
}

sub read_file { return slurp_file("$proc/$_[0]"); }

# A session's group in the made-up /proc. Nothing cuts the file, so after "19"
# and "0" it holds "09".
sub write_group { return write_file($_[0]->pid . '/autogroup', '?'); }

sub view { return $admin->value("SELECT $_[0] FROM lockstep_stat_priority"); }

# What $HEAVY answers.
my $sum = '20000100000';

my $refusal = qr/could not change the priority of process/;

sub times_logged
{
	my ($pattern) = @_;
	my @matches = slurp_file($standby->logfile) =~ /$pattern/g;
	return scalar @matches;
}

# May this server go back from SCHED_IDLE? As the extension asks: RLIMIT_NICE
# counts 20 - nice, and the server has this test's nice value.
my $needed = 20 - getpriority(0, 0);
my ($limit) = slurp_file('/proc/self/limits') =~ /^Max nice priority\s+(\S+)/m;
my $idle_can_be_undone = $limit eq 'unlimited' || $limit >= $needed;
my $without_autogroup  = $idle_can_be_undone ? 'sched_idle' : 'none';
note "RLIMIT_NICE: $limit";

# ---- No autogroup ----

wait_until($admin, q{SELECT detail LIKE '%self/autogroup%' FROM lockstep_stat_priority},
	'a missing /proc/self/autogroup is named');
is(view('method'), $without_autogroup, 'and is no error');
like(view('detail'), $idle_can_be_undone ? qr/SCHED_IDLE for reading/ : qr/RLIMIT_NICE is \d+, needs $needed .*LimitNICE/,
	'the view says what would help');

write_file('self/autogroup',                    "/autogroup-1 nice 0\n");
write_file('sys/kernel/sched_autogroup_enabled', "0\n");
$standby->reload;
wait_until($admin, q{SELECT detail LIKE '%sched_autogroup_enabled is not 1%' FROM lockstep_stat_priority},
	'autogroup that is switched off is named');
is(view('method'), $without_autogroup, 'and not used');

write_file('sys/kernel/sched_autogroup_enabled', "1\n");
write_file('self/cgroup', "4:memory:/\n3:cpu,cpuacct:/system.slice/pg.service\n0::/\n");
$standby->reload;
wait_until($admin, q{SELECT detail LIKE '%cgroup "/system.slice/pg.service"%' FROM lockstep_stat_priority},
	'a cgroup that makes autogroup void is named');
is(view('method'), $without_autogroup, 'autogroup is not used below a cgroup');
# not mentioned: counts as the root group, whatever group this test runs in
write_file('self/cgroup', '');

my $app = LockstepSession->new($standby, user => 'app');
$app->value($HEAVY) for 1 .. 20;
is(times_logged($refusal), 0, 'nothing was tried, so nothing was refused');

# ---- Autogroup in force, but not to be written ----

$standby->reload;
wait_until($admin, q{SELECT detail LIKE '%autogroup cannot be written: No such file%' FROM lockstep_stat_priority},
	'groups that cannot be written are noticed at once');
is(view('method'), 'none', 'and SCHED_IDLE, which would be void, is not used instead');

# ---- Autogroup that refuses some processes ----

write_file(controller_pid($standby) . '/autogroup', '?');
$standby->reload;
wait_until($admin, q{SELECT method = 'autogroup' FROM lockstep_stat_priority},
	'groups that can be written are used');

my $second = LockstepSession->new($standby, user => 'app');
my $refusals = 0;
for my $session ($app, $second)
{
	$refusals++;
	wait_until($admin,
		sub {
			$session->value($HEAVY) eq $sum or die 'wrong answer';
			view('refusals') == $refusals;
		},
		'a refusal is counted, and queries go on');
	is(view('last_refusal'), 'lowering of process ' . $session->pid . ': No such file or directory',
		'and described');
}
is_deeply($admin->query('SELECT demoted, pending, stuck, refusals, demotions FROM lockstep_stat_priority')->{rows}[0],
	[ 0, 0, 0, 2, 0 ], 'the view shows nobody as demoted, nor as still to be');
$app->value($HEAVY) for 1 .. 10;
is(view('refusals'), 2, 'what was refused is not tried over and over');
is(times_logged($refusal), 1, 'the log has it once');

# Allowed after all: a reload makes the controller try again.
write_group($_) for $app, $second;
$standby->reload;
wait_until($admin, 'SELECT demoted = 2 FROM lockstep_stat_priority', 'after a reload it is tried again');
is(read_file($_->pid . '/autogroup'), '19', 'what was written: nice 19') for $app, $second;

# A session that ends is no refusal, though the kernel has given its files to root by then.
SKIP:
{
	skip 'this kernel has no groups, or they are all ours', 5 unless -e '/proc/1/autogroup' && !-w _;
	my $ending = LockstepSession->new($standby, user => 'app');
	my $group = "$proc/" . $ending->pid . '/autogroup';
	write_group($ending);
	unlink $group;
	symlink '/proc/1/autogroup', $group or die "$group: $!";
	wait_until($admin, sub { $ending->value($HEAVY); view('pending') == 1 || view('refusals') > 2 },
		'one whose group belongs to root is due');
	write_group($ending);
	wait_until($admin, 'SELECT demoted <> 2 OR refusals <> 2 FROM lockstep_stat_priority', 'then it is its own');
	is(view('demoted'), 3, 'it was not given up');
	is(view('refusals'), 2, 'nor counted as refused');
	$ending->close;
	wait_until($admin, 'SELECT demoted = 2 FROM lockstep_stat_priority', 'it has ended');
}

# ---- Who is in replay's way is restored first ----

my @more = map { LockstepSession->new($standby, user => 'app') } 1 .. 3;
for my $n (0 .. 2)
{
	write_group($more[$n]);
	wait_until($admin, sub { $more[$n]->value($HEAVY); view('demoted') == 3 + $n }, 'one more is demoted');
}
# the last that was changed, so it would be the last again
my $holder = $more[2];
$holder->value('BEGIN; SELECT count(*) FROM t');
my $controller = controller_pid($standby);
kill 'STOP', $controller;
# a failed test must not leave it so: the server could not stop
END { kill 'CONT', $controller if $controller; }
wait_until(undef, sub { stat_field($controller, 3) eq 'T' }, 'the controller is stopped');
$on_primary->value('ALTER TABLE t ADD COLUMN j int');
wait_until($admin, q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'startup'},
	'replay waits for a lock of that session');
set_and_reload($standby, 'lockstep.replay_priority' => 'off');
kill 'CONT', $controller;
wait_until($admin, 'SELECT demoted = 0 FROM lockstep_stat_priority', 'all five are restored');
my ($first) = sort { $a->[0] <=> $b->[0] }
  map { [ (Time::HiRes::stat("$proc/" . $_->pid . '/autogroup'))[9], $_ ] } $app, $second, @more;
is($first->[1]->pid, $holder->pid, 'the one that replay waits for before all others');
$holder->value('COMMIT');
catch_up($on_primary, $admin);
$_->close for @more;
set_and_reload($standby, 'lockstep.replay_priority' => 'always');
wait_until($admin, 'SELECT demoted = 2 FROM lockstep_stat_priority', 'two are demoted again');

# The way back is refused to one of them.
unlink "$proc/" . $second->pid . '/autogroup';
set_and_reload($standby, 'lockstep.replay_priority' => 'off');
wait_until($admin, 'SELECT demoted = 0 AND stuck = 1 FROM lockstep_stat_priority',
	'who cannot be restored counts as stuck');
is(read_file($app->pid . '/autogroup'), '09', 'the other one got nice 0');
is(view('last_refusal'), 'restoring of process ' . $second->pid . ': No such file or directory',
	'the refusal is described');
is($second->value($HEAVY), $sum, 'a stuck session answers as before');
is(times_logged($refusal), 1, 'still once in the log');

$admin->value('SELECT lockstep_stat_priority_reset()');
is_deeply($admin->query('SELECT refusals, last_refusal, stuck FROM lockstep_stat_priority')->{rows}[0],
	[ 0, undef, 1 ], 'the reset clears what was, not what is');
$second->close;
wait_until($admin, 'SELECT stuck = 0 FROM lockstep_stat_priority', 'a stuck session that ends is not counted');

# ---- SCHED_IDLE, which this time is the kernel's own ----

unlink "$proc/self/autogroup";
set_and_reload($standby,
	'lockstep.replay_priority'       => 'always',
	'lockstep.priority_irreversible' => 'on');
wait_until($admin, q{SELECT method = 'sched_idle' FROM lockstep_stat_priority},
	'lockstep.priority_irreversible allows what may not be undone');
wait_until($admin, sub { $app->value($HEAVY); policy_of($app->pid) eq '5' }, 'a session runs under SCHED_IDLE');
is(policy_of(controller_pid($standby)), 0, 'the controller does not');
my $idle = LockstepSession->new($standby, user => 'app');
wait_until($admin, sub { $idle->value($HEAVY); policy_of($idle->pid) eq '5' }, 'so does a second one');
wait_until($admin, 'SELECT demoted = 2 FROM lockstep_stat_priority', 'the view counts them');

# A parallel worker never ranks below its leader.
my $leader = LockstepSession->new($standby, user => 'app', options => join ' ',
	map { "-c $_" } qw(max_parallel_workers_per_gather=1 parallel_setup_cost=0 min_parallel_table_scan_size=0));
# long enough by far: 10^9 rows; ended by cancelling
$leader->send('SELECT count(*) FROM t a, t b, t c WHERE a.i + b.i + c.i > 0');
wait_until($admin, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'parallel worker'},
	'a parallel worker runs');
my $worker = $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker'});
my $worker_alone = 0;
wait_until($admin, sub {
	my $is = policy_of($worker) eq '5';
	$worker_alone ||= $is && policy_of($leader->pid) ne '5';
	$is;
}, 'the parallel worker comes under SCHED_IDLE');
ok(!$worker_alone, 'after its leader');
$leader->cancel;
refused($leader->result, '57014', qr/user request/, 'the parallel query');
$leader->close;
wait_until($admin, 'SELECT demoted + stuck = 2 FROM lockstep_stat_priority', 'both have ended');

$standby->promote;
wait_until($admin, q{SELECT detail LIKE 'not in recovery%' FROM lockstep_stat_priority}, 'promoted');
if ($idle_can_be_undone)
{
	is(policy_of($_->pid), 0, 'back to the normal policy') for $app, $idle;
	is(view('stuck'), 0, 'nobody is stuck');
}
else
{
	is(view('stuck'), 2, 'the kernel refuses the way back, and the view counts it');
	my $named = join '|', map { join ', ', map { $_->pid } @$_ } [ $app, $idle ], [ $idle, $app ];
	like(slurp_file($standby->logfile),
		qr/2 sessions stay at low priority after promotion.*?refused to restore processes (?:$named)\./s,
		'the log names the sessions');
}
is($app->value($HEAVY), $sum, 'the session goes on');
$app->close;
wait_until($admin, sub { view('stuck') <= 1 }, 'it is no longer counted once it ends');
my $new = LockstepSession->new($standby, user => 'app');
is(policy_of($new->pid), 0, 'a new session is normal');

done_testing();
