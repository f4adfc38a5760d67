//! Sessions that the relay answers itself.

use lockstep_wire::backend::Column;

use super::*;
use crate::serve::console_session::{self, ConsoleLogin};
use crate::serve::places::Purpose;
use crate::serve::rights::{ConsoleService, Rights};

/// A session that has streamed and goes on without a primary.
async fn alone() -> Scene {
    let mut scene = Scene::ready(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT stream"))
        .await;
    scene.is_asked().await;
    scene.client_gets(&back(Backend::CopyBothResponse)).await;
    ends_its_copy(&mut scene).await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));
    scene
}

#[tokio::test]
async fn errors_of_queries_are_survived() {
    let mut scene = alone().await;
    let ready = back(Backend::ReadyForQuery(b'I'));
    let long = "x".repeat(super::super::pump::QUERY_LIMIT + 1);
    for (sent, sqlstate) in [
        (query("SELECT 1"), "55000"),
        (query("SHOW"), "42601"),
        (query("CREATE_REPLICATION_SLOT"), "42601"),
        (other(b'Q', b"\xff\0"), "08P01"),
        (other(b'Q', b"no end"), "08P01"),
        (other(b'Q', long.as_bytes()), "54000"),
        (other(b'F', b"\0\0\0\0"), "0A000"),
    ] {
        let (mut client, sent) = (scene.client, sent.clone());
        // Longer than the pipe.
        let (reader, mut writer) = tokio::io::split(client);
        let writing = tokio::spawn(async move {
            writer.write_all(&sent).await.unwrap();
            writer
        });
        client = reader.unsplit(writing.await.unwrap());
        scene.client = client;
        scene.client_gets_error("ERROR", sqlstate).await;
        scene.client_gets(&ready).await;
    }
    // What is left of a copy, and a flush, are nothing.
    for nothing in [b'd', b'c', b'f', b'H'] {
        scene.client_says(&other(nothing, b"x")).await;
    }
    scene
        .client_says(&query("READ_REPLICATION_SLOT reply"))
        .await;
    scene.client_gets(&done("REPLIED")).await;
    scene.client_says(&front(Frontend::Terminate)).await;
    scene.ends().await;
}

#[tokio::test]
async fn settings_are_shown_as_the_primary_showed_them() {
    let mut scene = alone().await;
    for (name, shown, value) in [
        ("timezone", "TimeZone", "UTC"),
        ("search_path", "search_path", "app, public"),
    ] {
        scene.client_says(&query(&format!("SHOW {name}"))).await;
        let column = Column {
            name: shown,
            kind: 25,
        };
        scene
            .client_gets(&back(Backend::RowDescription(vec![column])))
            .await;
        scene
            .client_gets(&back(Backend::DataRow(vec![Some(value.as_bytes())])))
            .await;
        scene.client_gets(&done("SHOW")).await;
    }
    scene.client_says(&query("SHOW nothing")).await;
    scene.client_gets_error("ERROR", "42704").await;
    scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    for empty in ["", " ; ", "-- ping", "-- one\n;"] {
        scene.client_says(&query(empty)).await;
        scene.client_gets(&back(Backend::EmptyQueryResponse)).await;
        scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    }
    scene.client_says(&query("SELECT 1")).await;
    let report = scene.client_gets_error("ERROR", "55000").await;
    assert!(report.hint.is_some());
}

/// A session that keeps its connection to the primary, while it streams.
async fn kept() -> Scene {
    let mut scene = Scene::ready(LOGICAL).await;
    scene.commands.keeps.store(true, Ordering::Relaxed);
    scene
        .client_says(&query("DROP_REPLICATION_SLOT stream"))
        .await;
    scene.is_asked().await;
    scene.client_gets(&back(Backend::CopyBothResponse)).await;
    scene
}

async fn ends_its_copy(scene: &mut Scene) {
    scene.client_says(&front(Frontend::CopyDone)).await;
    scene.client_gets(&back(Backend::CopyDone)).await;
    scene.client_gets(&done("START_REPLICATION")).await;
}

