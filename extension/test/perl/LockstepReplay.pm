
=head1 NAME

LockstepReplay - what the TAP tests of parallel replay share

=head1 DESCRIPTION

Copies of a server's data that recover with and without helpers, and their comparison, file by
file. Hot standbys that stand still while helpers execute what comes after.

=cut

package LockstepReplay;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Compare;
use File::Copy;
use File::Find;
use IPC::Run;
use LockstepCluster;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  $WORKERS $READING $HOT
  keep_data keep_wal crashed copy_of recovered pipeline
  hot_primary mixed_load write_much pause_replay work_for_helpers executed stands_still sums same_rows
  files_of differing differing_files overwrite without_checksums
);

# Until recovery is consistent, on any major. Without a backlog that is asked for helpers never rest, on busy
# machines neither.
our $WORKERS = "lockstep.replay_workers = 2\nlockstep.replay_min_backlog = 0\nlockstep.replay_hot_standby = off\n";

# Helpers also read WAL.
our $READING = "${WORKERS}lockstep.replay_read_helpers = on\n";

# Records run ahead in hot standby.
our $HOT = "${WORKERS}lockstep.replay_hot_standby = on\n"
  . "max_standby_streaming_delay = -1\nmax_standby_archive_delay = -1\nautovacuum = off\n";

my $number = 0;

# ---- Copies ----

# The data as they are now, which should be when no session writes.
sub keep_data
{
	my ($node, $name) = @_;
	my $kept = $node->backup_dir . "/$name";
	copy_folder($node->data_dir, $kept);
	unlink "$kept/postmaster.pid", "$kept/postmaster.opts";
	return;
}

# Data that were kept earlier get all WAL that the server has by now.
sub keep_wal
{
	my ($node, $name) = @_;
	my $wal = $node->backup_dir . "/$name/pg_wal";
	unlink glob "$wal/[0-9A-F]*";
	for my $file (glob $node->data_dir . '/pg_wal/[0-9A-F]*')
	{
		copy($file, $wal) or die "$file: $!";
	}
	return;
}

# The data as a kill leaves them.
sub crashed
{
	my ($node, $name) = @_;
	$node->stop('immediate') if defined $node->{_pid};
	keep_data($node, $name);
	return;
}

# A server on a copy of these data, not yet started.
sub copy_of
{
	my ($node, $name, $conf) = @_;
	my $copy = PostgreSQL::Test::Cluster->new('copy' . ++$number);
	{
		no warnings 'redefine';
		local *PostgreSQL::Test::RecursiveCopy::copypath = \&link_segments;
		$copy->init_from_backup($node, $name);
	}
	$copy->append_conf('postgresql.conf', "autovacuum = off\nwal_recycle = off\n$conf");
	return $copy;
}

sub recovered
{
	my ($node, $name, $conf) = @_;
	my $copy = copy_of($node, $name, $conf);
	$copy->start;
	return $copy;
}

