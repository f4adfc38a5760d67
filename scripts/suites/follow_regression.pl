
=head1 NAME

follow_regression.pl - PostgreSQL's core regression suite, followed by a replica

=head1 DESCRIPTION

The suite runs in database regression of a source, of which a replica with --ddl was created while
it was empty. The replica follows. Then every table, view and materialized view is compared: its
rows, and its columns, constraints, indexes and query.

Where the replica stops, a DBA would do what its words say. So does this test, and counts each stop:

  a role that the target lacks      is created there
  a command with its position       is run on the target by hand, as far as it can be run there, and the
                                    replica goes on with --made-by-hand; the rows are not repaired
  a domain's constraint that a row  is dropped there
  from before it violates
  a table whose change the target   is left out (--leave-out)
  refuses

Roles and tablespaces are no part of a replica. The target has those that the suite's files create
from the beginning; its roles are superusers, so none lacks a right that the source's had.

There are no prepared transactions: one that has created a table locks the replica's publication, so all
others that create one would wait until its end, and the suite's own test creates one in between.

Tables of the suite's test of encodings have text whose bytes are valid in no encoding, which a target refuses. They
are excluded.

Views of catalogs and of the moment have other rows on any other server: only their query counts.

=head1 ENVIRONMENT

LOCKSTEP_PROGRAM is the program. LOCKSTEP_TESTS are tests of the suite to run instead of its parallel
schedule. LOCKSTEP_REPORT is the file to which the results are written, as JSON.

=cut

use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run;
use JSON::PP;
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# Part of the tables and views that must be equal, in percent.
use constant TARGET => 90;

# Seconds without progress after which the replica is not waited for any longer.
use constant PATIENCE => 180;

my $program = $ENV{LOCKSTEP_PROGRAM};
my $regress = '../regress';
my $json = JSON::PP->new->canonical->utf8;

# ---- The two servers -------------------------------------------------------

sub server
{
	my ($name) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(allows_streaming => 'logical');
	$node->append_conf('postgresql.conf', <<CONF);
max_connections = 60
max_locks_per_transaction = 256
synchronize_seqscans = off
allow_in_place_tablespaces = on
log_statement = none
CONF
	$node->start;
	return $node;
}

# The database as pg_regress makes it.
sub make_database
{
	my ($node) = @_;
	$node->safe_psql('postgres', 'CREATE DATABASE regression TEMPLATE template0');
	my %settings = (
		lc_messages => 'C',
		lc_monetary => 'C',
		lc_numeric => 'C',
		lc_time => 'C',
		bytea_output => 'hex',
		timezone_abbreviations => 'Default');
	$node->safe_psql('postgres', "ALTER DATABASE regression SET $_ TO '$settings{$_}'")
	  for sort keys %settings;
	return;
}

# Roles and tablespaces that files of the suite create.
sub make_globals
{
	my ($node) = @_;
	my (%roles, %spaces);
	for my $file (glob("$regress/sql/*.sql"))
	{
		my $text = slurp_file($file);
		$roles{$1} = 1 while $text =~ /^\s*CREATE\s+(?:ROLE|USER|GROUP)\s+(?!MAPPING)(\w+|"[^"]+")/gim;
		$spaces{$1} = 1 while $text =~ /\bTABLESPACE\s+(regress_\w+)/gi;
	}
	for my $role (sort keys %roles)
	{
		$node->psql('postgres', "CREATE ROLE $role SUPERUSER");
	}
	for my $space (sort keys %spaces)
	{
		$node->psql('postgres', "CREATE TABLESPACE $space LOCATION ''");
	}
	return;
}

my $source = server('source');
my $target = server('target');
make_database($source);
make_database($target);
make_globals($target);

# Whoever repairs a target may write there.
sub on_target
{
	my ($sql) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGOPTIONS} = '-c default_transaction_read_only=off';
	my $status = $target->psql('regression', $sql, stdout => \$out, stderr => \$err);
	return ($status == 0, $out, $err);
}

