
=head1 NAME

LockstepSession - one connection to a server, without psql in between

=head1 DESCRIPTION

A client of the frontend/backend protocol. Tests need what psql does not offer:
to send a query and look at the session from elsewhere while it waits, the
SQLSTATE of what comes back, an Execute with a row limit, and sessions that
cost no second process each.

  my $s = LockstepSession->new($node, user => 'app');
  $s->value('SELECT 1');          # first column of the first row; dies on error
  my $r = $s->query('SELECT x');  # an answer, see below
  $s->send('SELECT pg_sleep(9)'); # returns at once ...
  $s->busy;                       # ... true until the answer is complete
  $s->result;                     # ... waits for it

An answer is a hash: rows, tags, suspended, sqlstate, message, detail, hint,
reported (settings that the server reported, name to value) and lost (the
connection ended). Values are text, NULL is undef. Every wait ends
with an exception after PostgreSQL::Test::Utils::timeout_default seconds.

=cut

package LockstepSession;

use strict;
use warnings FATAL => 'all';

use Carp;
use IO::Select;
use PostgreSQL::Test::Utils;

use constant PROTOCOL_3     => 196608;
use constant CANCEL_REQUEST => 80877102;
use constant READ_BYTES     => 65536;

my %error_field = (
	S => 'severity',
	C => 'sqlstate',
	M => 'message',
	D => 'detail',
	H => 'hint');