#[tokio::test]
async fn a_session_that_keeps_its_connection_is_passed_through_again() {
    let mut scene = kept().await;
    for _ in 0..2 {
        let said = notice("while it streams");
        write(&mut scene.primary, &said, scene.piece).await;
        scene.client_says(&front(Frontend::CopyData(b"row"))).await;
        scene.client_gets(&back(Backend::CopyData(b"row"))).await;
        // What is sent at once with the end of the copy is no part of it.
        let select = query("SELECT 1");
        let mut last = front(Frontend::CopyDone);
        last.extend(&select);
        scene.client_says(&last).await;
        scene.client_gets(&back(Backend::CopyDone)).await;
        scene.client_gets(&done("START_REPLICATION")).await;
        scene.client_gets(&said).await;
        assert_eq!(read(&mut scene.primary, select.len()).await, select);
        scene.primary_says(&done("SELECT 1")).await;
        scene
            .client_says(&query("DROP_REPLICATION_SLOT stream"))
            .await;
        scene.client_gets(&back(Backend::CopyBothResponse)).await;
    }
    // A client that leaves while it streams leaves the primary politely.
    scene.client_says(&front(Frontend::CopyData(b"bye"))).await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));
    let seen = scene.ends().await.seen();
    assert!(!seen.contains(&"7 left the primary".to_owned()), "{seen:?}");
}

#[tokio::test]
async fn a_session_whose_kept_connection_ends_is_alone() {
    let mut scene = kept().await;
    let last = back(Backend::ErrorResponse(Report::fatal("57P01", "shutdown")));
    write(&mut scene.primary, &last, scene.piece).await;
    drop(std::mem::replace(&mut scene.primary, duplex(PIPE).0));
    scene.settle().await;
    ends_its_copy(&mut scene).await;
    scene.client_says(&query("SELECT 1")).await;
    scene.client_gets_error("ERROR", "55000").await;
    scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    scene
        .client_says(&query("READ_REPLICATION_SLOT reply"))
        .await;
    scene.client_gets(&done("REPLIED")).await;
    scene.client_says(&front(Frontend::Terminate)).await;
    let seen = scene.ends().await.seen();
    assert!(seen.contains(&"7 left the primary".to_owned()), "{seen:?}");
}

#[tokio::test]
async fn the_extended_protocol_is_refused_up_to_the_next_sync() {
    let mut scene = alone().await;
    for tag in *b"PBEDC" {
        scene.client_says(&other(tag, b"whatever")).await;
        scene.client_says(&other(b'B', b"more")).await;
        scene
            .client_says(&query("READ_REPLICATION_SLOT reply"))
            .await;
        scene.client_says(&other(b'F', b"more")).await;
        scene.client_says(&other(b'S', b"")).await;
        let report = scene.client_gets_error("ERROR", "0A000").await;
        assert!(report.hint.is_some());
        scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    }
    scene
        .client_says(&query("READ_REPLICATION_SLOT reply"))
        .await;
    scene.client_gets(&done("REPLIED")).await;
}

