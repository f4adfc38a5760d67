# What is done to standbys every day, while helpers execute records ahead of their turn: the outcome is
# that without helpers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = hot_primary('primary', '', has_archiving => 1);
my $ours = new_standby($primary, name => 'ours', conf => $HOT);

my $AHEAD = 'SELECT dispatched_until > pg_last_wal_replay_lsn() FROM lockstep_stat_replay_pipeline';

sub remove
{
	my ($node) = @_;
	$node->stop;
	$node->clean_node;
	return;
}

# ---- WAL from an archive, then streamed ----

$primary->backup('early');
mixed_load($primary, 1500)->finish or die 'pgbench failed';
my $segment = $primary->safe_psql('postgres', 'SELECT pg_walfile_name(pg_switch_wal())');
write_much($primary, 1);
$primary->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver")
  or die 'it archives nothing';
my $expected = sums($primary) =~ s/\|\d+ \d+\|/||/r;
my $archived = PostgreSQL::Test::Cluster->new('archived');
$archived->init_from_backup($primary, 'early', has_restoring => 1);
$archived->append_conf('postgresql.conf', $HOT);
$archived->start;
wait_until(undef, sub { (sums($archived) =~ s/\|\d+ \d+\|/||/r) eq $expected },
	'all that is archived is replayed');
