# A failover to a standby that has less WAL than others: these follow it if they have not replayed
# beyond its fork, whether records run ahead or not (rule 9 of src/replay/README.md).
#
#   old primary ──┬───────────┬───────────── received by all others
#     timeline 1  │           └─ the new primary                       (timeline 2)
#                 └─ early standbys replay up to here, an old snapshot in the way
#                          ├─ one up to here had not received more when it last asked for WAL
#                          └─ late ones up to here had: records run ahead beyond the fork
#
# One more stands where that one did and had received more. Nothing runs ahead of it beyond the fork, but
# its minimum recovery point may lie there.

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

# The startup process decodes by itself what runs ahead. With helpers that read, so much runs ahead as one of
# them has read when replay comes to stand still: on a busy machine nothing, and then there is no more.
my $hot     = "${WORKERS}lockstep.replay_hot_standby = on\nlockstep.replay_read_helpers = off\n";
my $reading = "${READING}lockstep.replay_hot_standby = on\n";
my %conf    = (stock => '', early_followed => $reading, late_hot => $reading);

# Small segments: a standby asks for more WAL, and so for a new timeline, at the end of each. Without
# checksums and their like, as in 026_hot_rules.pl.
my $old = PostgreSQL::Test::Cluster->new('old');
my @without = without_checksums($old);
$old->init(allows_streaming => 1, extra => [ '--wal-segsize=1', @without ? @{ $without[1] } : () ]);
my $archive = $old->archive_dir;
$old->append_conf('postgresql.conf', "wal_log_hints = off\nautovacuum = off\nmax_connections = 40\n"
	. "wal_keep_size = 1GB\ncheckpoint_timeout = 1h\nmax_wal_size = 10GB\n");
$old->start;
$old->safe_psql('postgres', q{
	CREATE EXTENSION lockstep;
	CREATE TABLE often (i int, filler text);
	CREATE TABLE much (i int);
	CREATE TABLE written_by (who text);
	INSERT INTO often VALUES (1, '')});
$old->backup('all');