#[tokio::test]
async fn nonsense_ends_the_session() {
    for nonsense in [
        &b"\x01\0\0\0\x04"[..],
        b"p\0\0\0\x05\0",
        b"Q\0\0\0\x03",
        b"d\xff\xff\xff\xff",
        b"Q\x7f\xff\xff\xff",
    ] {
        let mut scene = alone().await;
        scene.client_says(nonsense).await;
        scene.client_gets_error("FATAL", "08P01").await;
        scene.ends().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_something_is_decided_is_noticed() {
    let mut scene = alone().await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT never"))
        .await;
    scene.settle().await;
    drop(scene.client);
    ended(scene.session).await;
    assert!(scene.commands.given_up.load(Ordering::Relaxed));
}

/// Says what it was asked and by whom.
struct Repeats;

impl ConsoleService for Repeats {
    fn answer(&self, rights: &Rights, query: &str) -> Vec<u8> {
        assert_ne!(query, "panic");
        back(Backend::CommandComplete(&format!("{rights:?} {query}")))
    }

    fn columns(&self, _: &str) -> Result<Vec<Column<'static>>, Report> {
        Ok(Vec::new())
    }
}

/// A console session up to the question about rights, which comes back.
async fn console(admin_role: Option<&str>) -> (Scene, String) {
    let (client, client_end) = duplex(PIPE);
    let (mut primary, primary_end) = duplex(PIPE);
    let commands = Arc::new(Scripted::default());
    let (stopper, stop) = stop::channel();
    let (start, _) = start(&[
        ("user", "me"),
        ("options", "-c search_path=mine"),
        ("client_encoding", "LATIN1"),
        ("database", "lockstep"),
        ("application_name", "psql"),
    ]);
    let arrival = Arrival {
        id: 1,
        peer: None,
        start,
    };
    assert_eq!(arrival.purpose(), Purpose::Console);
    let login = ConsoleLogin {
        database: "postgres".to_owned(),
        admin_role: admin_role.map(str::to_owned),
    };
    let theirs = Arc::clone(&commands);
    let session = tokio::spawn(async move {
        let client = Transport::Other(Box::new(client_end)).client();
        let primary = Transport::Other(Box::new(primary_end));
        let ours = (&theirs, &Arc::new(Repeats));
        let mut told = stop.clone();
        let admitted = console_session::log_in(client, primary, &arrival, &login, &mut told).await;
        if let Some(admitted) = admitted {
            console_session::serve(ours, admitted, stop).await;
        }
    });
    let expected = super::start(&[
        ("user", "me"),
        ("application_name", "psql"),
        ("database", "postgres"),
        ("client_encoding", "UTF8"),
    ]);
    assert_eq!(read(&mut primary, expected.1.len()).await, expected.1);
    let mut scene = Scene {
        client,
        primary,
        // It connects once.
        primaries: mpsc::unbounded_channel().0,
        commands,
        stopper,
        session,
        piece: PIPE,
    };
    write(&mut scene.primary, &welcome(), PIPE).await;
    // All but the last message, which waits for the rights.
    let welcome = welcome();
    scene.client_gets(&welcome[..welcome.len() - 6]).await;
    let (tag, question) = message(&mut scene.primary).await;
    assert_eq!(tag, b'Q');
    (scene, String::from_utf8(question).unwrap())
}

/// The primary's answer about rights.
fn rights([superuser, monitor, admin]: [&[u8]; 3]) -> Vec<u8> {
    let row = [superuser, monitor, admin, b"really_me"];
    let mut out = back(Backend::DataRow(row.map(Some).to_vec()));
    out.extend(done("SELECT 1"));
    out
}

#[tokio::test]
async fn the_console_answers_with_the_roles_rights() {
    let (mut scene, question) = console(Some("it's \\ a role")).await;
    assert!(question.contains(" E'it''s \\\\ a role'"), "{question}");
    write(&mut scene.primary, &rights([b"f", b"t", b"f"]), 3).await;
    scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));

    scene.client_says(&query("SHOW SLOTS")).await;
    let said =
        "Rights { user: \"really_me\", superuser: false, monitor: true, admin: false } SHOW SLOTS";
    scene.client_gets(&done(said)).await;
    for empty in ["", " ;", ";;\n"] {
        scene.client_says(&query(empty)).await;
        scene.client_gets(&back(Backend::EmptyQueryResponse)).await;
        scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    }
    scene.client_says(&query("panic")).await;
    scene.client_gets_error("ERROR", "XX000").await;
    scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
    scene.stopper.stop();
    scene.client_gets_error("FATAL", "57P01").await;
    let commands = scene.ends().await;
    let seen = ["opened 7", "7 left the primary", "closed 7"];
    assert_eq!(commands.seen(), seen);
}

#[tokio::test]
async fn without_an_answer_about_rights_there_is_no_console() {
    let mut refused = back(Backend::ErrorResponse(Report::error("42501", "no")));
    refused.extend(back(Backend::ReadyForQuery(b'I')));
    let mut twice = back(Backend::DataRow(vec![Some(b"t"); 3]));
    twice.extend(rights([b"f", b"f", b"f"]));
    for (said, sqlstate) in [
        (refused, "42501"),
        (twice, "08006"),
        (done("SELECT 0"), "08006"),
        (Vec::new(), "08006"),
        (b"Z\0\0\0\x01".to_vec(), "08006"),
    ] {
        let (mut scene, question) = console(None).await;
        assert!(question.contains(", false, r.rolname FROM"), "{question}");
        write(&mut scene.primary, &said, PIPE).await;
        scene.primary.shutdown().await.unwrap();
        scene.client_gets_error("FATAL", sqlstate).await;
        assert_eq!(rest(&mut scene.client).await, b"");
        assert!(scene.commands.seen().is_empty());
    }
}
