# Output plugin lockstep: byte for byte what pgoutput writes, in batches; alone
# it serves any subscriber.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Preloading is not needed: only the library must be there.
my $node = PostgreSQL::Test::Cluster->new('publisher');
$node->init(allows_streaming => 'logical');
$node->append_conf('postgresql.conf', q{
shared_preload_libraries = ''
max_prepared_transactions = 10
logical_decoding_work_mem = 64kB
wal_level = logical
autovacuum = off
});
# Recent minors want each output plugin named (15.20, 17.11, 18.6).
my ($known) = run_command([ 'postgres', '--describe-config' ]);
my $must_be_named = $known =~ /^output_plugin_libraries\t/m;
$node->append_conf('postgresql.conf', q{output_plugin_libraries = 'pgoutput, lockstep'})
  if $must_be_named;
$node->start;

$node->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE other (id int PRIMARY KEY);
	CREATE PUBLICATION p FOR TABLE t, other;
	SELECT pg_create_logical_replication_slot('plain', 'pgoutput', false, true);
	SELECT pg_create_logical_replication_slot('batched', 'lockstep', false, true);
});

# ---- Unpacking ----

# One batch into [lsn, time, message]s.
sub unpack_batch
{
	my ($bytes) = @_;
	my ($kind, $count) = unpack('a N', $bytes);
	my @entries;
	my $at = 5;
	die "not a batch: $kind" unless $kind eq 'B';
	for (1 .. $count)
	{
		my ($lsn, $time, $length) = unpack('Q> q> N', substr($bytes, $at, 20));
		push @entries, [ $lsn, $time, substr($bytes, $at + 20, $length) ];
		$at += 20 + $length;
	}
	return ($at, @entries);
}

# Rows of an SQL function as [lsn, message].
sub changes
{
	my ($slot, @options) = @_;
	my $options = join '', map { ", '$_'" } 'publication_names', 'p', @options;
	my $rows = $node->safe_psql('postgres', qq{
		SELECT (lsn - '0/0') || ' ' || encode(data, 'hex')
		FROM pg_logical_slot_peek_binary_changes('$slot', NULL, NULL$options)});
	return map { my ($lsn, $hex) = split / /; [ $lsn, pack 'H*', $hex ] } split /\n/, $rows;
}

sub unpacked
{
	my @entries;
	for my $row (@_)
	{
		my ($length, @more) = unpack_batch($row->[1]);
		is($length, length $row->[1], 'a batch fills its row') if $length != length $row->[1];
		push @entries, @more;
	}
	return @entries;
}

sub same_messages
{
	my ($name, $batched, $plain) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $join = sub { join ' ', map { unpack 'H*', $_ } @_ };
	cmp_ok(scalar @$plain, '>', 0, "$name: there are messages");
	is($join->(map { $_->[2] } @$batched), $join->(map { $_->[1] } @$plain),
		"$name: the same messages");
	my @positions = map { [ $_->[0], $batched->[$_->[2]][0] ] }
	  map { [ $plain->[$_][0], $plain->[$_][1], $_ ] } 0 .. $#$plain;
	my @wrong = grep { $_->[1] != 0 && $_->[0] != $_->[1] } @positions;
	is(scalar @wrong, 0, "$name: the same positions");
	cmp_ok(scalar(grep { $_->[1] != 0 } @positions), '>', 0, "$name: positions are kept");
	return;
}

# ---- Every kind of message, through SQL ----

$node->safe_psql('postgres', $_)
  for (
	q{INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 100) g},
	q{UPDATE t SET v = v || '!' WHERE id <= 10},
	q{DELETE FROM t WHERE id > 90},
	q{INSERT INTO t VALUES (200, repeat('x', 300000))},
	q{TRUNCATE other},
	q{SELECT pg_logical_emit_message(true, 'in', 'transactional')},
	q{SELECT pg_logical_emit_message(false, 'out', 'not transactional')},
	q{BEGIN; INSERT INTO t VALUES (300, 'p'); PREPARE TRANSACTION 'one'},
	q{BEGIN; INSERT INTO t VALUES (301, 'q'); PREPARE TRANSACTION 'two'},
	q{COMMIT PREPARED 'one'},
	q{ROLLBACK PREPARED 'two'},
	q{BEGIN; INSERT INTO t SELECT g, repeat('y', 200) FROM generate_series(1000, 3000) g;
	  SAVEPOINT s; INSERT INTO t SELECT g, repeat('z', 200) FROM generate_series(4000, 6000) g;
	  ROLLBACK TO s; INSERT INTO t SELECT g, 'w' FROM generate_series(7000, 7100) g; COMMIT});

