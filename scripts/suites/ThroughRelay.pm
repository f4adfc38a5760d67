
=head1 NAME

ThroughRelay - PostgreSQL's subscription tests with a relay before each publisher

=head1 DESCRIPTION

  perl -I ../perl -MThroughRelay t/001_rep_changes.pl

The test's own file is not changed. This module is loaded before it and wraps methods
of PostgreSQL::Test::Cluster. In every SQL text that a test runs through psql() or
poll_query_until(), C<CONNECTION '… port=N …'> with the port of a node becomes the
port of a relay, which listens in the same socket folder. The first such text starts
the relay: one for each publisher, as a DBA would, with an empty spool and no setting
but the three required ones, and a group if commits wait for it. Everything else goes to the
servers themselves. The relays end before the servers. If a relay ended earlier, the test has
failed. So it has if it takes more than four times PG_TEST_TIMEOUT_DEFAULT, since a commit that
waits for a synchronous standby has no deadline of its own.

=head1 WHAT IS ADAPTED

Tests also query the publisher, which does not know a relay's subscribers. Their results
are adapted here and nowhere else:

  what a test uses          what it gets instead                        needed by
  ------------------------  ------------------------------------------  -------------------
  pg_stat_replication       the view without the relay's own            all that call
                            walsenders, with the sessions that the      wait_for_catchup;
                            relay streams to (console: SHOW CLIENTS,    pids in 001 and 022
                            and SHOW SLOTS for their positions)
  pg_replication_slots      the view without the relay's own slots,     001, 004, 020, 021,
                            with its subscribers' slots (SHOW SLOTS)    022, 023, 026
  synchronous_standby_names the relay has a group for the publication   010
  = the subscription's name of that subscription, with its name as
                            application_name, as docs/relay.md says
  pg_drop_replication_slot  DROP SLOT in the console, if the slot is    026
                            the relay's
  init                      max_replication_slots and max_wal_senders   031, with more than
                            are 40: a relay needs a slot for each       ten publication lists
                            list of publications, and keeps it for a    in a minute
                            minute after its last subscriber
  stop                      a relay without subscribers' slots is       001, whose last
                            taken away first, and its own slots are     start has wal_level
                            dropped, as a DBA would who no longer       = minimal
                            needs it

In pg_stat_replication a relay's sessions have pid, application_name, state and positions;
in pg_replication_slots its slots have slot_name, slot_type, database, active, active_pid
and confirmed_flush_lsn. Their other columns are null.

=head1 ENVIRONMENT

LOCKSTEP_PROGRAM is the program. Each test adds a line to the file LOCKSTEP_RELAY_REPORT
with its name, "relays=N", "subscriptions=N" (commands whose CONNECTION was changed),
"streams=N" (streams that relays began) and "passed=N" (streams that they passed through).

=cut

package ThroughRelay;

use strict;
use warnings;

use File::Basename qw(basename);
use File::Path qw(make_path);
use IPC::Run;
use JSON::PP qw(encode_json);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More ();
use Time::HiRes qw(usleep);

my $OWN_SLOTS = q('^lockstep_');
my $VIEWS     = qr/\b(?:pg_catalog\.)?(pg_stat_replication|pg_replication_slots)\b/;
my $DROP_SLOT = qr/\bpg_drop_replication_slot\('(\w+)'\)/;

# Groups for which commits wait, by the test: the publication, and the name that the
# publisher waits for.
my %AWAITED = ('010_truncate' => [ 'pub1', 'sub1' ]);

my @nodes;
my @started;     # all relays
my %relay_of;    # the one that runs, by the publisher's port
my $subscriptions = 0;

my $longest = 4 * $PostgreSQL::Test::Utils::timeout_default;
$SIG{ALRM} = sub { die "timed out: the test takes longer than $longest s" };
alarm $longest;

# ---- Relays ----------------------------------------------------------------

sub tries { return 10 * $PostgreSQL::Test::Utils::timeout_default; }

