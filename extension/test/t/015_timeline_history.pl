# Our reader of history files against the server's, on odd ones: what the server
# accepts means the same here, and what it refuses ends no session here.
#
# The server's reader is asked through START_REPLICATION on another timeline than
# the server's own: it reads the history anew each time, and answers where that
# timeline was left, that it is none of the history, or ends the session because it
# cannot use the file.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The timeline's number is another one in hexadecimal, as the file's name has it.
my $timeline = 12;

# Beyond all forks but those that say FFFFFFFF/FFFFFFFF.
my $start = 'FFFFFFFF/FFFFFFF0';
my @asked = (1, 2, 3, 10, 11);

my $node = new_primary(create_extension => 0);
$node->stop;
my $hex = sprintf '%08X', $timeline;
command_ok([ 'pg_resetwal', '-l', "${hex}0000000000000020", $node->data_dir ],
	'the server moves to another timeline');
$node->start;
my $session = LockstepSession->new($node);
my $file    = $node->data_dir . "/pg_wal/$hex.history";
is($session->value(q{SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)}), $hex, 'it is there');

my $walsender;

sub server_says
{
	my ($asked) = @_;
	$walsender //= LockstepSession->new($node, replication => 'true');
	my $reply = $walsender->query("START_REPLICATION PHYSICAL $start TIMELINE $asked");
	# no error, but a row with where to go on: with 0/0 it compares nothing
	return 'left at ' . short_lsn($reply->{rows}[0][1]) if !defined $reply->{sqlstate} && @{ $reply->{rows} };
	my $detail = $reply->{detail} // '';
	undef $walsender if $reply->{lost} || ($reply->{severity} // '') eq 'FATAL';
	return 'not of use' if ($reply->{severity} // '') eq 'FATAL';
	return 'no ancestor' if $reply->{message} =~ /^requested timeline \d+ is not in this server's history/;
	return 'left at ' . short_lsn($1) if $detail =~ m{^This server's history forked from timeline \d+ at (\S+)\.};
	return 'left later'  if $reply->{message} =~ /is ahead of the WAL flush position/;
	return "unexpected: $reply->{message}";
}

sub we_say
{
	my ($asked) = @_;
	my $reply = $session->query("SET lockstep.wait_for_lsn = '$asked/$start'");
	return 'left later' unless defined $reply->{sqlstate};
	return "unexpected: $reply->{sqlstate} $reply->{message}" if $reply->{sqlstate} ne '55000';
	return 'not of use'  if $reply->{message} =~ /^cannot tell whether/;
	return 'no ancestor' if $reply->{detail} =~ /does not come from timeline $asked\.$/;
	return "left at $1"  if $reply->{detail} =~ /only up to (\S+)\.$/;
	return "unexpected: $reply->{detail}";
}

sub put
{
	my ($content) = @_;
	open my $fh, '>:raw', "$file.new" or die "$file.new: $!";
	print $fh $content or die "$file.new: $!";
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return;
}

# The answers to all timelines that are asked for; undef if the two differ, with the
# file printed.
sub same_answers
{
	my ($content) = @_;
	put($content);
	my @server = map { server_says($_) } @asked;
	my @ours   = map { we_say($_) } @asked;
	return join(', ', @server) if "@server" eq "@ours" && !grep { /^unexpected/ } @server;
	diag("on timelines @asked the server says: @{[ join ', ', @server ]}\nwe say: @{[ join ', ', @ours ]}\nof: "
		. ($content =~ s/([^ -~\n])/sprintf '\\x%02x', ord $1/ger));
	return;
}

# ---- Files made to be odd ----

my $none = join ', ', ('no ancestor') x @asked;
my $not_of_use = join ', ', ('not of use') x @asked;
my $one = join ', ', 'left at 0/5000000', ('no ancestor') x (@asked - 1);
my $two = join ', ', 'left at 0/5000000', 'left at 1/6', ('no ancestor') x (@asked - 2);
my @files = (
	[ 'empty', '', $none ],
	[ 'an empty line', "\n", $none ],
	[ 'blanks', " \t\n\x0b\x0c\r\n", $none ],
	[ 'a comment', "# 1\t0/5000000\n  # another", $none ],
	[ 'as the server writes it', "1\t0/5000000\tno recovery target specified\n", $one ],
	[ 'two ancestors', "1\t0/5000000\tbefore 2000-01-01\n\n2\t1/6\tat restore point \"x\"\n", $two ],
	[ 'comments and blank lines between', "#\n\n1\t0/5000000\n # x\n\n2\t1/6\n#", $two ],
	[ 'no end of the last line', "1\t0/5000000", $one ],
	[ 'ends of lines with a carriage return', "1\t0/5000000\r\n2\t1/6\r\n", $two ],
	[ 'blanks before the number', "  \t1\t0/5000000\n", $one ],
	[ 'spaces for tabs', "1   0/5000000 x\n", $one ],
	[ 'lower case', "1\t0/5000000\n2\t1/6\n3\ta/bcdef\n", undef ],
	[ 'words at the LSN', "1\t0/5000000xyz\n", $one ],
	[ 'leading zeros', "0001\t0000/05000000\n", $one ],
	[ 'prefixes', "1\t0x0/0x5000000\n", undef ],
	[ 'signs', "+1\t+0/+5000000\n", undef ],
	[ 'a negative number', "-1\t0/5000000\n", undef ],
	[ 'timeline 0', "0\t0/1\n1\t0/5000000\n", undef ],
	[ 'a number beyond 32 bits', "4294967297\t0/5000000\n", undef ],
	[ 'a number beyond 64 bits', "99999999999999999999\t0/5000000\n", undef ],
	[ 'an LSN beyond 32 bits', "1\t123456789/5000000\n", undef ],
	[ 'an LSN beyond 64 bits', "1\tFFFFFFFFFFFFFFFFF/5000000\n", undef ],
	[ 'the lowest LSN', "1\t0/0\n2\t1/6\n", join(', ', 'left at 0/0', 'left at 1/6', ('no ancestor') x (@asked - 2)) ],
	[ 'the highest LSN', "1\tFFFFFFFF/FFFFFFFF\n", undef ],
	[ 'no LSN', "1\n", $not_of_use ],
	[ 'half an LSN', "1\t0\n", $not_of_use ],
	[ 'an LSN without its low half', "1\t0/\n", $not_of_use ],
	[ 'an LSN without its high half', "1\t/5000000\n", $not_of_use ],
	[ 'an LSN with a dash', "1\t0-5000000\n", $not_of_use ],
	[ 'words', "timeline 1\n", $not_of_use ],
	[ 'words after a good line', "1\t0/5000000\nx\n", $not_of_use ],
	[ 'descending', "2\t0/5000000\n1\t1/6\n", $not_of_use ],
	[ 'twice the same', "1\t0/5000000\n1\t0/5000000\n", $not_of_use ],
	[ 'itself', "1\t0/5000000\n12\t1/6\n", $not_of_use ],
	[ 'a higher one', "1\t0/5000000\n13\t1/6\n", $not_of_use ],
	[ 'descending positions', "1\t1/6\n2\t0/5000000\n", undef ],
	[ 'a zero byte after the LSN', "1\t0/5000000\0x\n2\t1/6\n", $two ],
	[ 'a zero byte before the number', "\0" . "1\t0/5000000\n", $none ],
	[ 'bytes that are no UTF-8', "1\t0/5000000\t\xff\xfe\n", $one ],
	# the server reads 1023 bytes as a line
	[ 'a line that is too long', "1\t0/5000000\t" . 'x' x 2000 . "\n", $not_of_use ],
	[ 'a comment that is too long', '#' x 2000 . "\n1\t0/5000000\n", $one ],
	[ 'a line that ends at the limit', "1\t0/5000000\t" . 'x' x 1010 . "\n2\t1/6\n", $two ],
	[ 'a line that is split into two', "1\t0/5000000\t" . 'x' x 1011 . "2\t1/6\n", $two ],
	[ 'many blanks', ' ' x 3000 . "1\t0/5000000\n", undef ],
	[ 'many ancestors', join('', map { "$_\t0/$_\n" } 1 .. 11), undef ]);

for my $file (@files)
{
	my ($name, $content, $expected) = @$file;
	my $answers = same_answers($content) // 'not the same';
	if (defined $expected) { is($answers, $expected, $name); }
	else { isnt($answers, 'not the same', "$name: $answers"); }
}

# ---- Files at random ----

my $seed = $ENV{SEED} || 20261122;
srand $seed;

sub pick { return $_[ int rand @_ ]; }

sub random_line
{
	my $line = pick('', '', '', ' ', "\t", '#', '+', '-', '0') . pick(1 .. 13, 4294967295, '')
	  . pick("\t", "\t", "\t", ' ', '', "\0") . pick('0', '1', 'A', 'fFf', '0x1', '', 'g')
	  . pick('/', '/', '/', '/', '', "\t/", '//')
	  . pick('0', '1', '5000000', 'FFFFFFFF', '123456789', '0x', '') . pick('', "\tbecause", ' 7', "\0");
	return $line . pick("\n", "\n", "\n", "\n", "\r\n", "\n\n", '');
}

my $differ = 0;
for (1 .. 150)
{
	# more often lines that are right, so that some files are
	my @lines = map { rand() < 0.6 ? "$_\t" . pick(0 .. 3) . '/' . pick(0 .. 9) . "1\n" : random_line() }
	  sort { $a <=> $b } map { 1 + int rand 12 } 1 .. int rand 5;
	$differ++ unless defined same_answers(join '', @lines);
}
is($differ, 0, "150 files at random, SEED=$seed");

# ---- No file of use ----

sub no_use
{
	my ($detail, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $reply = $session->query("SET lockstep.wait_for_lsn = '1/0/1000028'");
	refused($reply, '55000', qr/^cannot tell whether/, $name);
	return like($reply->{detail} // '', $detail, 'and says why');
}

put("1\t0/5000000\n" . "#\n" x 10000);
no_use(qr{History file "pg_wal/0000000C.history" has too many lines\.}, 'more lines than any history has');
chmod 0, $file or die "$file: $!";
no_use(qr{could not be read: Permission denied\.}, 'a file that may not be read');
unlink $file or die "$file: $!";
# here the server's reader takes the timeline for one without ancestors
is(server_says(1), 'no ancestor', 'no file, to the server');
no_use(qr{does not exist\.}, 'no file, to us');
mkdir $file or die "$file: $!";
no_use(qr{could not be read: Is a directory\.}, 'a folder');
rmdir $file or die "$file: $!";

# sessions have no file open that they forgot
my $pid = $session->pid;
is(scalar(grep { (readlink($_) // '') =~ /\.history/ } glob "/proc/$pid/fd/*"), 0, 'no file is left open');

done_testing();
