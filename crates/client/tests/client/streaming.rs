//! Streams: transactions, keepalives, feedback, ends.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lockstep_client::quote::publication_names;
use lockstep_client::{ClientError, Connection, Conninfo, Next, Purpose, Result, Step, Stream};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Stop};
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromServer, FromStandby, Status};

use super::connecting::use_tls;
use super::{primary, replication, sql};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn options(publication: &str) -> Vec<(&'static str, String)> {
    vec![
        ("proto_version", "1".to_owned()),
        (
            "publication_names",
            publication_names([publication]).unwrap(),
        ),
    ]
}

fn prepare(server: &Server) {
    server
        .execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION \"it's \"\"all\" FOR ALL TABLES")
        .unwrap();
}

const PUBLICATION: &str = "it's \"all";

fn stream(server: &Server) -> Stream {
    replication(server)
        .start("s", Lsn::INVALID, &options(PUBLICATION))
        .unwrap()
}

/// The next message of the server, with what is in it copied.
enum Message {
    Data { content: Vec<u8> },
    Keepalive { reply: bool, end: Lsn },
    Ended,
}

fn next(stream: &mut Stream) -> Result<Message> {
    loop {
        match stream.next()? {
            Next::Data(data) => {
                return Ok(match FromServer::parse(&data).unwrap() {
                    FromServer::XLogData { wal, .. } => Message::Data {
                        content: wal.to_vec(),
                    },
                    FromServer::Keepalive { reply, end, .. } => Message::Keepalive { reply, end },
                });
            }
            Next::NotYet => {
                stream.wait(None, LONG)?;
            }
            Next::Ended => return Ok(Message::Ended),
        }
    }
}

/// Tags of pgoutput up to the given number of commits, and the end of the last.
fn until_commits(stream: &mut Stream, mut commits: usize) -> (String, Lsn) {
    let mut tags = String::new();
    let mut end = 0;
    while commits > 0 {
        let content = match next(stream).unwrap() {
            Message::Data { content } => content,
            Message::Keepalive { .. } => continue,
            Message::Ended => panic!("the stream is over"),
        };
        tags.push(char::from(content[0]));
        if content[0] == b'C' {
            commits -= 1;
            // Flags, the commit's position, its end.
            end = u64::from_be_bytes(content[10..18].try_into().unwrap());
        }
    }
    (tags, end.into())
}

fn status(flushed: Lsn, reply: bool) -> FromStandby {
    FromStandby::Status(Status {
        written: flushed,
        flushed,
        applied: flushed,
        reply,
        ..Status::default()
    })
}

#[test]
fn transactions_arrive_and_feedback_moves_the_slot() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    prepare(&server);
    let mut looker = replication(&server);
    looker.create_slot("s", "pgoutput", false, false).unwrap();
    for sql in [
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET v = 'c' WHERE id = 1",
        "DELETE FROM t",
    ] {
        server.execute(sql).unwrap();
    }
    let mut stream = stream(&server);
    let (tags, end) = until_commits(&mut stream, 3);
    assert_eq!(tags, "BRIICBUCBDDC");

    let active = looker.slot("s").unwrap().unwrap().active_pid;
    assert!(active.is_some());
    let error = replication(&server)
        .start("s", Lsn::INVALID, &options(PUBLICATION))
        .unwrap_err();
    assert!(error.slot_in_use() && error.may_pass(), "{error:?}");
    assert!(looker.drop_slot("s").unwrap_err().slot_in_use());

    assert!(looker.slot("s").unwrap().unwrap().confirmed < end);
    stream.send(&status(end, true)).unwrap();
    // It answers after it has taken note; not every keepalive is that answer.
    loop {
        let message = next(&mut stream).unwrap();
        let confirmed = looker.slot("s").unwrap().unwrap().confirmed;
        if matches!(message, Message::Keepalive { .. }) && confirmed == end {
            break;
        }
    }
    assert!(!stream.is_sending());

    // Once it is over in order, the slot is free at once.
    stream.finish(LONG).unwrap();
    server.execute("INSERT INTO t VALUES (3, 'd')").unwrap();
    let mut again = self::stream(&server);
    assert_eq!(until_commits(&mut again, 1).0, "BRIC");
    // With much that is unread, and feedback that is not sent yet.
    server
        .execute("INSERT INTO t SELECT n, 'e' FROM generate_series(10, 5000) AS n")
        .unwrap();
    again.send(&status(end, false)).unwrap();
    again.finish(LONG).unwrap();
    looker.drop_slot("s").unwrap();
}

