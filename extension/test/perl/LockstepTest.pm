
=head1 NAME

LockstepTest - what the TAP tests of the extension share

=head1 DESCRIPTION

A primary with a streaming standby, both with lockstep preloaded, the roles
that sessions use, queries of known weight, and waits for events.

=cut

package LockstepTest;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use LockstepCluster;
use LockstepSession;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  $HEAVY $FOREVER $AT_GATE
  new_primary new_standby primary_and_standby catch_up short_lsn
  wait_until wait_for_value waits_at_gate comes_to_wait waits_for_lsn gate_holds
  succeeds refused
  set_and_reload is_low nice_of policy_of stat_field worker_pid controller_pid
);

# Well over the CPU time from which a session counts as heavy (weight.c).
our $HEAVY = 'SELECT sum(i) FROM generate_series(1, 200000) i';

# Uses CPU until it is cancelled, in one statement: neither a wait event nor a
# row to the client, and no memory that grows.
our $FOREVER =
  'SELECT sum(i) FROM (SELECT generate_series(1, 1000000000000) AS i) s';

our $AT_GATE = 'LockstepReadThrottle';

use constant POLL_US => 20_000;
# Looks at a query after which it counts as one that has passed the gate.
use constant LOOKS_UNTIL_PASSED => 100;

# ---- Servers ----