sub start_relay
{
	my ($node) = @_;
	my $name   = $node->name . '_relay' . (@started ? scalar @started : '');
	my $folder = $node->basedir . "/$name";
	my $relay  = {
		node => $node,
		host => $node->host,
		port => PostgreSQL::Test::Cluster::get_free_port(),
		log  => "$PostgreSQL::Test::Utils::log_path/" . basename($0, '.pl') . "_$name.log" };

	make_path($folder);
	append_to_file("$folder/relay.toml", <<"TOML");
listen = "$relay->{host}:$relay->{port}"
primary = "host=$relay->{host} port=@{[ $node->port ]} dbname=postgres"
spool = "spool"
TOML
	my $awaited = $AWAITED{ basename($0, '.pl') };
	append_to_file("$folder/relay.toml", <<"TOML") if $awaited;
[[group]]
name = "awaited"
database = "postgres"
publications = ["$awaited->[0]"]
application_name = "$awaited->[1]"
TOML
	my $pid = fork() // die "cannot start a relay: $!";
	if (!$pid)
	{
		open(STDIN,  '<',  '/dev/null')   or POSIX::_exit(126);
		open(STDOUT, '>>', $relay->{log}) or POSIX::_exit(126);
		open(STDERR, '>&', \*STDOUT)      or POSIX::_exit(126);
		{ no warnings 'exec'; exec $ENV{LOCKSTEP_PROGRAM}, 'relay', '--config', "$folder/relay.toml"; }
		POSIX::_exit(127);
	}
	$relay->{pid} = $pid;
	push @started, $relay;
	$relay_of{ $node->port } = $relay;
	tables($relay, tries()) or die "the relay does not answer: see $relay->{log}";
	# A slot that is made before its group is passed through until it has caught up.
	for (my $left = tries(); $awaited; $left--)
	{
		last if (console($relay, 1, 'SHOW UPSTREAM') // '') =~ /^awaited\|.*\|streaming\|/m;
		die "the relay's group does not stream: see $relay->{log}" if $left <= 0;
		usleep(100_000);
	}
	return $relay;
}

# Ends a relay; false if it had ended by itself.
sub end_relay
{
	my ($relay) = @_;
	my $pid = delete $relay->{pid} // return 1;

	delete $relay_of{ $relay->{node}->port };
	return 0 if waitpid($pid, POSIX::WNOHANG()) != 0;
	kill 'TERM', $pid;
	for (1 .. 300)
	{
		return 1 if waitpid($pid, POSIX::WNOHANG()) != 0;
		usleep(100_000);
	}
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return 0;
}

# ---- What relays know ------------------------------------------------------

# Runs commands in the console, whose logins need the publisher; returns what psql
# prints, or undef.
sub console
{
	my ($relay, $tries, @commands) = @_;
	my @psql = (
		'psql', '-XqA', '-P', 'footer=off', '-v', 'ON_ERROR_STOP=1', '-d',
		"host=$relay->{host} port=$relay->{port} dbname=lockstep",
		map { ('-c', $_) } @commands);

	while (1)
	{
		my ($out, $err) = ('', '');
		return $out if IPC::Run::run(\@psql, '<', \'', '>', \$out, '2>', \$err);
		if (--$tries <= 0)
		{
			print "# console of the relay: $err";
			return;
		}
		usleep(100_000);
	}
}

# Sessions and slots of a relay, as two lists of hashes, or nothing.
sub tables
{
	my ($relay, $tries) = @_;
	my $out = console($relay, $tries, 'SHOW CLIENTS', '\echo', 'SHOW SLOTS') // return;

	return map {
		my ($names, @rows) = split /\n/;
		my @names = split /\|/, $names;
		[ map { my %row; @row{@names} = split /\|/, $_, -1; \%row } @rows ]
	} split /\n\n/, $out;
}

# A view of the publisher with a relay's rows: a subquery under the view's name. Columns
# that a relay does not know are null.
sub view
{
	my ($name, $clients, $slots) = @_;
	my ($own, @rows);

	if ($name eq 'pg_replication_slots')
	{
		$own  = "slot_name ~ $OWN_SLOTS";
		@rows = map {
			+{
				slot_name           => $_->{name},
				slot_type           => 'logical',
				database            => $_->{database},
				active              => $_->{active_pid} ne '' ? 'true' : 'false',
				active_pid          => $_->{active_pid},
				confirmed_flush_lsn => $_->{confirmed_lsn}
			}
		} @$slots;
	}
	else
	{
		my %slot = map { $_->{name} => $_ } @$slots;
		$own  = "pid IN (SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name ~ $OWN_SLOTS)";
		@rows = map {
			my $slot = $slot{ $_->{slot} };
			+{
				pid              => $_->{pid},
				application_name => $_->{application_name},
				state            => 'streaming',
				sent_lsn         => $slot->{sent_lsn},
				write_lsn        => $slot->{written_lsn},
				flush_lsn        => $slot->{confirmed_lsn},
				replay_lsn       => $slot->{applied_lsn}
			}
		} grep { $_->{state} eq 'streaming' } @$clients;
	}
	for my $row (@rows)
	{
		for my $column (keys %$row)
		{
			delete $row->{$column} unless defined $row->{$column} && $row->{$column} ne '';
		}
	}
	my $rows = encode_json(\@rows) =~ s/'/''/gr;
	return "(SELECT * FROM pg_catalog.$name WHERE ($own) IS NOT TRUE UNION ALL "
	  . "SELECT * FROM jsonb_populate_recordset(NULL::pg_catalog.$name, '$rows')) $name";
}

# ---- SQL -------------------------------------------------------------------

# A conninfo, quoted, that leads to a node's relay instead of the node.
sub redirected
{
	my ($conninfo) = @_;
	my ($port) = $conninfo =~ /\bport=(\d+)\b/ or return $conninfo;
	my ($node) = grep { $_->port == $port } @nodes or return $conninfo;
	my $relay = $relay_of{$port} // start_relay($node);

	$subscriptions++;
	return $conninfo =~ s/\bport=\d+\b/port=$relay->{port}/r;
}

# The text to run on a node instead, or undef if its relay does not answer so often.
sub adapted
{
	my ($node, $sql, $tries) = @_;

	$sql =~ s/\b(CONNECTION\s+)('(?:[^']|'')*'|\$\$.*?\$\$)/$1 . redirected($2)/gise;
	my $relay = $relay_of{ $node->port } // return $sql;
	return $sql unless $sql =~ $VIEWS || $sql =~ $DROP_SLOT;

	my ($clients, $slots) = tables($relay, $tries) or return;
	$sql =~ s/$VIEWS/view($1, $clients, $slots)/ge;
	for my $slot (map { $_->{name} } @$slots)
	{
		next unless $sql =~ s/\bpg_drop_replication_slot\('\Q$slot\E'\)/''/;
		console($relay, 1, "DROP SLOT $slot") // die "the relay did not drop slot $slot";
	}
	return $sql;
}