#[test]
fn a_wait_can_be_woken() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    prepare(&server);
    let mut looker = replication(&server);
    looker.create_slot("s", "pgoutput", false, false).unwrap();
    let mut stream = stream(&server);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut woken = false;
    ours.write_all(b".").unwrap();
    while !woken {
        while !matches!(stream.next().unwrap(), Next::NotYet) {}
        woken = stream.wait(Some(theirs.as_fd()), LONG).unwrap().woken;
    }
    // The end of the other side wakes as well, so that nobody waits for the dead.
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    while !matches!(stream.next().unwrap(), Next::NotYet) {}
    while !stream.wait(Some(theirs.as_fd()), LONG).unwrap().woken {
        while !matches!(stream.next().unwrap(), Next::NotYet) {}
    }
    // And without anything it returns.
    stream.wait(None, Duration::ZERO).unwrap();
}

#[test]
fn errors_in_a_stream_are_told() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    prepare(&server);
    let mut looker = replication(&server);
    looker.create_slot("s", "pgoutput", false, false).unwrap();
    server.execute("INSERT INTO t VALUES (1, 'a')").unwrap();
    let written = server.query_text("SELECT pg_current_wal_lsn()::text");
    let written: Lsn = written.unwrap().unwrap().parse().unwrap();

    let start = |options: &[(&str, String)]| replication(&server).start("s", Lsn::INVALID, options);
    let error = start(&[("proto_version", "1000".to_owned())]).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert!(!error.may_pass() && !error.is_missing_slot(), "{error:?}");
    assert!(matches!(refusal.step, Step::Start), "{error:?}");

    let mut stream = loop {
        match start(&options("no_such")) {
            Ok(stream) => break stream,
            // The session that was refused has not ended yet.
            Err(error) => assert_eq!(error.refusal().unwrap().sqlstate, "55006", "{error:?}"),
        }
    };
    let error = loop {
        match next(&mut stream) {
            // Servers from 18 on only warn, and stream nothing.
            Ok(Message::Keepalive { end, .. }) if end >= written => break None,
            Ok(Message::Keepalive { .. }) => stream.send(&status(Lsn::INVALID, true)).unwrap(),
            Ok(_) => panic!("something was published"),
            Err(error) => break Some(error),
        }
    };
    assert_eq!(error.is_none(), looker.server_version() >= 180_000);
    if let Some(error) = error {
        let refusal = error.refusal().unwrap();
        assert_eq!(
            (refusal.step, refusal.sqlstate.as_str()),
            (Step::Stream, "42704")
        );
        assert!(!error.is_missing_slot());
        assert!(refusal.message.contains("no_such"));
        assert!(matches!(stream.next().unwrap(), Next::Ended));
    }
}

#[test]
fn a_stream_ends_with_its_server() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab);
    prepare(&server);
    replication(&server)
        .create_slot("s", "pgoutput", false, false)
        .unwrap();

    // Its process is ended by an administrator.
    let mut ended = stream(&server);
    server
        .execute("SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots")
        .unwrap();
    let error = loop {
        if let Err(error) = next(&mut ended) {
            break error;
        }
    };
    assert!(error.may_pass(), "{error:?}");

    // A crash.
    let mut ended = stream(&server);
    server.kill().unwrap();
    let error = loop {
        if let Err(error) = next(&mut ended) {
            break error;
        }
    };
    assert!(matches!(error, ClientError::Lost(_)), "{error:?}");
    server.start().unwrap();

    // A stop in order: the server waits for its receivers to have everything. Until a walsender has
    // begun its loop, a stop ends it like any session (SQLSTATE 57P01); its reply shows that it has.
    let mut ended = stream(&server);
    ended.send(&status(Lsn::INVALID, true)).unwrap();
    while !matches!(next(&mut ended).unwrap(), Message::Keepalive { .. }) {}
    let stopping = std::thread::spawn(move || {
        server.stop(Stop::Fast).unwrap();
        server
    });
    loop {
        match next(&mut ended).unwrap() {
            Message::Keepalive { reply: true, end } => ended.send(&status(end, false)).unwrap(),
            Message::Ended => break,
            _ => {}
        }
    }
    drop(ended);
    drop(stopping.join().unwrap());
}

