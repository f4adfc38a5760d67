# Time slices: the processes between a commit and its visibility have the shortest
# one, as the kernel itself says of them, and the way back by reload and promotion.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# From Perl's own list of this system's calls.
my %call = map { my $name = $_; $name => scalar eval { require 'syscall.ph'; no strict 'refs'; &{"main::SYS_$name"}() } }
  qw(sched_getattr sched_setattr);

use constant SHORT_NS => 100_000;

# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
use constant ATTRIBUTES => 'L L Q l L Q Q Q';

sub attributes
{
	my ($pid) = @_;
	my $buffer = pack ATTRIBUTES, (0) x 8;
	return if syscall($call{sched_getattr}, $pid + 0, $buffer, length $buffer, 0) != 0;
	return unpack ATTRIBUTES, $buffer;
}

# The slice of a process in ns; 'unknown' for one that is gone.
sub slice_of
{
	return 'unknown' unless defined $_[0];
	my @attributes = attributes($_[0]);
	return @attributes ? $attributes[5] : 'unknown';
}

# Does this kernel give a process the slice that it asks for? A child asks.
sub kernel_has_slices
{
	my $child = fork // die "cannot fork: $!";
	if ($child == 0)
	{
		my @attributes = attributes($$);
		$attributes[5] = SHORT_NS;
		my $buffer = pack ATTRIBUTES, @attributes;
		my $refused = syscall($call{sched_setattr}, $$ + 0, $buffer, 0);
		require POSIX;
		POSIX::_exit($refused == 0 && slice_of($$) eq SHORT_NS ? 0 : 1);
	}
	waitpid $child, 0;
	return $? == 0;
}

my ($primary, $standby, $on_primary, $admin) = primary_and_standby();
wait_until($admin, q{SELECT slice_detail NOT LIKE '%has not run%' FROM lockstep_stat_priority},
	'the controller has asked the kernel');
my $detail = $admin->value('SELECT slice_detail FROM lockstep_stat_priority');
if (grep { !defined } values %call)
{
	diag 'SKIP t/019_slices.pl: this Perl does not know the system calls that read a slice';
	done_testing();
	exit;
}
if (!kernel_has_slices())
{
	diag "SKIP t/019_slices.pl: this kernel gives processes no slice of their own: $detail";
	like($detail, qr/the kernel (gives no process|refuses)/, 'the view says so');
	is($admin->value('SELECT short_slices FROM lockstep_stat_priority'), 0, 'and counts none');
	catch_up($on_primary, $admin);
	done_testing();
	exit;
}
is($detail, '0.1 ms for startup process, walreceiver, replay helpers, walsenders and controller', 'the kernel has slices');

sub pid_of_type
{
	my ($type) = @_;
	return $admin->value("SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
}

sub is_short { my $pid = shift; return defined $pid && slice_of($pid) eq SHORT_NS; }

# The processes of the standby that are to have it, now.
sub chosen
{
	return (startup => pid_of_type('startup'), walreceiver => pid_of_type('walreceiver'),
		walsender => pid_of_type('walsender'), controller => controller_pid($standby));
}

my $second = new_standby($standby, name => 'second');
my $on_second = LockstepSession->new($second);

# All of them come to have a short slice, or the one of a process that is left alone.
sub all_are
{
	my ($short, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $other = pid_of_type('checkpointer');
	for my $who ('startup', 'walreceiver', 'walsender', 'controller')
	{
		wait_until(undef,
			sub { my %pid = chosen(); my $pid = $pid{$who}; $short ? is_short($pid) : slice_of($pid) eq slice_of($other) },
			"$name: $who");
	}
	wait_for_value($admin, 'SELECT short_slices FROM lockstep_stat_priority', $short ? 4 : 0, "$name: the view agrees");
	return;
}

all_are(1, 'a short slice');
my $app = LockstepSession->new($standby, user => 'app');
$app->value($HEAVY);
ok(!is_short($_->pid), 'sessions have none') for $app, $admin;
ok(!is_short(pid_of_type($_)), "nor has the $_") for 'checkpointer', 'background writer';

# ---- New processes ----

my $before = pid_of_type('walreceiver');
kill 'TERM', $before;
wait_until(undef, sub { my $pid = pid_of_type('walreceiver'); defined $pid && $pid != $before && is_short($pid) },
	'a new walreceiver gets it');
$before = controller_pid($standby);
kill 'TERM', $before;
wait_until(undef, sub { my $pid = controller_pid($standby); defined $pid && $pid != $before }, 'a new controller comes');
all_are(1, 'which goes on');

# ---- Back and forth by reload ----

for my $setting ('lockstep.replay_priority', 'lockstep.enabled')
{
	set_and_reload($standby, $setting => 'off');
	all_are(0, "$setting = off");
	set_and_reload($standby, $setting => 'on');
	all_are(1, "$setting = on");
}

# ---- Promotion ----

my $walsender = pid_of_type('walsender');
$standby->promote;
wait_until($admin, q{SELECT slice_detail LIKE 'not in recovery%' FROM lockstep_stat_priority}, 'promoted');
is($admin->value('SELECT short_slices FROM lockstep_stat_priority'), 0, 'the view counts none');
wait_until(undef, sub { !defined controller_pid($standby) }, 'the controller ends');
$admin->value('INSERT INTO t VALUES (0)');
catch_up($admin, $on_second);
is(pid_of_type('walsender'), $walsender, 'the walsender goes on');
is(slice_of($walsender), slice_of(pid_of_type('checkpointer')), "with the kernel's slice");

done_testing();
