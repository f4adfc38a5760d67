# Too small a max_worker_processes: the log says which worker is missing, and the
# controller is the last one to be.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A standby must not have fewer than its primary. The launcher of logical
# replication takes the first.
my $primary = new_primary(create_extension => 0, conf => "max_worker_processes = 1\n");

sub said { return [ slurp_file($_[0]->logfile) =~ /WARNING:  (lockstep \S+ (?:\S+ )?cannot run.*)/g ]; }

my @missing = map { "lockstep $_ cannot run: max_worker_processes (%d) leaves no background worker for it" } ('controller', 'WAL segments');

for my $case ([ 1, 'no', @missing ], [ 2, 'one', $missing[1] ], [ 3, 'two' ])
{
	my ($number, $free, @expected) = @$case;
	my $standby = new_standby($primary, name => "standby_$number", conf => "max_worker_processes = $number\n");
	is_deeply(said($standby), [ map { sprintf $_, $number } @expected ], "the log says what is missing with $free free workers");
	like(slurp_file($standby->logfile), qr/HINT:  .*raise max_worker_processes and restart/, 'and what to do') if @expected;
	wait_until(undef, sub { defined controller_pid($standby) }, 'the controller runs') if $number > 1;
	is(LockstepSession->new($standby, user => 'app')->value('SELECT count(*) FROM t'), 1000, 'queries pass');
	$standby->stop;
}

done_testing();
