# How often the startup process writes the control file so that records may run ahead in hot
# standby: at most 20 times a second for little WAL, also with lockstep.replay_min_backlog = 0, and 50 times for
# 512 kB or more each.
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
use constant LARGE_A_SECOND => 25;
use constant LARGE_AT_ONCE => 25;

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

my $trace;
my $traces = 0;

# When the control file was opened to be written.
sub times_written
{
	return () unless -e $trace;
	return slurp_file($trace) =~ /^(\d+\.\d+) openat\([^\n]*pg_control"[^\n]*O_RDWR/mg;
}

# These times, while $what runs and until all is replayed.
sub written_during
{
	my ($what) = @_;
	$trace = PostgreSQL::Test::Utils::tempdir() . '/trace' . ++$traces;
	my $said = '';
	my $strace = IPC::Run::start([ '/usr/bin/strace', '-ttt', '-e', 'trace=openat', '-o', $trace, '-p', $startup ],
		'2>', \$said);
	$strace->pump until $said =~ /attached/;
	$what->();
	catch_up(LockstepSession->new($primary), $admin);
	kill 'INT', $strace->{KIDS}[0]{PID};
	$strace->finish;
	return times_written();
}

my @at = written_during(sub {
	wait_until(undef, sub { write_much($primary, 200); my @at = times_written(); @at > 10 }, 'the control file is written again and again');
});
# five come at once, and the first may have been late
cmp_ok(scalar @at, '<=', ($at[-1] - $at[0]) * A_SECOND + 6, 'not more often than the bound says');
note scalar(@at) . ' times in ' . ($at[-1] - $at[0]) . ' s';

# Segments of 1 MB that have piled up: each is worth a raise of its own.
pause_replay($admin);
$primary->safe_psql('postgres', q{
	CREATE TABLE wide (filler text);
	INSERT INTO wide SELECT repeat('x', 1900) FROM generate_series(1, 50000)});
$primary->wait_for_catchup($standby, 'flush', $primary->lsn('flush'));
@at = written_during(sub { $admin->value('SELECT pg_wal_replay_resume()') });
cmp_ok(scalar @at, '>', 10, 'it is written for large pieces of WAL');
cmp_ok(scalar @at, '<=', LARGE_AT_ONCE + 6 + ($at[-1] - $at[0]) * (LARGE_A_SECOND + A_SECOND),
	'and not more often than the bounds say');
note scalar(@at) . ' times in ' . ($at[-1] - $at[0]) . ' s';
same_rows($primary, $standby, 'no row is lost');

done_testing();