# Columns of the view, of a server that takes sessions.
sub pipeline
{
	my ($node, $column, $database) = @_;
	return $node->safe_psql($database // 'postgres', "SELECT $column FROM lockstep_stat_replay_pipeline");
}

# ---- Hot standbys ----

# A primary whose standbys can be made to stand still, with small segments of WAL. Without checksums: an
# image of a free space map is a barrier, and would keep records from running ahead where a test wants
# them to. What is given beside conf is for init.
sub hot_primary
{
	my ($name, $conf, %init) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my @without = without_checksums($node);
	$node->init(allows_streaming => 1, %init,
		extra => [ '--wal-segsize=1', @without ? @{ $without[1] } : () ]);
	$node->append_conf('postgresql.conf', "wal_log_hints = off\nautovacuum = off\nmax_connections = 40\n"
		. "wal_keep_size = 1GB\ncheckpoint_timeout = 1h\nmax_wal_size = 10GB\nlog_statement = none\n"
		. ($conf // ''));
	$node->start;
	$node->safe_psql('postgres', q{
		CREATE EXTENSION lockstep;
		CREATE TABLE often (i int, filler text);
		CREATE TABLE much (i int);
		CREATE TABLE mixed (id int PRIMARY KEY, k int, v text) WITH (fillfactor = 70);
		CREATE INDEX ON mixed (k);
		CREATE SEQUENCE ids START 10001;
		INSERT INTO often VALUES (1, '');
		INSERT INTO mixed SELECT g, g % 97, repeat('x', 100) FROM generate_series(1, 3000) g});
	return $node;
}

# A pgbench with two sessions, each of which writes to mixed in that many transactions.
sub mixed_load
{
	my ($node, $count) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/mixed.sql';
	append_to_file($script, q{\set i random(1, 3000)
\set j random(1, 3000)
BEGIN;
UPDATE mixed SET k = k + 1, v = left(v || 'y', 150) WHERE id = :i;
SAVEPOINT s;
DELETE FROM mixed WHERE id = :j;
INSERT INTO mixed VALUES (nextval('ids'), :i, repeat('n', :j % 200));
ROLLBACK TO s;
INSERT INTO mixed VALUES (nextval('ids'), :j, 'new');
COMMIT;
});
	return IPC::Run::start([ 'pgbench', '-n', '-c', 2, '-t', $count, '--max-tries', 100, '-f', $script,
		$node->connstr('postgres') ], '>', \my $out, '2>', \my $err);
}

# Records that helpers have executed. Asked by a session or, without one, of a server.
sub executed
{
	my ($node) = @_;
	my $sql = 'SELECT coalesce(sum(records), 0) FROM lockstep_stat_replay_workers';
	return $node->isa('LockstepSession') ? $node->value($sql) : $node->safe_psql('postgres', $sql);
}

# Pauses replay that waits for WAL, before more WAL comes. When it is resumed it asks how far it may read.
# Replay that a first piece of WAL has woken would first read as far as that piece, and nothing runs
# ahead beyond what PostgreSQL can read.
sub pause_replay
{
	my ($admin) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$admin->value('SELECT pg_wal_replay_pause()');
	return wait_for_value($admin, 'SELECT pg_get_wal_replay_pause_state()', 'paused', 'replay is paused');
}

# While something writes to the primary: lets WAL pile up, until helpers have executed some of it.
sub work_for_helpers
{
	my ($node, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $admin = LockstepSession->new($node);
	my $before = executed($admin);
	my $result = wait_until($admin, sub {
		# a standby that is paused does not begin to receive
		return 0 if $admin->value('SELECT pg_last_wal_receive_lsn() IS NULL') eq 't';
		$admin->value('SELECT pg_wal_replay_pause()');
		return 0 unless wait_for_lag($admin);
		$admin->value('SELECT pg_wal_replay_resume()');
		return executed($admin) > $before;
	}, $name);
	$admin->close;
	return $result;
}

sub wait_for_lag
{
	my ($admin) = @_;
	for (1 .. 1000)
	{
		return 1
		  if $admin->value('SELECT pg_last_wal_receive_lsn() - pg_last_wal_replay_lsn() > 1000000') eq 't';
		select undef, undef, undef, 0.02;
	}
	return 0;
}

# A page that is updated again and again is pruned.
my $UPDATES = q{DO $$ BEGIN FOR n IN 1 .. 60 LOOP
	UPDATE often SET filler = repeat('x', 200 + n); COMMIT; END LOOP; END $$};

# Seconds in a pause after which the minimum recovery point may be raised five times at once: raises by less
# than 512 kB are spaced (raise_rule.c), a pause has none, and without one nothing runs ahead. What commits
# before the pause have left of the five may not do: WAL in two segments needs two for each.
my $ALL_RAISES = 0.4;

# Replay of the standby stands where it would remove what an old snapshot sees, or whatever a session
# with those statements keeps it from, and helpers execute what comes after. Returns the session and another.
# Parameters, all with defaults: holds, place (a function that writes on the primary what replay stands at),
# event (of the startup process), after (a function that writes more).
sub stands_still
{
	my ($primary, $node, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# what is logged once after a checkpoint is no barrier then
	$primary->safe_psql('postgres', $UPDATES);
	$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
	my $old = LockstepSession->new($node);
	$old->query($_)
	  for @{ $how{holds} // [ 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM often' ] };
	my $admin = LockstepSession->new($node);
	my $before = executed($admin);
	pause_replay($admin);
	write_much($primary, 5000);
	$how{place} ? $how{place}->() : $primary->safe_psql('postgres', $UPDATES);
	write_much($primary, 100);
	$how{after} ? $how{after}->() : write_much($primary, 2000);
	$primary->wait_for_catchup($node, 'flush', $primary->lsn('flush'));
	select undef, undef, undef, $ALL_RAISES;
	$admin->value('SELECT pg_wal_replay_resume()');
	my $event = $how{event} // 'RecoveryConflictSnapshot';
	wait_until($admin, qq{SELECT wait_event = '$event' AND dispatched_until > pg_last_wal_replay_lsn()
			AND wal_distance >= dispatched_until - pg_last_wal_replay_lsn() AND record_distance > 0
		FROM pg_stat_activity, lockstep_stat_replay_pipeline WHERE backend_type = 'startup'},
		$node->name . ' stands still, and records run ahead')
	  && wait_until($admin, "SELECT sum(records) > $before FROM lockstep_stat_replay_workers",
		'helpers execute some')
	  || say_how_it_replays($primary, $node);
	return ($old, $admin);
}

# What a test shows that has waited in vain: what replay does, and what could keep the primary from
# writing what was expected.
sub say_how_it_replays
{
	my ($primary, $node) = @_;
	diag($node->safe_psql('postgres', q{
		SELECT 'startup waits for ' || coalesce(wait_event, 'nothing') || ', replayed until ' ||
			pg_last_wal_replay_lsn() || ' of ' || pg_last_wal_receive_lsn() || ', pause ' ||
			pg_get_wal_replay_pause_state() || ': ' || p::text
		FROM pg_stat_activity, lockstep_stat_replay_pipeline p WHERE backend_type = 'startup'}));
	diag($_->name . ': ' . $_->safe_psql('postgres', q{
		SELECT string_agg(concat_ws(' ', pid, application_name, state, backend_xid, backend_xmin,
			wait_event, query), '; ')
		FROM pg_stat_activity WHERE backend_type = 'client backend'})) for $primary, $node;
	return;
}

sub write_much
{
	my ($node, $rows) = @_;
	$node->safe_psql('postgres', "INSERT INTO much SELECT generate_series(1, $rows)");
	return;
}

sub sums
{
	my ($node) = @_;
	return $node->safe_psql('postgres', q{
		SELECT (SELECT md5(string_agg(o::text, ',' ORDER BY i)) FROM often o),
			(SELECT count(*) || ' ' || coalesce(sum(i), 0) FROM much),
			(SELECT md5(string_agg(m::text, ',' ORDER BY id)) FROM mixed m)});
}

# A test that passes once the standby has replayed all and shows the other server's rows.
sub same_rows
{
	my ($primary, $node, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
	return is(sums($node), sums($primary), $name);
}

# ---- Comparison of stopped servers ----

# Main forks of the tables, indexes and sequences of a server that runs.
sub files_of
{
	my ($node) = @_;
	return split /\n/, $node->safe_psql('postgres', q{
		SELECT pg_relation_filepath(oid) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')});
}

# The files that differ between two servers.
sub differing
{
	my ($one, $other, @files) = @_;
	return join ' ', grep { compare($one->data_dir . "/$_", $other->data_dir . "/$_") != 0 } @files;
}

# All forks of all relations, but of the databases in which sessions have set hint bits.
sub forks
{
	my ($node, @but) = @_;
	my %but = map { $_ => 1 } @but;
	my @forks;
	find({ no_chdir => 1, wanted => sub {
		my $file = substr $File::Find::name, 1 + length $node->data_dir;
		my ($database) = $file =~ m{(?:^base|/PG_[^/]*)/(\d+)/};
		push @forks, $file
		  if defined $database && !$but{$database} && $file =~ m{/\d+(?:_\w+)?(?:\.\d+)?$};
	} }, map { $node->data_dir . "/$_" } qw(base pg_tblspc));
	return @forks;
}

# Names of all forks that differ, or that only one of the servers has.
sub differing_files
{
	my ($one, $other, @but) = @_;
	my %files = map { $_ => 1 } forks($one, @but), forks($other, @but);
	return join ' ', grep { !same_file($_, $one, $other) } sort keys %files;
}

sub same_file
{
	my ($file, @nodes) = @_;
	my ($one, $other) = map { $_->data_dir . "/$file" } @nodes;
	return -e $one && -e $other && compare($one, $other) == 0;
}

# ---- Damage ----

# Parameters of init. From 18 on a cluster has checksums unless it is told otherwise.
sub without_checksums
{
	my ($node) = @_;
	return $node->pg_version >= 18 ? (extra => ['--no-data-checksums']) : ();
}

# Writes this over a file.
sub overwrite
{
	my ($path, $offset, $bytes) = @_;
	open my $file, '+<', $path or die "$path: $!";
	binmode $file;
	seek $file, $offset, 0 or die $!;
	print $file $bytes;
	close $file or die $!;
	return;
}

1;
