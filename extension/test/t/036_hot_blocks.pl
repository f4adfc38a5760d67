# The blocks that one standby has in shared buffers are read into those of another one, which replays meanwhile:
# replay waits for no reader of blocks, and a reader waits for no lock.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($primary, $standby, $on_primary, $admin) = primary_and_standby(conf => "shared_buffers = 16MB\n");
$on_primary->query($_) for q{CREATE TABLE warm AS SELECT i, repeat('x', 500) AS t FROM generate_series(1, 1000) i},
  'CHECKPOINT';
catch_up($on_primary, $admin);
$admin->query('CHECKPOINT');
my $blocks = $admin->value(q{SELECT pg_relation_size('warm') / 8192});
my $file = $admin->value(q{SELECT pg_relation_filenode('warm')});
my $listed = "SELECT array_agg(relblocknumber ORDER BY relblocknumber) FROM lockstep_hot_blocks()
	WHERE relfilenode = $file AND relforknumber = 0 AND reldatabase > 0";
my $hot = $admin->value($listed);
is(scalar(() = $hot =~ /\d+/g), $blocks, 'what was replayed is listed');

$standby->restart;
my $monitor = LockstepSession->new($standby, user => 'monitor');
$monitor->query(q{SET statement_timeout = '20s'});
is($monitor->value($listed) // '', '', 'nothing of it is there after a restart');
my $read = "SELECT lockstep_read_blocks(1663, $file, 0, '$hot')";
is($monitor->value($read), $blocks, 'a monitor reads it');
is($monitor->value($listed), $hot, 'and it is there');

# ---- A lock that replay holds ----

$on_primary->query($_) for 'BEGIN', 'LOCK warm';
# the record about the lock is flushed with what another session commits
$primary->safe_psql('postgres', 'CREATE TABLE flushed ()');
wait_until($monitor, q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'warm'::regclass
	AND mode = 'AccessExclusiveLock'}, 'replay has the lock');
is($monitor->value($read), 0, 'nothing is read, and nobody waits');
$on_primary->query('ROLLBACK');

# ---- A file that becomes shorter, and goes away ----

$on_primary->query($_) for 'DELETE FROM warm WHERE i > 100', 'VACUUM (TRUNCATE) warm';
catch_up($on_primary, $monitor);
my $left = $monitor->value(q{SELECT pg_relation_size('warm') / 8192});
cmp_ok($left, '<', $blocks, 'the file is shorter');
is($monitor->value($read), $left, 'what is left is read');
$on_primary->query('TRUNCATE warm');
catch_up($on_primary, $monitor);
is($monitor->value($read), 0, 'nothing of a file that is gone');

$_->close for $monitor, $on_primary;
$_->stop for $standby, $primary;

done_testing();