sub standby
{
	my ($name, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($old, 'all', has_streaming => 1);
	$node->append_conf('postgresql.conf', "max_standby_streaming_delay = -1\nmax_standby_archive_delay = -1\n"
		. "restore_command = 'cp $archive/%f %p'\n$conf");
	$node->start;
	return $node;
}

my $new = standby('new', "archive_mode = on\narchive_command = 'cp %p $archive/%f'\n");
my %early = map { $_ => standby("early_$_", $conf{$_} // $conf{"early_$_"} // $hot) }
  qw(stock restarted followed promoted);
my %late = map { $_ => standby("late_$_", $conf{$_} // $conf{"late_$_"} // $hot) } qw(stock hot killed);
my $asked = standby('asked', $hot);
my $stopped = standby('stopped', $hot);
my %session;

# ---- Replay stands still, here and there, while WAL comes in ----

# A session with a snapshot that pruning of later row versions has to wait for.
sub snapshot
{
	my ($node) = @_;
	my $session = LockstepSession->new($node);
	$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$session->value('SELECT count(*) FROM often');
	return $session;
}

sub hold
{
	my ($node) = @_;
	my $admin = LockstepSession->new($node);
	pause_replay($admin);
	$session{ $node->name } = [ snapshot($node), $admin ];
	return;
}

# Pages that are updated again and again are pruned.
sub write_place
{
	$old->safe_psql('postgres', $_) for q{
		DO $$ BEGIN FOR n IN 1 .. 60 LOOP
			UPDATE often SET filler = repeat('x', 200 + n); COMMIT;
		END LOOP; END $$};
	return;
}

sub write_rows
{
	my ($rows) = @_;
	$old->safe_psql('postgres', "INSERT INTO much SELECT generate_series(1, $rows)");
	return;
}

my $STANDS = q{(SELECT wait_event = 'RecoveryConflictSnapshot' FROM pg_stat_activity
	WHERE backend_type = 'startup')};

sub stand_still
{
	my ($node) = @_;
	my $admin = $session{ $node->name }[1];
	$old->wait_for_catchup($node, 'flush', $old->lsn('flush'));
	$admin->value('SELECT pg_wal_replay_resume()');
	return wait_until($admin, "SELECT $STANDS", $node->name . ' waits for an old snapshot');
}

# From snapshot to snapshot, until replay stands beyond that position.
sub step_on
{
	my ($node, $until) = @_;
	my ($snapshot, $admin) = @{ $session{ $node->name } };
	while ($admin->value("SELECT pg_last_wal_replay_lsn() < '$until'") eq 't')
	{
		my $at   = $admin->value('SELECT pg_last_wal_replay_lsn()');
		my $next = snapshot($node);
		$snapshot->close;
		$session{ $node->name }[0] = $snapshot = $next;
		wait_until($admin, "SELECT $STANDS AND pg_last_wal_replay_lsn() > '$at'", 'it waits for the next one');
	}
	return;
}

$old->wait_for_catchup($_, 'replay', $old->lsn('flush')) for values %early, values %late, $asked, $stopped;
# What helpers have read runs ahead.
$old->safe_psql('postgres', 'CREATE TABLE earlier (i int)');
for my $node ($early{followed}, $late{hot})
{
	wait_until(undef, sub {
		$old->safe_psql('postgres', 'INSERT INTO earlier SELECT generate_series(1, 3000)');
		$old->wait_for_catchup($node, 'replay', $old->lsn('flush'));
		pipeline($node, 'dispatched') > 0;
	}, 'records have run ahead on ' . $node->name . ', whose helpers read');
}
$old->wait_for_catchup($_, 'replay', $old->lsn('flush')) for values %early;
hold($_) for values %early;
write_rows(5000);
write_place();
write_rows(20000);
$old->safe_psql('postgres', 'SELECT pg_switch_wal()');
write_rows(100);
for my $node ($asked, $stopped)
{
	$old->wait_for_catchup($node, 'replay', $old->lsn('flush'));
	hold($node);
}
write_place();
write_rows(1500);
my $between = $old->lsn('flush');
$old->wait_for_catchup($_, 'replay', $between) for values %late;
hold($_) for values %late;
write_place();
stand_still($asked);
write_rows(10);
$old->wait_for_catchup($new, 'replay', $old->lsn('flush'));
set_and_reload($new, primary_conninfo => '');
$new->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
  or die 'it receives still';
$old->safe_psql('postgres', q{INSERT INTO written_by VALUES ('old')});
write_rows(100_000);
stand_still($_) for values %early, values %late, $stopped;
$old->wait_for_catchup($asked, 'flush', $old->lsn('flush'));
step_on($asked, $between);

# ---- The failover ----

$old->stop('immediate');
$new->promote;
$new->safe_psql('postgres', q{INSERT INTO written_by VALUES ('new')});
my $segment = $new->safe_psql('postgres', 'SELECT pg_walfile_name(pg_current_wal_lsn())');
$new->safe_psql('postgres', 'SELECT pg_switch_wal()');
$new->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver")
  or die 'it archives nothing';
my ($fork) = slurp_file("$archive/00000002.history") =~ m{^1\t(\S+)\t};

sub admin_value { return $session{ $_[0]->name }[1]->value($_[1]); }

for my $node (@early{qw(restarted followed promoted)}, $asked)
{
	is(admin_value($node, "SELECT pg_last_wal_receive_lsn() > '$fork'"), 't',
		$node->name . ' has received more than the new primary');
	is(admin_value($node, "SELECT min_recovery_end_lsn <= '$fork' FROM pg_control_recovery()"), 't',
		'its minimum recovery point is not beyond the fork');
}
is(admin_value($_, 'SELECT pg_last_wal_replay_lsn() < dispatched_until FROM lockstep_stat_replay_pipeline'), 't',
	'records run ahead on ' . $_->name)
  for @early{qw(restarted promoted)}, $asked;
is(admin_value($late{$_}, "SELECT pg_last_wal_replay_lsn() < '$fork'"), 't',
	"late_$_ has not replayed up to the fork")
  for sort keys %late;
is(admin_value($late{killed}, "SELECT dispatched_until > '$fork' FROM lockstep_stat_replay_pipeline"), 't',
	'but records run ahead beyond it');

is(admin_value($stopped, qq{SELECT dispatched_until < '$fork' AND min_recovery_end_lsn > '$fork'
	FROM lockstep_stat_replay_pipeline, pg_control_recovery()}), 't',
	'nothing runs ahead of the fork where less has been replayed, but the minimum recovery point is beyond it');

# From now on it may receive from the new primary, and nothing is in the way of replay.
sub go_on
{
	my ($node) = @_;
	set_and_reload($node, primary_conninfo => $new->connstr . ' application_name=' . $node->name);
	my $sessions = delete $session{ $node->name };
	$_->close for @{ $sessions // [] };
	return;
}

# The standby has what the new primary wrote, and nothing else.
sub follows
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(undef, sub { $node->safe_psql('postgres', 'SELECT who FROM written_by') eq 'new' },
		$node->name . ' follows the new primary');
	return is($node->safe_psql('postgres', 'SELECT count(*) FROM much'), 26610, 'without what was lost');
}

# Replay stands where it stood until then.
sub stops
{
	my ($node, $mode) = @_;
	$node->stop($mode);
	my $sessions = delete $session{ $node->name };
	$_->vanish for @{ $sessions // [] };
	return;
}

sub comes_up
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	stops($node, 'fast');
	return ok($node->start(fail_ok => 1), $node->name . ' comes up again');
}

sub is_promoted
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	system_log('pg_ctl', '-D', $node->data_dir, '-w', 'promote');
	unlike(slurp_file($node->logfile), qr/WAL ends before consistent recovery point/, 'no WAL is missing');
	return is($node->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 'f', $node->name . ' can be promoted');
}

# ---- Those follow that stand before the fork ----

for my $node (@early{qw(stock restarted followed promoted)}, $asked)
{
  SKIP:
	{
		skip $node->name . ' is down', 1 if $node->name =~ /stock|restarted/ && !comes_up($node);
		go_on($node);
		follows($node);
		skip $node->name . ' is down', 1 if $node->name =~ /stock|followed|asked/ && !comes_up($node);
		is_promoted($node);
		$node->stop;
	}
}

# Stopped, it needs only what has run ahead.
SKIP:
{
	skip 'it is down', 3 if !comes_up($stopped);
	go_on($stopped);
	follows($stopped);
	is_promoted($stopped);
	$stopped->stop;
}

# ---- Late ones refuse, and so do their data ----

my $refused = qr/new timeline 2 forked off current database system timeline 1 before current recovery point/;
for my $node (@late{qw(stock hot)})
{
	go_on($node);
	$node->wait_for_log($refused);
	pass($node->name . ' refuses the timeline, since it has replayed more');
	is($node->safe_psql('postgres', 'SELECT who FROM written_by'), 'old', 'as is seen');
	$node->stop;
}
my $node = $late{killed};
stops($node, 'immediate');
ok(!$node->start(fail_ok => 1), 'one whose pages are beyond the fork does not open on the new timeline');
like(slurp_file($node->logfile), qr/requested timeline 2 does not contain minimum recovery point/,
	'and says so');

$new->stop;

done_testing();
