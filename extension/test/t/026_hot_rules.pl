# The rules of parallel replay (src/replay/README.md) that are about sessions that read: each is
# kept and then broken on purpose, in a library of its own (src/replay/broken_rule.h), and a
# session sees what goes wrong without it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepCluster;
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $hot = "${WORKERS}lockstep.replay_hot_standby = on\nlockstep.replay_min_backlog = 0\n"
  . "max_standby_streaming_delay = -1\nautovacuum = off\n";

# Without checksums and their like: an image of a free space map would keep records of its table from
# running ahead where a test wants them to.
my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, without_checksums($primary));
$primary->append_conf('postgresql.conf', "wal_log_hints = off\nautovacuum = off\nmax_connections = 40\n"
	. "wal_keep_size = 1GB\ncheckpoint_timeout = 1h\nmax_wal_size = 10GB\n");
$primary->start;
$primary->safe_psql('postgres', q{
	CREATE EXTENSION lockstep;
	CREATE EXTENSION pg_visibility;
	CREATE EXTENSION pageinspect;
	CREATE TABLE often (i int, filler text);
	CREATE TABLE much (i int);
	INSERT INTO often VALUES (1, '')});

# ---- A standby at which replay stands still, while records run ahead ----

my $number = 0;

sub standby_without
{
	my ($rule, $conf) = @_;
	my $breaks = $rule eq 'none' ? '' :
	  "dynamic_library_path = '$ENV{LOCKSTEP_BREAKABLE}:\$libdir'\nlockstep.broken_rule = $rule\n";
	return new_standby($primary, name => 'standby' . ++$number, conf => $hot . $breaks . ($conf // ''));
}

# What is written before a place is reached that removes what an old snapshot sees: a row
# version, when a page that is updated again and again is full.
my @to_the_place = ('INSERT INTO much SELECT generate_series(1, 5000)', q{
	DO $$ BEGIN FOR n IN 1 .. 60 LOOP
		UPDATE often SET filler = repeat('x', 200 + n); COMMIT;
	END LOOP; END $$});

# A standby, without that rule, that has an old snapshot in whose way replay is, and WAL of
# what &$write does after that place. Nothing is in the way if nobody resolves conflicts, and perhaps
# nothing if what the snapshot sees may be removed ahead.
sub standing_still
{
	my ($rule, $write, @sees) = @_;
	my $node = standby_without($rule);
	my $old = LockstepSession->new($node);
	$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$old->value('SELECT count(*) FROM often');
	$old->query($_) for @sees;
	my $admin = LockstepSession->new($node);
	$admin->value('SELECT pg_wal_replay_pause()');
	$primary->safe_psql('postgres', $_) for @to_the_place;
	$write->();
	$primary->wait_for_catchup($node, 'flush', $primary->lsn('flush'));
	$admin->value('SELECT pg_wal_replay_resume()');
	return ($node, $old, $admin) if $rule eq 'conflict' || $rule eq 'seen';
	wait_until($admin, q{SELECT wait_event = 'RecoveryConflictSnapshot' FROM pg_stat_activity
		WHERE backend_type = 'startup'}, 'replay waits for an old snapshot')
	  && wait_until($admin, q{SELECT dispatched_until > pg_last_wal_replay_lsn()
		FROM lockstep_stat_replay_pipeline}, 'and records run ahead');
	return ($node, $old, $admin);
}

# Ends the old snapshot; returns once all is replayed.
sub go_on
{
	my ($node, $old) = @_;
	$old->close;
	$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
	return;
}

sub remove
{
	my ($node, @sessions) = @_;
	$_->close for @sessions;
	$node->stop('immediate');
	$node->clean_node;
	return;
}

# True once what goes wrong is seen.
sub is_seen
{
	my ($wrong) = @_;
	for (1 .. 100)
	{
		return 1 if $wrong->();
	}
	return 0;
}

# Most tries for a broken rule to be noticed: which records a helper takes is chance.
my $TRIES = 20;

# Runs with the rule kept, and without. $before: from this major on it has not been seen to go wrong in this way.
sub bites
{
	my ($rule, $case, $name, $before) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(!$case->('none'), "with rule '$rule' $name: never");
  SKIP:
	{
		skip "without rule '$rule' nothing goes wrong in this way from $before on", 1
		  if defined $before && $primary->pg_version >= $before;
		return without($rule, $case, $name);
	}
	return;
}

sub without
{
	my ($rule, $case, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 2;
	for (1 .. $TRIES)
	{
		return pass("without rule '$rule' $name") if $case->($rule);
	}
	return fail("without rule '$rule' $name");
}

# Runs a query that an index may answer alone.
sub by_index
{
	my ($session, $sql) = @_;
	$session->query('SET enable_seqscan = off');
	$session->query('SET enable_bitmapscan = off');
	return $session->value($sql);
}

# ---- Rule 2: an item of a B-tree comes after its tuple ----

# Runs &$write in the middle of a vacuum, which has logged the bits of the row's page. The end of a
# vacuum would be a barrier.
sub while_vacuumed
{
	my ($table, $k, $write) = @_;
	my $vacuum = LockstepSession->new($primary);
	$vacuum->query("SET $_") for 'vacuum_cost_delay = 100', 'vacuum_cost_limit = 1';
	$vacuum->send("VACUUM $table");
	$primary->poll_query_until('postgres', qq{SELECT all_visible FROM pg_visibility_map('$table',
		(SELECT (ctid::text::point)[0]::int FROM $table WHERE k = $k))})
	  or die 'vacuum does nothing';
	$write->();
	$vacuum->cancel;
	$vacuum->result;
	$vacuum->close;
	return;
}

# New rows go to pages that are all-visible, so that an index-only scan believes their items. The tuples
# wait for their turn, since a vacuum sets bits of the same map (rule 4).
$primary->safe_psql('postgres', q{
	CREATE TABLE kept (k int PRIMARY KEY, filler text) WITH (fillfactor = 30);
	INSERT INTO kept SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g;
	ALTER TABLE kept SET (fillfactor = 100)});
my $from = 0;
bites('heap_first', sub {
	my ($rule) = @_;
	$from += 1_000_000;
	$primary->safe_psql('postgres', $_)
	  for 'VACUUM kept', 'UPDATE kept SET filler = filler WHERE k BETWEEN 1500 AND 2000';
	my ($node, $old, $admin) = standing_still($rule, sub {
		while_vacuumed('kept', 1510, sub {
			$primary->safe_psql('postgres', "INSERT INTO kept SELECT g, repeat('n', 1000) "
				. "FROM generate_series($from, $from + 20) g");
		});
	});
	my $seen = is_seen(sub { by_index($admin, "SELECT count(*) FROM kept WHERE k >= $from") > 0 });
	go_on($node, $old);
	is(by_index($admin, "SELECT count(*) FROM kept WHERE k >= $from"), 21, 'in the end all rows are there');
	remove($node, $admin);
	return $seen;
}, 'an index-only scan finds rows of a transaction that has not ended');

# ---- Rules 3 and 5: what an old snapshot sees is removed at its turn, once it is gone ----

sub old_rows_go
{
	my ($rule) = @_;
	$primary->safe_psql('postgres', q{
		DROP TABLE IF EXISTS deleted;
		CREATE TABLE deleted (i int, filler text);
		INSERT INTO deleted SELECT g, repeat('x', 300) FROM generate_series(1, 200) g});
	my ($node, $old, $admin) = standing_still($rule, sub {
		# a scan prunes pages that are full
		$primary->safe_psql('postgres', $_) for 'DELETE FROM deleted', 'SELECT count(*) FROM deleted';
	}, 'SELECT count(*) FROM deleted');
	my $seen = is_seen(sub { $old->value('SELECT count(*) FROM deleted') ne '200' });
	go_on($node, $old);
	remove($node, $admin);
	return $seen;
}

bites($_, \&old_rows_go, 'an old snapshot loses rows') for qw(removal seen conflict);

# Rows that were deleted before the snapshot are pruned ahead, but not in a page that a session has
# pinned. A record with an image of the page would wait for its turn.
set_and_reload($primary, 'full_page_writes' => 'off');
bites('pin', sub {
	my ($rule) = @_;
	$primary->safe_psql('postgres', $_) for q{
		DROP TABLE IF EXISTS deleted;
		CREATE TABLE deleted (i int, filler text);
		INSERT INTO deleted SELECT g, repeat('x', 300) FROM generate_series(1, 1000) g},
	  'DELETE FROM deleted WHERE i > 1', 'CHECKPOINT';
	my ($node, $old, $admin) = standing_still($rule, sub {
		$primary->safe_psql('postgres', 'SELECT count(*) FROM deleted');
	}, 'DECLARE pinning CURSOR FOR SELECT i FROM deleted', 'FETCH pinning');
	my $pages = sub {
		my ($from, $to) = @_;
		return "SELECT count(*) > 1 FROM generate_series($from, $to) page, "
		  . "heap_page_items(get_raw_page('deleted', page)) WHERE lp_flags = 3";
	};
	wait_until($admin, $pages->(1, 39), 'pages are pruned ahead');
	my $seen = is_seen(sub { $admin->value($pages->(0, 0)) eq 't' });
	go_on($node, $old);
	is($admin->value($pages->(0, 0)), 't', 'in the end all are');
	remove($node, $admin);
	return $seen;
}, 'a page is pruned that a session has pinned');
set_and_reload($primary, 'full_page_writes' => 'on');
$primary->safe_psql('postgres', 'CHECKPOINT');

# ---- Rule 4: the visibility map is cleared in the order of the WAL ----

# Vacuum logs an image of the map, with bits of pages that a later record clears.
bites('map_clear', sub {
	my ($rule) = @_;
	$primary->safe_psql('postgres', q{
		DROP TABLE IF EXISTS mapped;
		CREATE TABLE mapped (k int PRIMARY KEY, filler text) WITH (fillfactor = 50);
		INSERT INTO mapped SELECT g, repeat('x', 400) FROM generate_series(1, 1000) g});
	$primary->safe_psql('postgres', 'VACUUM mapped');
	$primary->safe_psql('postgres', $_) for 'UPDATE mapped SET filler = filler WHERE k > 500', 'CHECKPOINT';
	my ($node, $old, $admin) = standing_still($rule, sub {
		while_vacuumed('mapped', 510, sub {
			$primary->safe_psql('postgres', 'UPDATE mapped SET k = -k WHERE k = 1');
		});
	});
	is_seen(sub { $admin->value(q{SELECT NOT all_visible FROM pg_visibility_map('mapped', 0)}) eq 't' })
	  if $rule ne 'none';
	go_on($node, $old);
	my $seen = by_index($admin, 'SELECT count(*) FROM mapped') ne '1000';
	remove($node, $admin);
	return $seen;
}, 'an index-only scan finds a row twice', 17);

# With no such record on its way, what clears bits runs ahead. Sessions read what they would without it.
$primary->safe_psql('postgres', 'VACUUM mapped');
my ($ahead, $in_the_way, $reader) = standing_still('none', sub {
	$primary->safe_psql('postgres', $_) for 'UPDATE mapped SET k = k + 2000 WHERE k > 800',
	  'DELETE FROM mapped WHERE k BETWEEN 100 AND 120', 'SELECT FROM mapped FOR UPDATE';
});
wait_until($reader, q{SELECT count(*) > 5 FROM pg_visibility_map('mapped') WHERE NOT all_visible},
	'bits of a visibility map are cleared ahead of replay');
is(by_index($reader, 'SELECT count(*) FROM mapped'), 1000, 'an index-only scan finds what is replayed');
go_on($ahead, $in_the_way);
is(by_index($reader, 'SELECT count(*) FROM mapped'), 979, 'and then what was written');
is($reader->value(q{SELECT count(*) FROM pg_visibility_map('mapped')
	WHERE all_visible AND blkno IN (SELECT (ctid::text::point)[0]::int FROM mapped WHERE k > 2000)}), 0,
	'no page has a bit that was changed since');
remove($ahead, $reader);

# ---- Rule 7: a multixact is there before the tuples that name it ----

bites('multixact', sub {
	my ($rule) = @_;
	$primary->safe_psql('postgres', q{
		DROP TABLE IF EXISTS locked;
		CREATE TABLE locked (k int PRIMARY KEY, v int);
		INSERT INTO locked SELECT g, 0 FROM generate_series(1, 10) g});
	my ($node, $old, $admin) = standing_still($rule, sub {
		my $one = LockstepSession->new($primary);
		$one->query('BEGIN');
		$one->query('SELECT FROM locked FOR KEY SHARE');
		$primary->safe_psql('postgres', 'UPDATE locked SET v = 1');
		$one->query('COMMIT');
		$one->close;
	});
	my $seen = is_seen(sub { defined $admin->query('SELECT count(*) FROM locked')->{sqlstate} });
	go_on($node, $old);
	is($admin->value('SELECT sum(v) FROM locked'), 10, 'in the end rows can be read');
	remove($node, $admin);
	return $seen;
}, 'a session fails at a multixact that is not there yet');

# ---- Rule 9: the minimum recovery point is beyond all that runs ahead ----

bites('hot_point', sub {
	my ($rule) = @_;
	my ($node, $old, $admin) = standing_still($rule, sub {
		$primary->safe_psql('postgres', 'INSERT INTO much SELECT generate_series(1, 1000)');
	});
	my $seen = is_seen(sub { $admin->value(q{SELECT min_recovery_end_lsn < dispatched_until
		FROM pg_control_recovery(), lockstep_stat_replay_pipeline}) eq 't' });
	is($admin->value(q{SELECT min_recovery_end_lsn <= flushed_lsn
		FROM pg_control_recovery(), pg_stat_wal_receiver}), 't', 'it is never beyond what was received');
	go_on($node, $old);
	remove($node, $admin);
	return $seen;
}, 'records run ahead of the minimum recovery point');

# ---- Rule 11: nothing runs ahead of a place at which replay may stop ----

bites('delay', sub {
	my ($rule) = @_;
	my $node = standby_without($rule);
	set_and_reload($node, 'recovery_min_apply_delay' => '1h');
	my $admin = LockstepSession->new($node);
	wait_for_value($admin, 'SHOW recovery_min_apply_delay', '1h', 'replay is delayed');
	my $before = $admin->value('SELECT dispatched FROM lockstep_stat_replay_pipeline');
	my $writer = LockstepSession->new($primary);
	$writer->query('BEGIN');
	$writer->query('INSERT INTO much SELECT generate_series(1, 5000)');
	my $reached = $writer->value('SELECT pg_current_wal_insert_lsn()');
	$writer->query('COMMIT');
	$writer->close;
	$primary->safe_psql('postgres', 'INSERT INTO much SELECT generate_series(1, 5000)');
	wait_until($admin, "SELECT pg_last_wal_replay_lsn() >= '$reached'::pg_lsn - 1000", 'it comes to the commit');
	my $seen = $admin->value("SELECT dispatched > $before FROM lockstep_stat_replay_pipeline") eq 't';
	is($admin->value('SELECT parallel FROM lockstep_stat_replay_pipeline'),
		'no: recovery_min_apply_delay is set', 'which the view says') if $rule eq 'none';
	remove($node, $admin);
	return $seen;
}, 'records run ahead of a commit that is delayed');

bites('target', sub {
	my ($rule) = @_;
	my $node = PostgreSQL::Test::Cluster->new('standby' . ++$number);
	$primary->backup("b$number");
	init_from_own_backup($node, $primary, "b$number", has_streaming => 1);
	$primary->safe_psql('postgres', 'INSERT INTO much SELECT generate_series(1, 5000)');
	my $target = $primary->lsn('flush');
	$primary->safe_psql('postgres', 'INSERT INTO much SELECT generate_series(1, 5000)');
	my $breaks = $rule eq 'none' ? '' :
	  "dynamic_library_path = '$ENV{LOCKSTEP_BREAKABLE}:\$libdir'\nlockstep.broken_rule = $rule\n";
	$node->append_conf('postgresql.conf', "$hot${breaks}recovery_target_lsn = '$target'\n"
		. "recovery_target_action = promote\n");
	# without the rule pages may be newer than all WAL of the new timeline: its first checkpoint fails
	if (!$node->start(fail_ok => 1)
		|| !eval { $node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') })
	{
		die 'it is not promoted' if $rule eq 'none';
		$node->stop('immediate', fail_ok => 1);
		$node->clean_node;
		return 1;
	}
	my $seen = $node->safe_psql('postgres',
		"SELECT dispatched_until > '$target' FROM lockstep_stat_replay_pipeline") eq 't';
	remove($node);
	return $seen;
}, 'records beyond the target run ahead');

# That nothing runs ahead of a pause is PostgreSQL's doing: it stops before it calls us. Only the view is ours.
my $paused = standby_without('none');
$primary->safe_psql('postgres', $to_the_place[0]);
$primary->wait_for_catchup($paused, 'replay', $primary->lsn('flush'));
cmp_ok(pipeline($paused, 'dispatched'), '>', 1000, 'records run ahead');
$paused->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$primary->safe_psql('postgres', $_) for @to_the_place;
$primary->wait_for_catchup($paused, 'flush', $primary->lsn('flush'));
$paused->poll_query_until('postgres', q{SELECT pg_get_wal_replay_pause_state() = 'paused'}) or die;
is(pipeline($paused, 'parallel'), 'no: a pause is requested', 'in a pause the view says so');
$paused->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($paused, 'replay', $primary->lsn('flush'));
remove($paused);

# ---- Off, on, and too little to do ----

my $node = new_standby($primary, name => 'settings', conf => "$WORKERS");
is(pipeline($node, "parallel LIKE 'no: %'"), 't', 'in hot standby one process replays unless told otherwise');
set_and_reload($node, 'lockstep.replay_hot_standby' => 'on', 'lockstep.replay_min_backlog' => '512MB');
my $admin = LockstepSession->new($node);
wait_for_value($admin, 'SHOW lockstep.replay_min_backlog', '512MB', 'a large backlog is asked for');
$primary->safe_psql('postgres', $to_the_place[0]);
$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
wait_for_value($admin, 'SELECT parallel FROM lockstep_stat_replay_pipeline',
	'no: less than lockstep.replay_min_backlog of WAL is known to wait', 'with less one process replays');
my $before = $admin->value('SELECT dispatched FROM lockstep_stat_replay_pipeline');
set_and_reload($node, 'lockstep.replay_min_backlog' => '0');
wait_until(undef, sub {
	$primary->safe_psql('postgres', $to_the_place[0]);
	$admin->value("SELECT dispatched > $before FROM lockstep_stat_replay_pipeline") eq 't';
}, 'and with enough several');

# A reload sets what files say, also in the startup process.
set_and_reload($node, recovery_prefetch => 'on');
wait_for_value($admin, 'SHOW recovery_prefetch', 'on', q{PostgreSQL's prefetcher is configured});
for (1 .. 2)
{
	$primary->safe_psql('postgres', $to_the_place[0]);
	$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
}
# by how many helpers is chance: they have to wait for one another in this WAL
is($admin->value(q{SELECT prefetcher || ', ' || split_part(parallel, ':', 1) FROM lockstep_stat_replay_pipeline}), 'false, yes',
	'and stays off while records run ahead');

# Many records in a row.
sub dispatched_of
{
	my ($backlog, @stopped) = @_;
	set_and_reload($node, 'lockstep.replay_min_backlog' => $backlog);
	wait_for_value($admin, 'SHOW lockstep.replay_min_backlog', $backlog, "from a backlog of $backlog on");
	my $earlier = $admin->value('SELECT dispatched FROM lockstep_stat_replay_pipeline');
	$admin->value('SELECT pg_wal_replay_pause()');
	$primary->safe_psql('postgres', 'INSERT INTO much SELECT generate_series(1, 60000)');
	$primary->wait_for_catchup($node, 'flush', $primary->lsn('flush'));
	# How much helpers do is chance, but for one that stands still.
	kill 'STOP', @stopped;
	$admin->value('SELECT pg_wal_replay_resume()');
	$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
	kill 'CONT', @stopped;
	return $admin->value("SELECT dispatched - $earlier FROM lockstep_stat_replay_pipeline");
}
cmp_ok(dispatched_of('0'), '>', 50000, 'all is dispatched without a backlog to ask for');
my @helpers = map { $_->[0] }
  @{ $admin->query('SELECT pid FROM lockstep_stat_replay_workers WHERE pid IS NOT NULL')->{rows} };
my $few = dispatched_of('64kB', @helpers);
cmp_ok($few, '>', 0, 'some is');
cmp_ok($few, '<', 30000, 'until helpers are found to have too little to do');
set_and_reload($node, 'lockstep.replay_min_backlog' => '0');

set_and_reload($node, 'lockstep.enabled' => 'off');
wait_until(undef, sub {
	$primary->safe_psql('postgres', $to_the_place[0]);
	!defined worker_pid($node, 'lockstep replay helper');
}, 'switched off, no helper is left');
set_and_reload($node, 'lockstep.enabled' => 'on');
wait_until(undef, sub {
	$primary->safe_psql('postgres', $to_the_place[0]);
	defined worker_pid($node, 'lockstep replay helper');
}, 'and they come again');
$admin->close;
$node->stop;
$primary->stop;

done_testing();