# ---- The replica -----------------------------------------------------------

sub lockstep
{
	my (@arguments) = @_;
	my $out = '';
	my $done = IPC::Run::run([ $program, @arguments ], '<', \undef, '>&', \$out);
	note("lockstep @arguments\n$out");
	return $done;
}

my @target = ('--target', $target->connstr('regression'));
my @invalid = qw(regress_encoding toast_3b_utf8 toast_4b_utf8);
# Only a table that is there can be excluded.
$source->safe_psql('regression', "CREATE TABLE $_ ()") for @invalid;
lockstep('replica', 'create', 'suite', '--source', $source->connstr('regression'), @target, '--ddl',
	map { ('--exclude-table', "public.$_") } @invalid)
  or BAIL_OUT('the replica could not be created');
$source->safe_psql('regression', "DROP TABLE $_") for @invalid;
# The commands as the source's event trigger writes them.
$source->safe_psql('regression',
	q{SELECT pg_create_logical_replication_slot('commands', 'test_decoding')});
my $runner_log = "$PostgreSQL::Test::Utils::log_path/replica.log";

sub start_runner
{
	my $pid = fork // die "no process: $!";
	return $pid if $pid;
	open STDOUT, '>>', $runner_log or die "$runner_log: $!";
	open STDERR, '>&', STDOUT or die $!;
	exec $program, 'replica', 'run', 'suite', @target or die "$program: $!";
}
my $runner = start_runner();

# ---- The suite -------------------------------------------------------------

my @tests = split ' ', $ENV{LOCKSTEP_TESTS} // '';
unshift @tests, 'test_setup' if @tests && $tests[0] ne 'test_setup';
my $began = time;
my @command = (
	$ENV{PG_REGRESS},
	'--use-existing',
	'--dbname=regression',
	'--dlpath=' . dirname($ENV{REGRESS_SHLIB}),
	'--bindir=',
	'--host=' . $source->host,
	'--port=' . $source->port,
	'--max-concurrent-tests=20',
	"--inputdir=$regress",
	"--outputdir=$PostgreSQL::Test::Utils::tmp_check",
	@tests ? @tests : "--schedule=$regress/parallel_schedule");
my $printed = '';
IPC::Run::run(\@command, '<', \undef, '>&', \$printed);
note($printed);
my @not_ok = $printed =~ /^(?:not ok \d+\s+[-+]\s+|test |  )\s*(\w+)\s+(?:\.\.\. FAILED|\d+ ms$)/mg;
@not_ok = $printed =~ /(?:^|\n)not ok/ ? @not_ok : $printed =~ /^(?:test |\s+)\s*(\w+)\s+\.\.\. FAILED/mg;
my $ran = () = $printed =~ /^(?:ok \d+|not ok \d+|(?:test |\s+)\s*\w+\s+\.\.\. (?:ok|FAILED))/mg;
my $suite_seconds = time - $began;
cmp_ok($ran, '>', @tests ? @tests - 1 : 150, 'the suite has run');