my @options = ('messages', 'on');
my @all = (
	[ 'protocol 1', 'proto_version', 1, @options ],
	[ 'protocol 2, streaming', 'proto_version', 2, 'streaming', 'on', @options ],
	[ 'protocol 3, two-phase', 'proto_version', 3, 'two_phase', 'on', @options ],
	[ 'protocol 3, both', 'proto_version', 3, 'streaming', 'on', 'two_phase', 'on', @options ],
	[ 'binary', 'proto_version', 1, 'binary', 'on', @options ]);
for (@all)
{
	my ($name, @given) = @$_;
	my @plain = changes('plain', @given);
	my @batches = changes('batched', @given, 'batch', 'commit');
	same_messages($name, [ unpacked(@batches) ], \@plain);
	cmp_ok(scalar @batches, '<', @plain / 4, "$name: in fewer rows");
	is_deeply([ changes('batched', @given) ], \@plain, "$name: without the option it is pgoutput");
}

# A batch ends at a boundary: each has at most one commit, and it is the last.
my @batches = changes('batched', 'proto_version', 1, @options, 'batch', 'hold');
for my $batch (@batches)
{
	my (undef, @entries) = unpack_batch($batch->[1]);
	my @kinds = map { substr $_->[2], 0, 1 } @entries;
	pop @kinds;
	my @early = grep { $_ eq 'C' } @kinds;
	is(scalar @early, 0, 'a commit ends its batch') if @early;
}
my @commits = grep { $_->[2] =~ /^C/ } unpacked(@batches);
cmp_ok(scalar @commits, '>=', 5, 'there are commits');
cmp_ok(scalar @batches, '>=', scalar @commits, 'and through SQL none is held');

# A walsender that runs the function holds nothing either; it moves the slot as well.
my $by_function = q{SELECT encode(data, 'hex')
	FROM pg_logical_slot_%s_binary_changes('%s', NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'messages', 'on'%s)};
# (A copy of a slot does not decode at prepare, so both are copies.)
$node->safe_psql('postgres', q{
	SELECT pg_copy_logical_replication_slot('batched', 'moved');
	SELECT pg_copy_logical_replication_slot('plain', 'compared')});
my $gotten = $node->safe_psql('postgres', sprintf($by_function, 'get', 'moved', q{, 'batch', 'hold'}),
	replication => 'database');
my @gotten = unpacked(map { [ 0, pack 'H*', $_ ] } split /\n/, $gotten);
my @expected = split /\n/, $node->safe_psql('postgres', sprintf($by_function, 'peek', 'compared', ''));
ok(@expected > 0 && join(' ', map { unpack 'H*', $_->[2] } @gotten) eq join(' ', @expected),
	'a walsender that runs the function loses nothing');

# ---- Refusals ----

my ($code, undef, $complaint) = $node->psql('postgres', q{
	SELECT count(*) FROM pg_logical_slot_peek_binary_changes('batched', NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'batch', 'maybe')});
isnt($code, 0, 'another value is refused');
like($complaint, qr/invalid value for option "batch".*"maybe".*Available values: off, commit, hold/s,
	'with what may be said');
(undef, undef, $complaint) = $node->psql('postgres', q{
	SELECT count(*) FROM pg_logical_slot_peek_binary_changes('batched', NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'batches', 'on')});
like($complaint, qr/unrecognized pgoutput option: batches/, 'an option of neither is refused by pgoutput');

# ---- Held commits, through a walsender ----

$node->safe_psql('postgres', join ';', map { "INSERT INTO t VALUES ($_, 'small')" } 10_000 .. 10_200);
$node->safe_psql('postgres', q{INSERT INTO t VALUES (10300, 'row behind the end')});
my $folder = PostgreSQL::Test::Utils::tempdir();

# Starts to receive; what arrives goes to the file. pg_recvlogical knows nothing
# of held commits, so it must not be told where to end: a keepalive could end it.
sub start_receiving
{
	my ($slot, $file, @given) = @_;
	return IPC::Run::start(
		[
			'pg_recvlogical', '--dbname', $node->connstr('postgres'), '--slot', $slot, '--start',
			'--no-loop', '--file', $file, map { ('-o', $_) } 'proto_version=1', 'publication_names=p', @given
		]);
}

# True once the file has the text.
sub arrives
{
	my ($file, $text) = @_;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if -e $file && index(slurp_file($file), $text) >= 0;
		select undef, undef, undef, 0.1;
	}
	return 0;
}

sub receive
{
	my ($slot, @given) = @_;
	my $file = "$folder/$slot";
	my $recv = start_receiving($slot, $file, @given);
	ok(arrives($file, 'row behind the end'), "$slot: all is received");
	$recv->signal('INT');
	$recv->finish;
	return slurp_file($file);
}

# Everything before the row behind the end.
sub to_the_end
{
	my ($bytes) = @_;
	return substr $bytes, 0, index $bytes, 'row behind the end';
}

