# Replay waits for the end of transactions whose snapshots were too old. One of them comes to the gate,
# without a snapshot by then: if it waited, replay would wait for all who are before it.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => q{
lockstep.read_throttle_max = 1
lockstep.read_throttle_long_query = 0
max_standby_streaming_delay = -1
});

# Conflicts are with sessions of one database: the one that occupies the place is in another.
$on_primary->value('CREATE DATABASE read');
my $writer = LockstepSession->new($primary, dbname => 'read');
$writer->value($_) for 'CREATE TABLE counted WITH (autovacuum_enabled = off) AS SELECT i FROM generate_series(1, 10) i',
  # The planner calls it, and has a snapshot meanwhile.
  q{CREATE FUNCTION plan_waits() RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_lock(1); RETURN 10; END'};
catch_up($on_primary, $admin);

sub app { return LockstepSession->new($standby, user => 'app', @_); }

sub wait_event_of
{
	my ($whose, $event, $name) = @_;
	return wait_until($admin, "SELECT coalesce(bool_or(wait_event = '$event'), false) FROM pg_stat_activity WHERE $whose", $name);
}

wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');
my $holder = app();
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');

my ($awaited, $later) = map { app(dbname => 'read') } 1 .. 2;
my $key = LockstepSession->new($standby, dbname => 'read');
$key->value('SELECT pg_advisory_lock(1)');
$awaited->send('SELECT count(*) FROM counted WHERE i <= plan_waits()');
wait_event_of('pid = ' . $awaited->pid, 'advisory', 'a query is being planned');

$writer->value($_) for 'DELETE FROM counted WHERE i > 5', 'VACUUM counted';
wait_event_of(q{backend_type = 'startup'}, 'RecoveryConflictSnapshot', 'replay waits for the end of its transaction');
comes_to_wait($admin, $later, 'SELECT count(*) FROM counted', 'a query that begins now waits');
$key->value('SELECT pg_advisory_unlock(1)');
is($awaited->result->{rows}[0][0], 5, 'the awaited query passes the gate');
catch_up($on_primary, $admin);
ok($later->busy, 'the other one still waits');
$holder->cancel;
refused($holder->result, '57014', qr/user request/, 'the place is given up');
is($later->result->{rows}[0][0], 5, 'and taken');

done_testing();