/// The second column of an Insert message whose columns are texts.
fn second_text(content: &[u8]) -> &[u8] {
    // Tag, relation, N, number of columns; then for each column t, length, text.
    let length = |at: usize| {
        let bytes = content[at + 1..at + 5].try_into().unwrap();
        usize::try_from(u32::from_be_bytes(bytes)).unwrap()
    };
    let second = 8 + 5 + length(8);
    let text = &content[second + 5..];
    assert_eq!(text.len(), length(second));
    text
}

#[test]
fn large_messages_arrive_whole_with_tls_too() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab);
    prepare(&server);
    use_tls(lab.folder(), &mut server);
    let at = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres sslmode=require",
        server.port()
    );
    let connect = || {
        let conninfo = Conninfo::parse(&at).unwrap();
        Connection::connect(&conninfo, Purpose::Replication, "x").unwrap()
    };
    connect()
        .create_slot("s", "pgoutput", false, false)
        .unwrap();
    // Around the sizes of records and buffers, and far beyond; one transaction.
    server
        .execute(
            "ALTER TABLE t ALTER v SET STORAGE EXTERNAL; \
             INSERT INTO t SELECT n, repeat('x', n) FROM generate_series(8100, 8300, 7) AS n; \
             INSERT INTO t SELECT n, repeat('x', n) FROM generate_series(16200, 16500, 3) AS n; \
             INSERT INTO t SELECT n, repeat('x', n) FROM generate_series(1000000, 9000000, 1999999) AS n",
        )
        .unwrap();
    let total = sql(&server)
        .query("SELECT sum(length(v)), count(*) FROM t")
        .unwrap();
    let number = |place: usize| total[0][place].clone().unwrap().parse::<usize>().unwrap();
    let mut stream = connect()
        .start("s", Lsn::INVALID, &options(PUBLICATION))
        .unwrap();
    let (mut bytes, mut rows, mut commits) = (0, 0, 0);
    while commits < 1 {
        if let Message::Data { content } = next(&mut stream).unwrap() {
            match content[0] {
                b'I' => {
                    rows += 1;
                    bytes += second_text(&content).len();
                    assert!(second_text(&content).iter().all(|&byte| byte == b'x'));
                }
                b'C' => commits += 1,
                _ => {}
            }
        }
    }
    assert_eq!((bytes, rows), (number(0), number(1)));
}

#[test]
fn a_server_that_does_not_read_costs_no_memory() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    prepare(&server);
    replication(&server)
        .create_slot("s", "pgoutput", false, false)
        .unwrap();
    let mut stream = stream(&server);
    let mut looker = sql(&server);
    let pid = super::value(&mut looker, "SELECT active_pid FROM pg_replication_slots");
    let signal = |name: &str| {
        let done = std::process::Command::new("kill")
            .args([name, &pid])
            .status()
            .unwrap();
        assert!(done.success());
    };
    signal("-STOP");
    let mut sent = 0_u32;
    while !stream.is_sending() {
        stream.send(&status(1.into(), false)).unwrap();
        sent += 1;
        assert!(sent < 10_000_000);
    }
    for number in 2..1_000 {
        stream.send(&status(number.into(), number == 500)).unwrap();
    }
    signal("-CONT");
    // The newest arrives, with the request that one before it made. The walsender knows no
    // position while it has read no status, as after the keepalive that it sends at its start.
    let newest = Lsn::from(999).to_string();
    let sql = "SELECT coalesce(flush_lsn, '0/0') FROM pg_stat_replication";
    loop {
        let message = next(&mut stream).unwrap();
        if matches!(message, Message::Keepalive { .. }) && super::value(&mut looker, sql) == newest
        {
            break;
        }
    }
    assert!(!stream.is_sending());
}