# Parameters: name, conf (added to the settings), create_extension (default 1).
# Roles: app is an ordinary reader, monitor and replicator are exempt ones, and
# stranger may read nothing.
sub new_primary
{
	my (%param) = @_;
	my $node = PostgreSQL::Test::Cluster->new($param{name} // 'primary');
	$node->init(allows_streaming => 1);
	# Cluster.pm allows 10 connections, and what it logs would weigh on light
	# sessions; what is not flushed at commit should not keep a test waiting; no
	# standby has a slot
	$node->append_conf('postgresql.conf', qq{
max_connections = 40
log_statement = none
autovacuum = off
jit = off
wal_writer_delay = 10ms
wal_keep_size = 1GB
} . ($param{conf} // ''));
	$node->start;
	$node->safe_psql('postgres', q{
		CREATE ROLE app LOGIN;
		CREATE ROLE stranger LOGIN;
		CREATE ROLE monitor LOGIN;
		CREATE ROLE replicator LOGIN REPLICATION;
		GRANT pg_read_all_data TO app, monitor, replicator;
		GRANT pg_monitor TO monitor;
		CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) i});
	$node->safe_psql('postgres', 'CREATE EXTENSION lockstep')
	  if $param{create_extension} // 1;
	return $node;
}

# Parameters: name, conf.
sub new_standby
{
	my ($primary, %param) = @_;
	my $name = $param{name} // 'standby';
	my $node = PostgreSQL::Test::Cluster->new($name);
	$primary->backup("for_$name");
	init_from_own_backup($node, $primary, "for_$name", has_streaming => 1);
	$node->append_conf('postgresql.conf', $param{conf}) if defined $param{conf};
	$node->start;
	return $node;
}

# conf is the standby's; a superuser's session on each comes along.
sub primary_and_standby
{
	my (%param) = @_;
	my $primary = new_primary;
	my $standby = new_standby($primary, %param);
	return ($primary, $standby, LockstepSession->new($primary), LockstepSession->new($standby));
}

# Returns once the standby shows everything that the primary has committed.
sub catch_up
{
	my ($on_primary, $on_standby) = @_;
	my $lsn = $on_primary->value('SELECT pg_current_wal_flush_lsn()');
	return wait_until($on_standby,
		"SELECT pg_last_wal_replay_lsn() >= '$lsn'", "standby has replayed $lsn");
}

sub set_and_reload
{
	my ($node, %setting) = @_;
	$node->append_conf('postgresql.conf', join "\n",
		map { "$_ = '$setting{$_}'" } sort keys %setting);
	$node->reload;
	return;
}

# An LSN as servers before 19 print it, without leading zeros in its lower half.
sub short_lsn { return $_[0] =~ s{/0{1,7}(?=[0-9A-F])}{/}r; }

# ---- Waiting ----

# True once the condition is. The condition is asked a number of times rather
# than for a time, so that no test fails because a machine stands still for long.
sub becomes_true
{
	my ($condition) = @_;
	for (1 .. $PostgreSQL::Test::Utils::timeout_default * 1_000_000 / POLL_US)
	{
		return 1 if $condition->();
		usleep(POLL_US);
	}
	return 0;
}

# A test that passes once the query's value is the expected one.
sub wait_for_value
{
	my ($session, $sql, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $value;

	return pass($name)
	  if becomes_true(sub { $value = $session->value($sql) // ''; $value eq $expected });
	diag("waited in vain: $sql\nshould be '$expected', is '$value'");
	return fail($name);
}

# The condition is SQL, or a piece of Perl.
sub wait_until
{
	my ($session, $condition, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_for_value($session, $condition, 't', $name) unless ref $condition;
	return ok(becomes_true($condition), $name);
}

# The wait event's type is LWLock before 17 and Extension since, so only its
# name is looked at. A waiter must hold no snapshot.
sub waits_at_gate
{
	my ($admin, $session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($admin, qq{
		SELECT wait_event = '$AT_GATE' AND backend_xmin IS NULL AND state = 'active'
		FROM pg_stat_activity WHERE pid = } . $session->pid, $name);
}

# For when the controller may not yet have closed the gate, or has not yet taken away a place that it had added
# for a session at rest: a session that passes tries again. A query that has passed and does not end is cancelled.
sub comes_to_wait
{
	my ($admin, $session, $sql, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $looks = 0;
	return wait_until($admin,
		sub {
			$session->send($sql) unless $session->busy;
			my $event = $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $session->pid);
			return 1 if defined $event && $event eq $AT_GATE;
			if (++$looks % LOOKS_UNTIL_PASSED == 0 && $session->busy)
			{
				$session->cancel;
				$session->result;
			}
			return 0;
		},
		$name);
}

# SET lockstep.wait_for_lsn was sent, and waits. It must hold no snapshot.
sub waits_for_lsn
{
	my ($admin, $session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($admin, qq{
		SELECT wait_event = 'LockstepWaitForLsn' AND backend_xmin IS NULL AND state = 'active'
		FROM pg_stat_activity WHERE pid = } . $session->pid, $name);
}

sub gate_holds
{
	my ($admin, $running, $waiting, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_for_value($admin,
		q{SELECT running || ' running, ' || waiting || ' waiting' FROM lockstep_stat_throttle},
		"$running running, $waiting waiting", $name);
}

# The answer is no error.
sub succeeds
{
	my ($reply, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($reply->{sqlstate} // 'success', 'success', $name) || diag($reply->{message});
}

# The answer is an error with that SQLSTATE and a message like that.
sub refused
{
	my ($reply, $sqlstate, $message, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($reply->{sqlstate} // 'success', $sqlstate, "$name: SQLSTATE")
	  & like($reply->{message} // '', $message, "$name: message");
}

# ---- What the kernel says of a process ----

# The nice value of its scheduling group, 'unknown' if there is none to be read.
sub nice_of
{
	my ($pid) = @_;
	open my $fh, '<', "/proc/$pid/autogroup" or return 'unknown';
	my $line = <$fh> // '';
	close $fh;
	return $line =~ /nice (-?\d+)/ ? $1 : 'unknown';
}

# One of the fields that proc(5) numbers, from the 3rd on: the 2nd, the program's
# name, may hold blanks. 'unknown' for a process that is gone.
sub stat_field
{
	my ($pid, $number) = @_;
	open my $fh, '<', "/proc/$pid/stat" or return 'unknown';
	my $line = <$fh> // '';
	close $fh;
	$line =~ s/^.*\) // or return 'unknown';
	return (split ' ', $line)[ $number - 3 ];
}

# The process's scheduling policy: 0 normal, 5 SCHED_IDLE.
sub policy_of
{
	my ($pid) = @_;
	return stat_field($pid, 41);
}

# Is it at low priority, by the method that the standby says it uses?
sub is_low
{
	my ($method, $pid) = @_;
	return $method eq 'autogroup' ? nice_of($pid) eq '19' : policy_of($pid) eq '5';
}

# Our workers have no row in pg_stat_activity; the title names them. undef if this
# server has none of that name.
sub worker_pid
{
	my ($node, $name) = @_;
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	for my $dir (glob '/proc/[0-9]*')
	{
		my ($pid) = $dir =~ /(\d+)$/;
		next unless stat_field($pid, 4) eq $postmaster;
		open my $fh, '<', "$dir/cmdline" or next;
		my $title = <$fh> // '';
		close $fh;
		return $pid if $title =~ /$name/;
	}
	return;
}

sub controller_pid { return worker_pid($_[0], 'lockstep controller'); }

1;