cmp_ok(executed($archived), '>', 0, 'helpers have executed some of it');
is($archived->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_wal_receiver'), 0, 'none was streamed');
set_and_reload($archived, primary_conninfo => $primary->connstr . ' application_name=archived');
my ($old, $admin) = stands_still($primary, $archived);
$_->close for $old, $admin;
same_rows($primary, $archived, 'from then on WAL is streamed');
remove($archived);

# ---- A base backup of the standby ----

($old, $admin) = stands_still($primary, $ours, after => sub { write_much($primary, 30000) });
$ours->backup('of_standby');
is($admin->value($AHEAD), 't', 'a backup is taken while records run ahead');
$_->close for $old, $admin;
my $alone = PostgreSQL::Test::Cluster->new('alone');
$alone->init_from_backup($ours, 'of_standby');
unlink $alone->data_dir . '/standby.signal' or die $!;
ok($alone->start(fail_ok => 1), 'it opens by itself');
$alone->safe_psql('postgres', 'CREATE EXTENSION amcheck');
is($alone->safe_psql('postgres', q{SELECT * FROM pg_class c, verify_heapam(c.oid)
	WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'}), '', 'tables have no fault');
is($alone->safe_psql('postgres', q{SELECT bt_index_check(indexrelid, true) FROM pg_index
	JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace}) =~ s/\s//gr,
	'', 'nor indexes');
remove($alone);
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($ours, 'of_standby', has_streaming => 1);
$copy->append_conf('postgresql.conf', $HOT);
$copy->start;
$primary->wait_for_catchup($ours, 'replay', $primary->lsn('flush'));
$ours->wait_for_catchup($copy, 'replay', $ours->lsn('replay'));
is(sums($copy), sums($primary), 'and follows the standby');

# ---- A standby of the standby ----

my $down = new_standby($ours, name => 'down', conf => "lockstep.replay_workers = 0\n");
($old, $admin) = stands_still($primary, $ours);
for my $node ($down, $copy)
{
	$ours->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
	is(sums($node), sums($primary), $node->name . ' goes on while the standby above it stands still');
}
$_->close for $old, $admin;
remove($_) for $down, $copy;

# ---- recovery_min_apply_delay is set while records run ahead ----

sub dispatched { return $_[0]->value('SELECT dispatched FROM lockstep_stat_replay_pipeline'); }

($old, $admin) = stands_still($primary, $ours);
my $before = dispatched($admin);
set_and_reload($ours, recovery_min_apply_delay => '1h');
wait_for_value($admin, 'SHOW recovery_min_apply_delay', '1h', 'a delay is set');
$old->close;
wait_until($admin, q{SELECT wait_event = 'RecoveryApplyDelay' FROM pg_stat_activity
	WHERE backend_type = 'startup'}, 'replay comes to a commit that is delayed');
is(dispatched($admin), $before, 'nothing more runs ahead');
set_and_reload($ours, recovery_min_apply_delay => '0');
same_rows($primary, $ours, 'all is replayed without the delay');
$admin->close;

# ---- remote_apply ----

set_and_reload($primary, synchronous_standby_names => 'ours');
my $writer = LockstepSession->new($primary);
$writer->query('SET synchronous_commit = remote_apply');
$writer->query('CREATE TABLE applied (i int)');
my $reader = LockstepSession->new($ours);
($old, $admin) = stands_still($primary, $ours, after => sub {
	$writer->send('INSERT INTO applied VALUES (0)');
	$primary->poll_query_until('postgres', qq{SELECT wait_event = 'SyncRep' FROM pg_stat_activity
		WHERE pid = } . $writer->pid) or die 'it does not wait';
	write_much($primary, 1000);
});
is($admin->value($AHEAD), 't', 'a commit with remote_apply is among what runs ahead');
ok($writer->busy, 'it waits for its turn');
is($reader->value('SELECT count(*) FROM applied'), 0, 'and nobody sees it');
$_->close for $old, $admin;
$writer->result;
is($reader->value('SELECT count(*) FROM applied'), 1, 'once it has returned it is seen');
my $load = mixed_load($primary, 1_000_000);
my $late = 0;
for my $n (1 .. 200)
{
	$writer->query("INSERT INTO applied VALUES ($n)");
	$late++ if $reader->value("SELECT count(*) FROM applied WHERE i = $n") != 1;
}
is($late, 0, 'as 200 others are at once, under load');
$_->close for $writer, $reader;
set_and_reload($primary, synchronous_standby_names => '');

# ---- Shutdown in the middle of a load ----

for my $mode (qw(fast immediate fast immediate))
{
	work_for_helpers($ours, "helpers are at work before a shutdown ($mode)");
	$ours->stop($mode);
	$ours->start;
}
work_for_helpers($ours, 'and after all of them');

# ---- A helper that an administrator ends ----

my ($ended) = split /\n/,
  $ours->safe_psql('postgres', 'SELECT pid FROM lockstep_stat_replay_workers WHERE pid IS NOT NULL');
kill 'TERM', $ended or die "there is no helper $ended";
wait_until(undef, sub {
	$ours->safe_psql('postgres', "SELECT count(*) FROM lockstep_stat_replay_workers
		WHERE pid <> $ended") == 2 }, 'another one takes its place');
work_for_helpers($ours, 'and works');
like(slurp_file($ours->logfile), qr/replay helper \d was ended, and is started again/, 'the log says so');
$load->kill_kill;
wait_until(undef, sub {
	$primary->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'pgbench'}) == 0 }, 'sessions of the load are gone');
same_rows($primary, $ours, 'rows are the primary\'s');
unlike(slurp_file($ours->logfile), qr/PANIC|past current point/, 'and the log has nothing to say');

# ---- A page that a session has pinned ----

# Rows that nobody sees any more are pruned by the next scan of their page, if that is full, nobody has
# pinned it, and no older transaction runs: else by a later scan, of another session.
my $prune = sub {
	$primary->poll_query_until('postgres', q{SELECT count(*) FROM pinned;
		SELECT prune_xid = '0' FROM page_header(get_raw_page('pinned', 0))}, "100\nt")
	  or die 'the page is not pruned';
};
$primary->safe_psql('postgres', $_) for 'CREATE EXTENSION pageinspect',
  'CREATE TABLE pinned (i int, filler text)',
  q{INSERT INTO pinned SELECT g, repeat('x', 300) FROM generate_series(1, 200) g},
  'DELETE FROM pinned WHERE i % 2 = 0';
$primary->wait_for_catchup($ours, 'replay', $primary->lsn('flush'));
($old, $admin) = stands_still($primary, $ours, event => 'BufferPin',
	holds => [ 'BEGIN', 'DECLARE c CURSOR FOR SELECT i FROM pinned', 'FETCH 1 FROM c' ],
	place => $prune);
is(scalar @{ $old->query('FETCH ALL FROM c')->{rows} }, 99, 'what is pinned is still there');
$old->close;
same_rows($primary, $ours, 'replay goes on when it is not pinned any more');
$admin->close;

# ---- A conflict that ends a session ----

set_and_reload($ours, max_standby_streaming_delay => '1s');
$old = LockstepSession->new($ours);
$admin = LockstepSession->new($ours);
wait_for_value($admin, 'SHOW max_standby_streaming_delay', '1s', 'replay waits for a second at most');
$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->value('SELECT count(*) FROM often');
$before = executed($admin);
$admin->value('SELECT pg_wal_replay_pause()');
$primary->safe_psql('postgres', $_) for 'INSERT INTO much SELECT generate_series(1, 20000)', q{
	DO $$ BEGIN FOR n IN 1 .. 60 LOOP UPDATE often SET filler = repeat('x', 200 + n); COMMIT; END LOOP; END $$},
	'INSERT INTO much SELECT generate_series(1, 20000)';
$primary->wait_for_catchup($ours, 'flush', $primary->lsn('flush'));
$admin->value('SELECT pg_wal_replay_resume()');
same_rows($primary, $ours, 'replay goes on after that');
cmp_ok(executed($admin), '>', $before, 'helpers have executed some of it');
my $reply = eval { $old->query('SELECT 1') };
ok(!defined $reply || $reply->{lost} || ($reply->{sqlstate} // '') eq '40001',
	'the session in its way was ended');
like(slurp_file($ours->logfile), qr/due to conflict with recovery/, 'for that conflict');
$admin->close;

$ours->stop;
$primary->stop;

done_testing();
