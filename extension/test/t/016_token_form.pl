# What is taken for a token: a WAL position when type pg_lsn takes it, with the
# same value, and before it a timeline, or none. A token is not taken if no record can end
# there, nor a position alone that is a timeline and so small a number that no record ends there.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $session = LockstepSession->new(new_primary(create_extension => 0));

sub literal { return q{'} . $_[0] =~ s/'/''/gr . q{'}; }

# The position as pg_lsn prints it before 19; undef if the server takes it for none.
my %lsn;

sub server_reads
{
	my ($text) = @_;
	return $lsn{$text} if exists $lsn{$text};
	my $reply = $session->query('SELECT CAST(' . literal($text) . ' AS pg_lsn)');
	die "unexpected: $reply->{message}" unless ($reply->{sqlstate} // '22P02') eq '22P02';
	return $lsn{$text} = defined $reply->{sqlstate} ? undef : short_lsn($reply->{rows}[0][0]);
}

# Records are aligned to 8 bytes, none ends within the 24 bytes of a page's header, nor in the
# first segment, which has 1 MB at least.
sub record_may_end
{
	my ($upper, $lower) = map { hex } split m{/}, $_[0];
	my $in_page = $lower % 8192;
	return $lower % 8 == 0 && ($in_page == 0 || $in_page >= 24) && ($upper > 0 || $lower >= 1024 * 1024);
}

# What the text means: 'LSN', 'LSN of timeline N', or 'none'.
sub expected
{
	my ($text) = @_;
	my ($timeline, $rest) = $text =~ m{\A([^/]*)/(.*/.*)\z}s;
	my $lsn = server_reads($rest // $text);
	return 'none' unless defined $lsn;
	return $text =~ m{\A[1-9][0-9]*/([0-9A-F]+)\z}i && hex $1 < 40 ? 'none' : $lsn unless defined $timeline;
	return 'none' unless $timeline =~ /\A[0-9]{1,10}\z/ && $timeline > 0 && $timeline <= 4294967295;
	return 'none' unless record_may_end($lsn);
	return "$lsn of timeline " . (0 + $timeline);
}

# This server is a primary of timeline 1, so that all it has not are refused by name.
sub we_read
{
	my ($text) = @_;
	my $reply = $session->query('SET lockstep.wait_for_lsn = ' . literal($text));
	return 'here' unless defined $reply->{sqlstate};
	return 'none' if $reply->{sqlstate} eq '22023';
	return $1
	  if $reply->{sqlstate} eq '55000'
	  && $reply->{message} =~ /WAL position (\S+(?: of timeline \d+)??)(?:: this server| is not in the history)/;
	return "unexpected: $reply->{sqlstate} $reply->{message}";
}

my @differ;

sub compare
{
	my ($text) = @_;
	return if $text eq '';    # no token, and no error
	my ($expected, $ours) = (expected($text), we_read($text));
	# of timeline 1, and before the end of this server's WAL
	return if $ours eq 'here' && $expected =~ m{^0/[0-9A-F]+ of timeline 1$};
	return if $ours eq $expected;
	my $shown = substr($text, 0, 100) =~ s/([^ -~])/sprintf '\\x%02x', ord $1/ger;
	push @differ, length($text) . " bytes, $shown: is $expected, we read $ours";
	return;
}

sub all_the_same
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(@differ), 0, $name) or diag(join "\n", splice @differ, 0, 10);
	@differ = ();
	return;
}

# ---- Known ones, so that the comparison is known to see something ----

is(we_read('0/16b3748'), '0/16B3748', 'a position');
is(we_read('00000002/0000000a/00000028'), 'A/28 of timeline 2', 'a token');
is(we_read('1/0/1000028'), 'here', 'a token of WAL that is here');
is(we_read('1/FFFFFFFF/0'), 'FFFFFFFF/0 of timeline 1', 'and of WAL that is not');
is(we_read('soon'), 'none', 'neither');
is(we_read('1/0'), 'none', 'nor a token that was cut');
is(we_read("1/0/$_"), 'none', "nor one that was cut to $_") for '16B374', '16B37', '16B3', '16B', '16', '1';
is(we_read('2/A/8'), 'none', 'nor one amid the header of a page');
is(we_read('2/A/0'), 'A/0 of timeline 2', 'a token of a record that ends with a page');
is(we_read('12/1F'), 'none', 'nor one of a longer history');
is(we_read('A/0'), 'A/0', 'a position that is the beginning of none');

# ---- All short ones ----

my @short = ('');
for (1 .. 5)
{
	@short = map { my $start = $_; map { "$start$_" } '/', '0', '2', 'f' } @short;
	compare($_) for @short;
}
all_the_same('all strings of up to five of 0, 2, f and /');

# ---- Long ones ----

for my $many (7 .. 12, 100, 5000, 1_000_000)
{
	for my $digit ('0', '4', 'F')
	{
		my $digits = $digit x $many;
		compare($_) for "$digits/0", "0/$digits", "$digits/0/0", "2/$digits/0", "2/0/$digits", $digits;
	}
	compare('/' x $many);
}
for my $timeline (qw(0 1 2 4294967294 4294967295 4294967296 8589934593 9999999999 18446744073709551617))
{
	compare("$timeline/A/28");
}
all_the_same('many digits');

# ---- At random ----

my $seed = $ENV{SEED} || 20261122;
srand $seed;

sub pick { return $_[ int rand @_ ]; }

my @odd = (' ', "\t", "\n", "\r", "\x0b", '+', '-', '.', ',', ':', '_', '\\', "'", '"', '%',
	'x', '0x', '0b1', 'g', 'G', 'O', 'l',
	# digits to some, but not here: full width, Arabic
	"\xef\xbc\x91", "\xd9\xa1");

my @pieces = ('', '0', '1', '2', '9', 'a', 'fF', '16B3748', 'FFFFFFFF', '4294967295', '4294967296');

for (1 .. 3000)
{
	my $text = join '/', map { pick(@pieces) . pick('', '', '', '0', '7') } 1 .. pick(2, 2, 3, 3, 3, 4);
	substr $text, int rand(1 + length $text), pick(0, 0, 1), pick(@odd) if rand() < 0.5;
	# never a part of a character
	compare($text) if utf8::decode(my $characters = $text);
}
all_the_same("3000 at random, SEED=$seed");

done_testing();