# Parameters: user, dbname, options (as in PGOPTIONS), replication.
sub new
{
	my ($class, $node, %param) = @_;
	my $user = $param{user} // scalar getpwuid($>);
	my $self = bless { node => $node, socket => $node->raw_connect, buffer => '' }, $class;
	my %startup = (
		user             => $user,
		database         => $param{dbname} // 'postgres',
		application_name => $user);
	for my $name (qw(options replication))
	{
		$startup{$name} = $param{$name} if defined $param{$name};
	}

	my $packet = pack('N', PROTOCOL_3)
	  . join('', map { "$_\0$startup{$_}\0" } sort keys %startup) . "\0";
	$self->_expect;
	$self->_write(pack('N', length($packet) + 4) . $packet);
	my $reply = $self->result;
	croak "cannot connect as $user: " . ($reply->{message} // 'connection lost')
	  if defined $reply->{sqlstate} || $reply->{lost};
	$self->{at_start} = $reply->{reported};
	return $self;
}

# What the server reported as the session began.
sub reported_at_start { return $_[0]->{at_start}; }

sub pid { return $_[0]->{pid}; }

# Sends a simple query and does not wait for the answer.
sub send
{
	my ($self, $sql) = @_;
	$self->_expect;
	$self->_message('Q', "$sql\0");
	return;
}

# Waits for the answer to what was sent.
sub result
{
	my ($self) = @_;
	my $seconds = 0;

	until ($self->{complete})
	{
		# counted, not read from a clock: see LockstepTest::becomes_true
		croak "no answer from session $self->{pid}"
		  if !$self->_read(1) && $seconds++ >= $PostgreSQL::Test::Utils::timeout_default;
	}
	return $self->{reply};
}

# True while the answer is not complete. Does not wait.
sub busy
{
	my ($self) = @_;
	1 while !$self->{complete} && $self->_read(0);
	return !$self->{complete};
}

sub query
{
	my ($self, $sql) = @_;
	$self->send($sql);
	return $self->result;
}

sub value
{
	my ($self, $sql) = @_;
	my $reply = $self->query($sql);
	croak "$sql: connection lost" if $reply->{lost};
	croak "$sql: $reply->{sqlstate} $reply->{message}" if defined $reply->{sqlstate};
	return @{ $reply->{rows} } ? $reply->{rows}[0][0] : undef;
}

# Extended protocol, each step followed by Sync. A portal lives until the end
# of its transaction, so use them between BEGIN and COMMIT.
sub bind
{
	my ($self, $portal, $sql) = @_;
	$self->_expect;
	$self->_message('P', "\0$sql\0" . pack('n', 0));
	$self->_message('B', "$portal\0\0" . pack('n n n', 0, 0, 0));
	$self->_message('S', '');
	return $self->result;
}

# Binds and executes what PREPARE has prepared, with the texts of its parameters,
# and does not wait for the answer. (The statement EXECUTE never waits at the gate.)
sub send_prepared
{
	my ($self, $statement, @values) = @_;
	$self->_expect;
	return $self->_send_bound($statement, @values);
}

# Binds and executes a statement without a name, and does not wait for the answer.
sub send_unnamed
{
	my ($self, $sql, @values) = @_;
	$self->_expect;
	$self->_message('P', "\0$sql\0" . pack('n', 0));
	return $self->_send_bound('', @values);
}

# Statements one after the other, with one Sync at the end, as a client in pipeline
# mode sends them.
sub send_pipeline
{
	my ($self, @statements) = @_;
	$self->_expect;
	for my $sql (@statements)
	{
		$self->_message('P', "\0$sql\0" . pack('n', 0));
		$self->_bind_and_execute('');
	}
	$self->_message('S', '');
	return;
}

sub _send_bound
{
	my ($self, $statement, @values) = @_;
	$self->_bind_and_execute($statement, @values);
	$self->_message('S', '');
	return;
}

sub _bind_and_execute
{
	my ($self, $statement, @values) = @_;
	$self->_message('B', "\0$statement\0" . pack('n n', 0, scalar @values)
		. join('', map { pack('N', length) . $_ } @values) . pack('n', 0));
	$self->_message('E', "\0" . pack('N', 0));
	return;
}

# At most max_rows (0: all) of a bound portal; the answer has suspended set if
# there are more.
sub execute
{
	my ($self, $portal, $max_rows) = @_;
	$self->send_execute($portal, $max_rows);
	return $self->result;
}

# Executes a bound portal, and does not wait for the answer.
sub send_execute
{
	my ($self, $portal, $max_rows) = @_;
	$self->_expect;
	$self->_message('E', "$portal\0" . pack('N', $max_rows));
	$self->_message('S', '');
	return;
}

# Asks the server to cancel what the session does; returns once it has been
# asked, not once it is done.
sub cancel
{
	my ($self) = @_;
	my $socket = $self->{node}->raw_connect;
	syswrite $socket, pack('N N N', 16, CANCEL_REQUEST, $self->{pid}) . $self->{key}
	  or croak "cannot send a cancel request: $!";
	# the server closes the connection when it has sent the signal
	sysread $socket, my $nothing, 1;
	close $socket;
	return;
}

# Goes away in an orderly manner, or, after vanish, without a word.
sub close
{
	my ($self) = @_;
	return unless $self->{socket};
	$self->_message('X', '');
	return $self->vanish;
}

sub vanish
{
	my ($self) = @_;
	CORE::close(delete $self->{socket});
	return;
}

# ---- The protocol ----

sub _expect
{
	my ($self) = @_;
	croak "session $self->{pid} has not answered the last query"
	  if $self->{reply} && !$self->{complete};
	$self->{complete} = 0;
	$self->{reply} = { rows => [], tags => [], reported => {} };
	return;
}

sub _message
{
	my ($self, $type, $body) = @_;
	return $self->_write($type . pack('N', length($body) + 4) . $body);
}

sub _write
{
	my ($self, $bytes) = @_;
	local $SIG{PIPE} = 'IGNORE';
	# a server that has hung up may have said why: found when reading
	syswrite $self->{socket}, $bytes;
	return;
}

# Reads what there is, waiting for at most the given time; false if nothing.
sub _read
{
	my ($self, $timeout) = @_;
	return 0 unless IO::Select->new($self->{socket})->can_read($timeout);
	my $n = sysread $self->{socket}, $self->{buffer}, READ_BYTES, length $self->{buffer};
	if (!$n)
	{
		$self->{reply}{lost} = 1;
		$self->{complete} = 1;
		return 0;
	}
	while (length $self->{buffer} >= 5)
	{
		my ($type, $len) = unpack 'a N', $self->{buffer};
		last if length $self->{buffer} < $len + 1;
		my $body = substr $self->{buffer}, 5, $len - 4;
		substr($self->{buffer}, 0, $len + 1) = '';
		$self->_handle($type, $body);
	}
	return 1;
}

sub _handle
{
	my ($self, $type, $body) = @_;
	my $reply = $self->{reply};

	if ($type eq 'D') { push @{ $reply->{rows} }, _row($body); }
	elsif ($type eq 'C') { push @{ $reply->{tags} }, unpack('Z*', $body); }
	elsif ($type eq 's') { $reply->{suspended} = 1; }
	elsif ($type eq 'Z') { $self->{complete} = 1; }
	elsif ($type eq 'S')
	{
		my ($name, $value) = unpack 'Z* Z*', $body;
		$reply->{reported}{$name} = $value;
	}
	elsif ($type eq 'K')
	{
		$self->{pid} = unpack 'N', $body;
		$self->{key} = substr $body, 4;
	}
	elsif ($type eq 'E')
	{
		for my $field (split /\0/, $body)
		{
			my $name = $error_field{ substr $field, 0, 1 } or next;
			$reply->{$name} = substr $field, 1;
		}
	}
	return;
}

sub _row
{
	my ($body) = @_;
	my @row;
	my $at = 2;
	for (1 .. unpack 'n', $body)
	{
		my $len = unpack 'l>', substr $body, $at, 4;
		$at += 4;
		push @row, $len < 0 ? undef : substr $body, $at, $len;
		$at += $len if $len > 0;
	}
	return \@row;
}

1;
