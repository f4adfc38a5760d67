# What happens while the worker fills a WAL segment: streaming ends, or the server
# is promoted. The worker is stopped by a signal in the middle.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use constant SEGMENT => 16 * 1024 * 1024;

my $primary    = new_primary(create_extension => 0);
my $on_primary = LockstepSession->new($primary);
my $worker;
# a failed test must not leave it so: the server could not stop
END { kill 'CONT', $worker if $worker; }

# One segment ahead, and no second attempt to stream once the primary is gone.
sub one_ahead
{
	my ($name) = @_;
	my $standby = new_standby($primary, name => $name, conf => q{
lockstep.wal_segments_ahead = 1
wal_init_zero = on
wal_retrieve_retry_interval = 1h
});
	my $admin = LockstepSession->new($standby);
	# so that it has received a part of a segment, and the next is free
	$on_primary->value('INSERT INTO t VALUES (0)');
	catch_up($on_primary, $admin);
	return ($standby, $admin);
}

sub path_of
{
	my ($standby, $timeline, $segment) = @_;
	return sprintf '%s/pg_wal/%08X%08X%08X', $standby->data_dir, $timeline, $segment / 256, $segment % 256;
}

sub received
{
	my ($admin) = @_;
	return $admin->value(q{SELECT flushed_lsn - '0/0' FROM pg_stat_wal_receiver});
}

# Has the worker create the next segment again, and stops it before that is done.
# Returns the segment's number.
sub stop_while_filling
{
	my ($standby, $admin) = @_;
	wait_until(undef, sub { $worker = worker_pid($standby, 'lockstep WAL segments') }, 'the worker runs');
	my $temporary = $standby->data_dir . "/pg_wal/xlogtemp.$worker";
	my $next      = int(received($admin) / SEGMENT) + 1;
	my $path      = path_of($standby, 1, $next);
	wait_until(undef,
		sub {
			return 0 unless -e $path;
			unlink $path;
			for (1 .. 100_000)
			{
				last if -e $temporary || -e $path;
				usleep(100);
			}
			kill 'STOP', $worker;
			usleep(1000) until stat_field($worker, 3) =~ /^[TZu]/;
			return 1 if -e $temporary && !-e $path;
			kill 'CONT', $worker;
			return 0;
		},
		'and is stopped as it fills a segment');
	return $next;
}

sub go_on
{
	my ($standby) = @_;
	kill 'CONT', $worker;
	my $temporary = $standby->data_dir . "/pg_wal/xlogtemp.$worker";
	wait_until(undef, sub { !-e $temporary }, 'it goes on');
	return;
}

# ---- At the exact end of a segment ----

my ($standby, $admin) = one_ahead('standby');
$on_primary->value($_) for 'CREATE TABLE at_end ()', 'SELECT pg_switch_wal()';
my $next;
wait_until(undef, sub { $next = received($admin) / SEGMENT; $next == int $next }, 'a segment is received to its end');
unlink path_of($standby, 1, $next);
wait_until(undef, sub { -e path_of($standby, 1, $next) || -e path_of($standby, 1, $next + 1) }, 'the worker looks');
ok(-e path_of($standby, 1, $next), 'and creates the segment that is needed next');
$on_primary->value('INSERT INTO t VALUES (0)');
catch_up($on_primary, $admin);

# ---- Promotion ----

my $made = stop_while_filling($standby, $admin);
$standby->promote;
wait_until($admin, 'SELECT NOT pg_is_in_recovery()', 'the server is promoted meanwhile');
$admin->value('INSERT INTO t VALUES (0)');
go_on($standby);
wait_until(undef, sub { !defined worker_pid($standby, 'lockstep WAL segments') }, 'and the worker ends');
$worker = undef;
ok(!-e path_of($standby, 1, $made), 'no segment of the old timeline is left beyond its end');
unlike(slurp_file($standby->logfile), qr/"lockstep WAL segments".* exited|PANIC/, 'the worker did not fail');
$standby->stop;

# ---- The primary is gone ----

($standby, $admin) = one_ahead('second');
$made = stop_while_filling($standby, $admin);
$primary->stop;
wait_until($admin, q{SELECT wait_event = 'RecoveryRetrieveRetryInterval' FROM pg_stat_activity WHERE backend_type = 'startup'},
	'the primary stops meanwhile');
go_on($standby);
ok(!-e path_of($standby, 1, $made), 'the server did not install the segment');
set_and_reload($standby, 'wal_retrieve_retry_interval' => '100ms');
$primary->start;
wait_until(undef, sub { -e path_of($standby, 1, $made) }, 'the segment is made once WAL streams again');
is(worker_pid($standby, 'lockstep WAL segments'), $worker, 'by the same worker');
unlike(slurp_file($standby->logfile), qr/"lockstep WAL segments".* exited|could not open file/, 'it did not fail');

done_testing();