# ---- Methods of PostgreSQL::Test::Cluster ----------------------------------

sub wrap
{
	my ($method, $instead) = @_;
	no strict 'refs';
	no warnings 'redefine';
	my $name     = "PostgreSQL::Test::Cluster::$method";
	my $original = \&$name;
	*$name = sub { return $instead->($original, @_); };
	return;
}

wrap(
	new => sub {
		my ($original, @arguments) = @_;
		my $node = $original->(@arguments);
		push @nodes, $node;
		return $node;
	});

wrap(
	init => sub {
		my ($original, $node, %params) = @_;
		$original->($node, %params);
		$node->append_conf('postgresql.conf', "max_replication_slots = 40\nmax_wal_senders = 40")
		  if $params{allows_streaming};
		return;
	});

wrap(
	psql => sub {
		my ($original, $node, $dbname, $sql, @params) = @_;
		my $instead = adapted($node, $sql, tries())
		  // die 'the relay of ' . $node->name . ' does not answer';
		return $original->($node, $dbname, $instead, @params);
	});

# A view is created again for every attempt.
wrap(
	poll_query_until => sub {
		my ($original, $node, $dbname, $sql, $expected) = @_;
		return $original->($node, $dbname, $sql, $expected)
		  unless $relay_of{ $node->port } && $sql =~ $VIEWS;

		my ($instead, $out, $err) = ('', '', '');
		for (1 .. tries())
		{
			$instead = adapted($node, $sql, 1);
			if (defined $instead)
			{
				local %ENV = $node->_get_env();
				IPC::Run::run([ 'psql', '-XAt', '-d', $node->connstr($dbname) ],
					'<', \$instead, '>', \$out, '2>', \$err);
				chomp($out, $err);
				return 1 if $out eq ($expected // 't') && $err eq '';
			}
			usleep(100_000);
		}
		$instead //= $sql;
		Test::More::diag("never so: $instead\nlast answer: $out\nlast error: $err");
		return 0;
	});

wrap(
	stop => sub {
		my ($original, $node, $mode, @params) = @_;
		my $relay = $relay_of{ $node->port };
		if ($relay && ($mode // 'fast') ne 'immediate' && defined $node->{_pid})
		{
			my $left = $node->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots');
			if ($left == 0)
			{
				end_relay($relay) or die "the relay did not end as it should: see $relay->{log}";
				$node->poll_query_until('postgres',
					"SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name ~ $OWN_SLOTS AND active")
				  or die 'the relay has ended, but its slots are still in use';
				$node->safe_psql('postgres',
					"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ $OWN_SLOTS");
			}
		}
		return $original->($node, $mode, @params);
	});

# This runs before the END of PostgreSQL::Test::Cluster, which stops the servers.
END
{
	my $status  = $?;
	my $streams = 0;
	my $passed  = 0;

	alarm 0;
	for my $relay (@started)
	{
		if (!end_relay($relay))
		{
			Test::More::diag("a relay ended by itself, or not within 30 s: see $relay->{log}");
			$status ||= 1;
		}
		my $log = -e $relay->{log} ? slurp_file($relay->{log}) : '';
		$streams += () = $log =~ /streaming begins/g;
		$passed  += () = $log =~ /passed through to the primary/g;
	}
	append_to_file(
		$ENV{LOCKSTEP_RELAY_REPORT},
		't/' . basename($0) . ' relays=' . @started
		  . " subscriptions=$subscriptions streams=$streams passed=$passed\n")
	  if $ENV{LOCKSTEP_RELAY_REPORT};
	$? = $status;
}

1;