my %commands;
my $messages = $source->safe_psql('regression', <<'SQL');
SELECT json_build_object('lsn', lsn, 'data', data)
FROM pg_logical_slot_get_changes('commands', NULL, NULL)
WHERE data LIKE 'message: transactional: 1 prefix: lockstep.ddl,%'
SQL
for my $line (split /\n/, $messages)
{
	my $message = $json->decode($line);
	my ($said) = $message->{data} =~ /content:[0-9a-f]{64}(\{.*)\z/s or next;
	my $characters = JSON::PP->new->allow_nonref;
	$commands{ $message->{lsn} } = eval { $characters->decode($said) } // {};
}
$source->safe_psql('regression', q{SELECT pg_drop_replication_slot('commands')});

# ---- What the replica stops at ---------------------------------------------

my @stops;

# What kind of stop an error is: its words without names and positions.
sub cause_of
{
	my ($error) = @_;
	$error =~ s/ of the transaction that committed at [0-9A-F\/]+//;
	my ($why) = $error =~ /^the target does not follow a command: (?:.*): (.*?)(?: \(the command's position| \(in: |; (?:either )?make )/s;
	$why //= $error;
	$why =~ s/;.*//s;
	$why =~ s/"[^"]*"/"..."/g;
	$why =~ s/(table|sequence|function|column|with) (?:[\w"]+\.)+[\w"]+/$1 .../g;
	$why =~ s/\d+/N/g;
	$why =~ s/\s+/ /g;
	return $why;
}

# Runs a command on the target as its message says. Returns what the target says of it.
sub run_by_hand
{
	my ($said) = @_;
	my $settings = $said->{settings} // {};
	my $sql = '';
	for my $name (sort keys %$settings)
	{
		next if $name eq 'search_path';
		(my $value = $settings->{$name}) =~ s/'/''/g;
		$sql .= "SET $name = '$value';\n";
	}
	(my $path = $settings->{search_path} // 'public') =~ s/'/''/g;
	$sql .= "SELECT set_config('search_path', '$path', false);\n";
	(my $role = $said->{role} // '') =~ s/"/""/g;
	$sql .= qq{SET ROLE "$role";\n} if $role ne '';
	my $text = $said->{create} // $said->{query} // '';
	if (($said->{context} // '') =~ /^SQL statement "(.*?)"\n(?:PL\/pgSQL|SQL) function/s)
	{
		$text = $1;
	}
	my ($done, $out, $err) = on_target("$sql$text;");
	return $done ? '' : $err =~ /ERROR:\s+(.*)/ ? $1 : $err;
}

# Does what the words of a stop say. Returns false if they say nothing that can be done here.
sub mend
{
	my ($error) = @_;
	my ($words) = $error =~ /^(.{0,2000})/s;
	my %stop = (cause => cause_of($error), error => $words, names => []);
	push @stops, \%stop;
	if ($error =~ /the target has no role "?([^",]+)"?, which ran it/
		|| $error =~ /: role "([^"]+)" does not exist/)
	{
		$stop{cause} = 'a role that the target lacks';
		$stop{remedy} = "CREATE ROLE $1";
		my ($made) = on_target(qq{CREATE ROLE "$1" SUPERUSER});
		return lockstep('replica', 'resume', 'suite', @target) if $made;
	}
	if ($error =~ /value for domain (\S+) violates check constraint "([^"]+)"/)
	{
		$stop{cause} = 'rows from before a domain\'s constraint (NOT VALID)';
		$stop{remedy} = "ALTER DOMAIN $1 DROP CONSTRAINT $2";
		my ($made) = on_target($stop{remedy});
		return lockstep('replica', 'resume', 'suite', @target) if $made;
	}
	if ($error =~ /--leave-out (\S.*)$/s)
	{
		$stop{names} = [$1];
		$stop{remedy} = "left out: $1";
		return lockstep('replica', 'resume', 'suite', @target, '--leave-out', $1);
	}
	if ($error =~ /the target has no table "([^".]+)\.([^"]+)" afterwards/)
	{
		on_target(qq{CREATE SCHEMA IF NOT EXISTS "$1"});
		on_target(qq{CREATE TABLE "$1"."$2" ()});
	}
	my ($position) = $error =~ /position is ([0-9A-F]+\/[0-9A-F]+)/ or return 0;
	my $said = $commands{$position} // {};
	$stop{position} = $position;
	$stop{command} = substr($said->{query} // '', 0, 500);
	$stop{names} = [ map { "$_->{schema}.$_->{name}" } @{ $said->{tables} // [] } ];
	$stop{remedy} = 'made by hand';
	$stop{refused} = run_by_hand($said);
	return lockstep('replica', 'resume', 'suite', @target, '--made-by-hand', $position);
}

# Lets the replica follow up to a position of the source.
sub follow
{
	my ($end) = @_;
	my ($last, $since, $starts) = ('', time, 0);
	while (1)
	{
		my ($asked, $out, $err) = on_target(
			"SELECT json_build_object('state', apply_state, 'lsn', applied_lsn, 'error', apply_error, "
			  . "'done', applied_lsn >= '$end') FROM lockstep.replica");
		my $now = $asked ? $json->decode($out) : {};
		return '' if $now->{done};
		if (waitpid($runner, WNOHANG) == $runner)
		{
			return 'the replica\'s process has ended again and again' if ++$starts > 20;
			push @stops, { cause => 'the replica\'s process has ended', error => "see $runner_log", names => [] };
			$runner = start_runner();
		}
		my $is_blocked = ($now->{state} // '') eq 'blocked' && $now->{error};
		my $is_at = join ' ', map { $_ // '' } @{$now}{qw(state lsn error)};
		if ($is_at ne $last)
		{
			($last, $since) = ($is_at, time);
			if ($is_blocked && !mend($now->{error}))
			{
				return "no way out: $now->{error}";
			}
		}
		return "no progress: $is_at" if time - $since > PATIENCE;
		sleep 0.2;
	}
}

my $followed = time;
my $ended = follow($source->safe_psql('regression', 'SELECT pg_current_wal_flush_lsn()'));
$followed = time - $followed;
is($ended, '', 'the replica has followed the suite to its end');

# ---- What is equal ---------------------------------------------------------

my $summary = <<'SQL';
SET client_min_messages = info;
DO $do$
DECLARE one record; shape text; content text;
BEGIN
    FOR one IN SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name, c.relkind, c.relpersistence,
            CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END AS query
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_'
            AND n.nspname NOT IN ('information_schema', 'lockstep')
    LOOP
        BEGIN
            SELECT concat_ws(E'\n', one.query, (SELECT string_agg(concat_ws(' ', a.attname,
                    format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull, a.attidentity,
                    a.attgenerated, pg_get_expr(d.adbin, d.adrelid)), ', ' ORDER BY a.attnum)
                FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                WHERE a.attrelid = one.oid AND a.attnum > 0 AND NOT a.attisdropped),
                (SELECT string_agg(k.conname || ' ' || pg_get_constraintdef(k.oid), ', '
                        ORDER BY k.conname COLLATE "C", pg_get_constraintdef(k.oid))
                    FROM pg_constraint k WHERE k.conrelid = one.oid),
                (SELECT string_agg(pg_get_indexdef(i.indexrelid), ', ' ORDER BY pg_get_indexdef(i.indexrelid))
                    FROM pg_index i WHERE i.indrelid = one.oid),
                (SELECT string_agg(i.inhparent::regclass::text, ', ' ORDER BY i.inhseqno)
                    FROM pg_inherits i WHERE i.inhrelid = one.oid),
                (SELECT pg_get_expr(p.relpartbound, p.oid) FROM pg_class p WHERE p.oid = one.oid))
            INTO shape;
        EXCEPTION WHEN OTHERS THEN
            shape := 'error ' || sqlstate;
        END;
        BEGIN
            EXECUTE format('SELECT count(*) || '' rows, sum '' || coalesce(sum(hashtextextended('
                'lockstep_row::text, 0)::numeric), 0) FROM %s %s AS lockstep_row',
                CASE WHEN one.relkind = 'r' THEN 'ONLY' END, one.name) INTO content;
        EXCEPTION WHEN OTHERS THEN
            content := 'error ' || sqlstate;
        END;
        RAISE INFO '%', json_build_object('name', one.name, 'kind', one.relkind, 'unlogged',
            one.relpersistence = 'u', 'shape', shape, 'content', content, 'own', coalesce(
                one.query ~* '\m(now|random|clock_timestamp|statement_timestamp|current_\w+|session_user)\M'
                OR EXISTS (SELECT FROM pg_class s WHERE s.oid < 16384
                    AND s.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
                    AND s.relkind IN ('r', 'v') AND one.query ~ ('\m' || s.relname || '\M')), false));
    END LOOP;
END $do$;
SQL

sub relations
{
	my ($node) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGOPTIONS} = '-c default_transaction_read_only=off -c statement_timeout=10min';
	$node->psql('regression', $summary, stdout => \$out, stderr => \$err);
	my %found;
	for my $line (split /\n/, $err)
	{
		my ($said) = $line =~ /INFO:\s+(\{.*\})$/;
		if (!$said) { note($line); next; }
		my $relation = JSON::PP->new->decode($said);
		$found{ $relation->{name} } = $relation;
	}
	return \%found;
}

my $there = relations($source);
my $here = relations($target);
cmp_ok(scalar keys %$there, '>', 0, 'the source has tables');

# What differs between a relation of the source and the target's; nothing if they are equal.
sub difference
{
	my ($of_source, $of_target) = @_;
	return 'is not on the target' if !$of_target;
	return 'is not on the source' if !$of_source;
	my @what;
	push @what, "kind $of_source->{kind}, on the target $of_target->{kind}" if $of_source->{kind} ne $of_target->{kind};
	push @what, 'definition' if $of_source->{shape} ne $of_target->{shape};
	push @what, "$of_source->{content}, on the target $of_target->{content}"
	  if $of_source->{content} ne $of_target->{content} && !$of_source->{own};
	return join '; ', @what;
}

my %names = map { $_ => 1 } keys %$there, keys %$here;
my (@different, %is_different);
for my $name (sort keys %names)
{
	my $what = difference($there->{$name}, $here->{$name}) or next;
	$is_different{$name} = 1;
	push @different, { name => $name, what => $what };
	note("$name: source $there->{$name}{shape}\n$name: target $here->{$name}{shape}")
	  if $there->{$name} && $here->{$name} && $there->{$name}{shape} ne $here->{$name}{shape};
}

# Why a relation differs that no stop tells of: docs/replica-ddl.md has more on each.
my %known = ('public.part_rp' => 'DETACH PARTITION CONCURRENTLY gives the source\'s table a CHECK');

# Why a relation differs, as far as that is known.
sub why
{
	my ($name) = @_;
	return $known{$name} if $known{$name};
	my $one = $there->{$name} // $here->{$name};
	return 'unlogged: its rows are not replicated' if $one->{unlogged};
	(my $bare = $name) =~ s/^.*\.//;
	$bare =~ s/^"|"$//g;
	for my $stop (@stops)
	{
		return $stop->{cause} if grep { $_ eq $name } @{ $stop->{names} };
	}
	for my $stop (@stops)
	{
		return $stop->{cause} if ($stop->{command} // '') =~ /\b\Q$bare\E\b/;
	}
	for my $other (sort keys %is_different)
	{
		(my $plain = $other) =~ s/^public\.//;
		return "uses $other" if $other ne $name && $one->{shape} =~ /\b\Q$plain\E\b/;
	}
	return 'not explained';
}
$_->{why} = why($_->{name}) for @different;

my $total = keys %names;
my $equal = $total - @different;
my %causes;
$causes{ $_->{cause} }++ for @stops;
my $report = {
	tables_and_views => $total,
	equal => $equal,
	different => \@different,
	commands => scalar keys %commands,
	stops => \%causes,
	stopped_at => \@stops,
	followed_to_its_end => $ended eq '' ? JSON::PP::true : $ended,
	suite => { tests => $ran, different_output => \@not_ok, seconds => int $suite_seconds },
	seconds_after_the_suite => int $followed,
};
open my $file, '>', $ENV{LOCKSTEP_REPORT} or die "$ENV{LOCKSTEP_REPORT}: $!";
print $file JSON::PP->new->canonical->utf8->pretty->encode($report);
close $file or die $!;

cmp_ok($equal * 100, '>=', $total * TARGET, "$equal of $total tables and views are equal on the replica");

kill 'TERM', $runner;
waitpid $runner, 0;
lockstep('replica', 'drop', 'suite', @target);
$source->stop('immediate');
$target->stop('immediate');
done_testing();
