# Tokens name a timeline: after failovers, a standby or primary says whether it has,
# will have, or can never have what the token stands for.
#
#   old primary ──┬─ first ──── second ─── cascaded      (timeline 2 from here on)
#     timeline 1  └─ ahead ──── follower                 (timeline 3)
use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy move);
use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = q{lockstep.wait_timeout = 0};
my $old  = new_primary;
my ($first, $second, $ahead) = map { new_standby($old, name => $_, conf => $conf) } qw(first second ahead);
my $cascaded = new_standby($second, name => 'cascaded', conf => $conf);
my $on_old   = LockstepSession->new($old);

sub app { return LockstepSession->new($_[0], user => 'app'); }

sub token { return $_[0]->value('SELECT lockstep_replay_token()'); }

sub lsn { return $_[0] =~ s{^\d+/}{}r; }

sub has
{
	my ($node, $token, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return succeeds(app($node)->query("SET lockstep.wait_for_lsn = '$token'"), $node->name . " has $name");
}

my $of_1 = qr/^WAL position .* of timeline 1 is not in the history of this server$/;

sub has_not
{
	my ($node, $token, $detail, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $reply = app($node)->query("SET lockstep.wait_for_lsn = '$token'");
	refused($reply, '55000', qr/^WAL position .* of timeline \d+ is not in the history of this server$/,
		$node->name . " has not $name");
	like($reply->{hint} // '', qr/may be lost/, 'which it says may be lost');
	return like($reply->{detail} // '', $detail, 'and why');
}

sub starts_to_wait
{
	my ($node, $token, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = app($node);
	$session->send("SET lockstep.wait_for_lsn = '$token'");
	waits_for_lsn(LockstepSession->new($node), $session, $node->name . " waits for $name");
	return $session;
}

# However long it waits, the answer is the same.
sub times_out
{
	my ($node, $token, $detail, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = app($node);
	$session->value(q{SET lockstep.wait_timeout = '300ms'});
	my $reply = $session->query("SET lockstep.wait_for_lsn = '$token'");
	refused($reply, '57014', qr/of timeline \d+ was not replayed within lockstep.wait_timeout/,
		$node->name . " waits in vain for $name");
	return like($reply->{detail} // '', $detail, 'and says why');
}

sub receive_from
{
	my ($node, $source) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $name = $node->name;
	set_and_reload($node, primary_conninfo => $source ? $source->connstr . " application_name=$name" : '');
	return wait_for_value(LockstepSession->new($node), 'SELECT count(*) FROM pg_stat_wal_receiver',
		$source ? 1 : 0, $source ? "$name receives from " . $source->name : "$name receives nothing");
}

# ---- One timeline ----

$on_old->value('CREATE TABLE written (i int)');
$on_old->value('INSERT INTO written VALUES (1)');
my $before_fork = token($on_old);
has($_, $before_fork, 'what was written before the failover') for $old, $first, $second, $ahead, $cascaded;

# ---- A write that the new primary does not get ----

# second first, so that it has no WAL that first has not
receive_from($_, undef) for $second, $first;
$on_old->value('INSERT INTO written SELECT generate_series(2, 50000)');
my $lost = token($on_old);
has($old,   $lost, 'the write');
has($ahead, $lost, 'the write');
my $waiter  = starts_to_wait($second,   $lost, 'the write that is lost');
my $waiter2 = starts_to_wait($cascaded, $lost, 'it');
my $promoted = starts_to_wait($first,   $lost, 'it');
my $promoted_bare = starts_to_wait($first, lsn($lost), 'its position');

$first->promote;
my $reply = $promoted->result;
refused($reply, '55000', $of_1, 'a session that waits while the server is promoted');
like($reply->{detail}, qr{^This server's timeline 2 comes from timeline 1 only up to [0-9A-F]+/[0-9A-F]+\.$},
	'hears why');
refused($promoted_bare->result, '55000', qr/^recovery ended before/, 'one that waits for a position');

my $on_first = LockstepSession->new($first);
$on_first->value('INSERT INTO written VALUES (-1)');
my $new = token($on_first);
like($new, qr{^2/}, 'a token of the new primary');
has($first, $_, 'what it has') for $before_fork, $new;
has_not($first, $lost, qr/timeline 2 comes from timeline 1 only up to/, 'the lost write');
has_not($first, '3/0/1000028', qr/^This server is a primary of timeline 2\.$/, 'a token of a timeline to come');

# ---- A standby that has not come to the new timeline ----

# ahead has replayed beyond that position, but on timeline 1
my $on_ahead = LockstepSession->new($ahead);
is($on_ahead->value(q{SELECT pg_last_wal_replay_lsn() > '} . lsn($new) . q{'}), 't',
	'ahead is beyond the position of the new token');
times_out($ahead, $new,
	qr{^Replay has reached \S+ of timeline 1\. This server has not come to timeline 2 yet\.$}, 'the new token');
has($ahead, lsn($new), 'the bare position, wrongly');
$old->stop('immediate');

# The new primary comes to the position of the lost write without it.
$on_first->value($_)
  for 'INSERT INTO written SELECT generate_series(-50000, -2)', 'SELECT pg_switch_wal()',
  'INSERT INTO written VALUES (0)';
my $later = token($on_first);
is($on_first->value(q{SELECT '} . lsn($later) . q{'::pg_lsn > '} . lsn($lost) . q{'}), 't',
	'the new primary is beyond the lost write');

# ---- Standbys that follow ----

my $waits_for_new = starts_to_wait($second, $new, 'the timeline that it does not know yet');
receive_from($second, $first);
for my $session ($waiter, $waiter2)
{
	refused($session->result, '55000', $of_1, 'a waiter for the lost write when the standby changes timeline');
}
succeeds($waits_for_new->result, 'a waiter for the new timeline gets there');
for my $node ($second, $cascaded)
{
	has($node, $_, 'the history and what is new') for $new, $later, $before_fork;
	has_not($node, $lost, qr/timeline 2 comes from timeline 1 only up to/, 'the lost write');
	has($node, lsn($lost), 'its bare position, wrongly');
	is(app($node)->value('SELECT count(*) FROM written WHERE i > 1'), 0, 'for it has no such row');
	times_out($node, '3/0/1000028', qr/This server has not come to timeline 3 yet/, 'a timeline to come');
}

# at the fork itself, and at the next position where a record could end
my ($fork) = slurp_file($first->data_dir . '/pg_wal/00000002.history') =~ m{^1\t(\S+)\t};
$fork = short_lsn($fork);
my $step = hex($fork =~ s{.*/}{}r) % 8192 ? 8 : 24;
my $beyond = app($first)->value("SELECT '$fork'::pg_lsn + $step");
for my $node ($first, $second, $cascaded)
{
	has($node, "1/$fork", 'timeline 1 up to the fork');
	has_not($node, "1/$beyond", qr/only up to \Q$fork\E\.$/, 'one record more');
}

# ---- Two promotions, at different positions ----

# Then ahead does not give its timeline the same number.
copy($first->data_dir . '/pg_wal/00000002.history', $ahead->data_dir . '/pg_wal') or die "copy: $!";
$ahead->promote;
my $on_promoted = LockstepSession->new($ahead);
$on_promoted->value('INSERT INTO written VALUES (-1)');
my $third = token($on_promoted);
like($third, qr{^3/}, 'a token of the other new primary');
my $follower = new_standby($ahead, name => 'follower', conf => $conf);
for my $node ($ahead, $follower)
{
	has($node, $_, 'its history, and the write that is lost elsewhere') for $before_fork, $lost, $third;
	has_not($node, $_, qr/^This server's timeline 3 does not come from timeline 2\.$/, "the other one's")
	  for $new, '2/0/1000028';
}
has_not($first, $third, qr/^This server is a primary of timeline 2\.$/, "the other one's");
times_out($second, $third, qr/has not come to timeline 3 yet/, "the other one's");

# ---- Without the history ----

sub history { return $_[0]->data_dir . '/pg_wal/00000003.history'; }

for my $node ($ahead, $follower)
{
	move(history($node), history($node) . '.away') or die "rename: $!";
	has($node, $third, 'its own timeline without the history');
}
for my $token ($before_fork, $lost, $new)
{
	times_out($follower, $token,
		qr{^Replay has reached \S+ of timeline 3\. History file "pg_wal/00000003.history" does not exist\.$},
		$token);
	$reply = app($ahead)->query("SET lockstep.wait_for_lsn = '$token'");
	refused($reply, '55000', qr/^cannot tell whether WAL position .* is in the history of this server$/,
		"a primary without history: $token");
	is($reply->{detail}, 'History file "pg_wal/00000003.history" does not exist.', 'says what is missing');
}
my @waiters = map { starts_to_wait($follower, $_, 'the history') } $lost, $new;
move(history($follower) . '.away', history($follower)) or die "rename: $!";
succeeds($waiters[0]->result, 'once the file is there the waiter has its answer');
refused($waiters[1]->result, '55000', qr/is not in the history/, 'each its own');

done_testing();