# Splits what pg_recvlogical wrote: each message ends with a line feed.
sub split_received
{
	my ($bytes) = @_;
	my (@messages, @markers, @held);
	my $open = 0;
	while (length $bytes)
	{
		if (substr($bytes, 0, 1) eq 'O')
		{
			die 'two markers for one batch' if $open;
			$open = 1;
			push @markers, scalar @messages;
			$bytes = substr $bytes, 2;
			next;
		}
		my ($length, @entries) = unpack_batch($bytes);
		my $commits = grep { $_->[2] =~ /^C/ } @entries;
		die 'commits were held without a marker' if $commits > 1 && !$open;
		push @held, $commits if $commits > 1;
		$open = 0;
		push @messages, map { $_->[2] } @entries;
		$bytes = substr $bytes, $length + 1;
	}
	# the last one may have been cut off from its batch by the end of receiving
	return (\@messages, scalar @markers, \@held);
}

# The messages of one slot twice: peeking is not possible here, so two slots.
$node->safe_psql('postgres', q{
	SELECT pg_copy_logical_replication_slot('plain', 'plain2');
	SELECT pg_copy_logical_replication_slot('batched', 'batched2')});
my $plain = receive('plain2');
my ($messages, $markers, $held) = split_received(receive('batched2', 'batch=hold'));
my $joined = join '', map { "$_\n" } @$messages;
is(unpack('H*', to_the_end($joined)), unpack('H*', to_the_end($plain)),
	'held or not, the messages are the same');
cmp_ok($markers, '>', 0, 'markers announce held commits');
cmp_ok(scalar @$held, '>', 0, 'batches hold several commits');

# Nothing is held once there is nothing to decode.
my $live = "$folder/live";
my $recv = start_receiving('batched2', $live, 'batch=hold');
my $session = LockstepSession->new($node);
for my $id (20_000 .. 20_005)
{
	$session->value("INSERT INTO t VALUES ($id, 'live $id')");
	ok(arrives($live, "live $id"), "row $id is sent although nothing follows");
}
$recv->signal('INT');
$recv->finish;

# ---- Under load ----

$recv = start_receiving('batched2', $live, 'batch=hold');
my $load = IPC::Run::start(
	[
		'psql', '--no-psqlrc', '--dbname', $node->connstr('postgres'), '--command', q{
			DO $$ BEGIN
				-- Flushed one by one, and slower than they can be decoded.
				SET synchronous_commit = local;
				LOOP
					PERFORM pg_logical_emit_message(true, 'load', 'x');
					COMMIT;
					PERFORM pg_sleep(0.0005);
				END LOOP;
			END $$}
	],
	'>', \my $load_out, '2>', \my $load_err);
my $walsender = q{FROM pg_stat_activity WHERE backend_type = 'walsender'};
my $resting = "SELECT count(*) > 0 $walsender AND wait_event_type = 'Extension'";
ok($node->poll_query_until('postgres', $resting),
	'between two turns the walsender rests, and lets WAL gather');

# Commits that wait for it must not wait longer.
$node->append_conf('postgresql.conf', q{synchronous_standby_names = '*'});
$node->reload;
$node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_priority > 0')
  or die 'the walsender does not notice that it is waited for';
my $rests = 0;
$rests += $session->value(
	"SELECT count(*) $walsender AND wait_event_type = 'Extension'")
  for 1 .. 300;
is($rests, 0, 'while commits wait for it the walsender does not rest');
$node->append_conf('postgresql.conf', q{synchronous_standby_names = ''});
$node->reload;
$node->safe_psql('postgres', q{
	SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%LOOP%' AND pid <> pg_backend_pid()});
eval { $load->finish };
$recv->signal('INT');
$recv->finish;

# ---- An ordinary subscriber ----

my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');
$subscriber->init;
$subscriber->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$subscriber->start;
$subscriber->safe_psql('postgres', q{CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)});
$node->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('sub', 'lockstep')});
my $from = 'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres';
$subscriber->safe_psql('postgres', qq{CREATE SUBSCRIPTION s CONNECTION '$from' PUBLICATION p
	WITH (create_slot = false, slot_name = 'sub')});
$subscriber->wait_for_subscription_sync($node, 's');
$session->value(q{INSERT INTO t VALUES (30000, 'to a subscriber')});
$subscriber->poll_query_until('postgres', q{SELECT v = 'to a subscriber' FROM t WHERE id = 30000}, 't');
is($subscriber->safe_psql('postgres', 'SELECT count(*), sum(hashtext(v)) FROM t'),
	$node->safe_psql('postgres', 'SELECT count(*), sum(hashtext(v)) FROM t'),
	'a subscriber of a slot of plugin lockstep has the same rows');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');

done_testing();
