# How often the startup process writes the control file so that records may run ahead in hot
# standby: at light load at most 20 times a second, also with lockstep.replay_min_backlog = 0.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use IPC::Run;
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant A_SECOND => 20;

if (!-x '/usr/bin/strace')
{
	diag 'SKIP t/034_control_file.pl: there is no strace';
	SKIP: { skip 'there is no strace', 1; }
	done_testing();
	exit;
}

my $primary = hot_primary('primary');
my $standby = new_standby($primary, name => 'standby', conf => "${HOT}lockstep.replay_workers = 1\nlockstep.replay_min_backlog = 0\n");
my $admin = LockstepSession->new($standby);
my $startup = $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});

my $trace = PostgreSQL::Test::Utils::tempdir() . '/trace';
my $strace = IPC::Run::start([ '/usr/bin/strace', '-ttt', '-e', 'trace=openat', '-o', $trace, '-p', $startup ],
	'2>', \my $said);

# When the control file was opened to be written.
sub times_written
{
	return () unless -e $trace;
	return slurp_file($trace) =~ /^(\d+\.\d+) openat\([^\n]*pg_control"[^\n]*O_RDWR/mg;
}

wait_until(undef, sub { write_much($primary, 200); my @at = times_written(); @at > 10 }, 'the control file is written again and again');
catch_up(LockstepSession->new($primary), $admin);
kill 'INT', $strace->{KIDS}[0]{PID};
$strace->finish;
my @at = times_written();
# five come at once, and the first may have been late
cmp_ok(scalar @at, '<=', ($at[-1] - $at[0]) * A_SECOND + 6, 'not more often than the bound says');
note scalar(@at) . ' times in ' . ($at[-1] - $at[0]) . ' s';
same_rows($primary, $standby, 'no row is lost');

done_testing();
