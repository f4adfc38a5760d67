//! What passes, what is answered, and how sessions end.

use super::*;

/// Sizes of pieces that a conversation is cut into; 1 cuts at every byte.
pub(super) const PIECES: [usize; 7] = [1, 2, 3, 5, 7, 64, PIPE];

#[tokio::test]
async fn a_subscriber_is_passed_through_answered_streamed_and_left_alone() {
    for piece in PIECES {
        let mut scene = Scene::begin(LOGICAL).await;
        scene.piece = piece;
        scene.primary_says(&welcome()).await;
        scene.passes_up(&query("IDENTIFY_SYSTEM")).await;
        scene.primary_says(&done("IDENTIFY_SYSTEM")).await;
        scene
            .client_says(&query("DROP_REPLICATION_SLOT reply"))
            .await;
        scene.is_asked().await;
        scene.client_gets(&done("REPLIED")).await;
        // What may have changed is asked again.
        scene
            .client_says(&query("READ_REPLICATION_SLOT reply"))
            .await;
        scene.is_asked().await;
        scene.client_gets(&done("REPLIED")).await;
        scene.passes_up(&query("BEGIN")).await;
        let mut in_transaction = back(Backend::CommandComplete("BEGIN"));
        Backend::ReadyForQuery(b'T').encode(&mut in_transaction);
        scene.primary_says(&in_transaction).await;
        // In a transaction block nobody is asked.
        scene.passes_up(&query("DROP_REPLICATION_SLOT reply")).await;
        scene.primary_says(&done("COMMIT")).await;

        // What comes at once behind it belongs to the stream.
        let mut at_once = query("DROP_REPLICATION_SLOT stream");
        at_once.extend(front(Frontend::CopyData(b"first")));
        scene.client_says(&at_once).await;
        scene.client_gets(&back(Backend::CopyBothResponse)).await;
        scene.client_gets(&back(Backend::CopyData(b"first"))).await;
        assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));

        let mut end = front(Frontend::CopyDone);
        end.extend(query("READ_REPLICATION_SLOT reply"));
        end.extend(query("SELECT 1"));
        scene.client_says(&end).await;
        scene.client_gets(&back(Backend::CopyDone)).await;
        scene.client_gets(&done("START_REPLICATION")).await;
        scene.client_gets(&done("REPLIED")).await;
        let report = scene.client_gets_error("ERROR", "55000").await;
        assert!(report.message.contains("closed when streaming began"));
        scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
        scene
            .client_says(&query("DROP_REPLICATION_SLOT stream"))
            .await;
        scene.client_gets(&back(Backend::CopyBothResponse)).await;
        scene.client_says(&front(Frontend::CopyData(b"bye"))).await;
        let commands = scene.ends().await;
        assert_eq!(
            commands.seen(),
            [
                "opened 7",
                "IDENTIFY_SYSTEM",
                "DROP_REPLICATION_SLOT reply",
                "READ_REPLICATION_SLOT reply",
                "BEGIN",
                "DROP_REPLICATION_SLOT stream",
                "7 left the primary",
                "READ_REPLICATION_SLOT reply",
                "SELECT 1",
                "DROP_REPLICATION_SLOT stream",
                "closed 7"
            ],
            "{piece}"
        );
    }
}

#[tokio::test]
async fn nobody_is_asked_in_other_sessions() {
    for parameters in [
        USUAL,
        &[
            ("user", "me"),
            ("database", "lockstep"),
            ("replication", "database"),
        ],
    ] {
        let mut scene = Scene::ready(parameters).await;
        scene.passes_up(&query("DROP_REPLICATION_SLOT reply")).await;
        scene.primary_says(&done("DROP_REPLICATION_SLOT")).await;
        scene.passes_up(&front(Frontend::Terminate)).await;
        drop(std::mem::replace(&mut scene.primary, duplex(1).0));
        let commands = scene.ends().await;
        assert_eq!(commands.seen(), ["opened 7", "closed 7"]);
    }
}

/// A session in which messages come in pieces of this size.
async fn in_pieces(piece: usize) -> Scene {
    let mut scene = Scene::ready(LOGICAL).await;
    scene.piece = piece;
    scene
}

#[tokio::test]
async fn the_primary_says_where_a_session_stands() {
    for piece in PIECES {
        // What comes unasked meanwhile is the client's.
        let mut scene = in_pieces(piece).await;
        scene
            .client_says(&query("READ_REPLICATION_SLOT reply"))
            .await;
        let mut said = notice("before");
        let answers = standing(Some("db"));
        let (_, first) = frame::first(&answers, PIPE).unwrap().unwrap();
        said.extend(&answers[..first]);
        said.extend(notice("between"));
        said.extend(&answers[first..]);
        scene.is_asked_and(&said).await;
        scene.client_gets(&notice("before")).await;
        let both = [notice("between"), done("REPLIED")].concat();
        scene.client_gets(&both).await;
    }
}

#[tokio::test]
async fn a_session_without_a_database_is_asked_about_once() {
    for piece in PIECES {
        // It says so, or only the primary does.
        for parameters in [LOGICAL, &[("user", "me"), ("replication", "true")]] {
            let mut scene = Scene::ready(parameters).await;
            scene.piece = piece;
            for again in [false, true] {
                let command = query("READ_REPLICATION_SLOT reply");
                scene.client_says(&command).await;
                if !again {
                    scene.is_asked_and(&standing(None)).await;
                }
                scene.client_gets(&done("REPLIED")).await;
            }
        }

        // No session of replication.
        let mut scene = in_pieces(piece).await;
        let command = query("DROP_REPLICATION_SLOT reply");
        scene.client_says(&command).await;
        let mut refused = Vec::new();
        for _ in 0..standing::ANSWERS {
            refused.extend(back(Backend::ErrorResponse(Report::error("42601", "what"))));
            refused.extend(back(Backend::ReadyForQuery(b'I')));
        }
        scene.is_asked_and(&refused).await;
        assert_eq!(read(&mut scene.primary, command.len()).await, command);
    }
}

#[tokio::test]
async fn what_interrupts_the_question_is_for_the_client() {
    for piece in PIECES {
        // A cancel request that meets the question was meant for the command.
        let mut scene = in_pieces(piece).await;
        scene
            .client_says(&query("DROP_REPLICATION_SLOT reply"))
            .await;
        let canceled = back(Backend::ErrorResponse(Report::error("57014", "canceled")));
        let mut said = canceled.clone();
        said.extend(back(Backend::ReadyForQuery(b'I')));
        for _ in 1..standing::ANSWERS {
            said.extend(done("SHOW"));
        }
        scene.is_asked_and(&said).await;
        scene.client_gets(&canceled).await;
        scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
        // The session goes on.
        scene
            .client_says(&query("DROP_REPLICATION_SLOT reply"))
            .await;
        scene.is_asked().await;
        scene.client_gets(&done("REPLIED")).await;

        // Its last words are the client's.
        let mut scene = in_pieces(piece).await;
        scene
            .client_says(&query("DROP_REPLICATION_SLOT reply"))
            .await;
        let last = back(Backend::ErrorResponse(Report::fatal("57P01", "going")));
        scene.is_asked_and(&last).await;
        drop(std::mem::replace(&mut scene.primary, duplex(1).0));
        assert_eq!(rest(&mut scene.client).await, last);
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_the_primary_is_asked_is_noticed() {
    let mut scene = Scene::ready(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT never"))
        .await;
    scene.is_asked_and(&[]).await;
    drop(scene.client);
    ended(scene.session).await;
    assert!(!scene.commands.given_up.load(Ordering::Relaxed));

    let mut scene = Scene::ready(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT never"))
        .await;
    scene.is_asked_and(&[]).await;
    scene.stopper.stop();
    scene.client_gets_error("FATAL", "57P01").await;
}

#[tokio::test]
async fn a_command_that_is_canceled_is_given_up() {
    let mut scene = Scene::ready(LOGICAL).await;
    let command = query("DROP_REPLICATION_SLOT never");
    scene.client_says(&command).await;
    scene.is_asked().await;
    // One that comes before anything is decided means nothing here.
    while scene.commands.cancel.send(()).is_err() {
        tokio::task::yield_now().await;
    }
    let mut expected = back(Backend::ErrorResponse(crate::session::canceled()));
    Backend::ReadyForQuery(b'I').encode(&mut expected);
    assert_eq!(read(&mut scene.client, expected.len()).await, expected);
    assert!(scene.commands.given_up.load(Ordering::Relaxed));
    scene.passes_up(&query("SELECT 1")).await;
}

#[tokio::test]
async fn queries_that_are_long_or_early_or_strange_pass() {
    let mut scene = Scene::ready(LOGICAL).await;
    // Not idle: the first has no answer yet.
    let mut both = query("SELECT 1");
    both.extend(query("DROP_REPLICATION_SLOT reply"));
    scene.passes_up(&both).await;
    scene.primary_says(&done("SELECT 1")).await;
    // The second is still under way.
    scene.passes_up(&query("DROP_REPLICATION_SLOT reply")).await;
    scene.primary_says(&done("a")).await;
    scene.primary_says(&done("b")).await;

    let long = format!("{} reply", "x".repeat(super::super::pump::QUERY_LIMIT));
    let (mut client, mut primary) = (scene.client, scene.primary);
    let expected = query(&long);
    let sent = expected.clone();
    let writing = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client
    });
    assert!(read(&mut primary, expected.len()).await == expected);
    (scene.client, scene.primary) = (writing.await.unwrap(), primary);
    scene.primary_says(&done("SELECT 1")).await;

    // No text, no end, an end within, no command.
    for strange in [
        &b"\xff reply\0"[..],
        b"reply",
        b"re\0ply\0",
        b"SHOW reply reply\0",
    ] {
        scene.passes_up(&other(b'Q', strange)).await;
        scene.primary_says(&done("x")).await;
    }
    assert_eq!(scene.commands.seen(), ["opened 7", "SELECT 1"]);
    scene
        .client_says(&query("DROP_REPLICATION_SLOT reply"))
        .await;
    scene.is_asked().await;
    scene.client_gets(&done("REPLIED")).await;
}

#[tokio::test]
async fn a_session_is_ended_alone() {
    let why = || Some(Report::fatal("57P01", "by an administrator"));
    // Passed through: told in words.
    let mut scene = Scene::ready(LOGICAL).await;
    scene.commands.terminate.send_replace(why());
    scene.client_gets_error("FATAL", "57P01").await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));
    assert_eq!(scene.ends().await.seen(), ["opened 7", "closed 7"]);
    // One that does not end by itself, as if its client took nothing: after a while.
    let mut scene = Scene::ready(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT stream"))
        .await;
    scene.is_asked().await;
    scene.client_gets(&back(Backend::CopyBothResponse)).await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));
    scene.commands.terminate.send_replace(why());
    scene.ends().await;
}

#[tokio::test]
async fn an_answer_waits_for_the_end_of_the_primarys_message() {
    let mut scene = Scene::ready(LOGICAL).await;
    let notice = notice("look out");
    let (begin, end) = notice.split_at(9);
    scene.primary_says(begin).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT reply"))
        .await;
    scene.is_asked_and(end).await;
    scene.client_gets(end).await;
    let answer = standing(Some("db"));
    write(&mut scene.primary, &answer, PIPE).await;
    scene.client_gets(&done("REPLIED")).await;
    // The same before streaming begins.
    scene.primary_says(begin).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT stream"))
        .await;
    scene.settle().await;
    scene.primary_says(end).await;
    scene.client_gets(&back(Backend::CopyBothResponse)).await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));
}

#[tokio::test]
async fn what_the_primary_said_last_reaches_the_client() {
    for parameters in [USUAL, LOGICAL] {
        let mut scene = Scene::ready(parameters).await;
        scene.passes_up(&query("SELECT 1")).await;
        let last = back(Backend::ErrorResponse(Report::fatal("57P01", "going")));
        write(&mut scene.primary, &last, 3).await;
        drop(std::mem::replace(&mut scene.primary, duplex(1).0));
        assert_eq!(rest(&mut scene.client).await, last);
    }
}

#[tokio::test]
async fn a_client_that_says_no_more_gets_its_answers() {
    for parameters in [USUAL, LOGICAL] {
        let mut scene = Scene::ready(parameters).await;
        scene.passes_up(&query("SELECT 1")).await;
        // Half a message behind it.
        scene.client_says(&query("SELECT 2")[..7]).await;
        scene.client.shutdown().await.unwrap();
        assert_eq!(rest(&mut scene.primary).await, &query("SELECT 2")[..7]);
        scene.primary_says(&done("SELECT 1")).await;
        scene.primary.shutdown().await.unwrap();
        scene.ends().await;
    }
}

#[tokio::test]
async fn half_a_query_is_the_primarys_as_well() {
    // Of the header, and of the text.
    for length in [3, 9] {
        let mut scene = Scene::ready(LOGICAL).await;
        let half = &query("IDENTIFY_SYSTEM")[..length];
        scene.client_says(half).await;
        scene.client.shutdown().await.unwrap();
        assert_eq!(rest(&mut scene.primary).await, half);
        scene.primary.shutdown().await.unwrap();
        assert_eq!(scene.ends().await.seen(), ["opened 7", "closed 7"]);
    }
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_session_with_it() {
    let scene = Scene::ready(LOGICAL).await;
    let Scene {
        mut client,
        mut primary,
        commands,
        session,
        stopper,
        ..
    } = scene;
    client
        .write_all(&query("DROP_REPLICATION_SLOT never"))
        .await
        .unwrap();
    let questions = standing::questions();
    assert_eq!(read(&mut primary, questions.len()).await, questions);
    write(&mut primary, &standing(Some("db")), PIPE).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(client);
    ended(session).await;
    assert!(commands.given_up.load(Ordering::Relaxed));
    assert_eq!(rest(&mut primary).await, b"");
    assert_eq!(commands.seen().pop().unwrap(), "closed 7");
    drop(stopper);
}

#[tokio::test]
async fn a_primary_that_dies_while_something_is_decided_is_not_missed() {
    let mut scene = Scene::ready(LOGICAL).await;
    drop(std::mem::replace(&mut scene.primary, duplex(1).0));
    // Whether the end of the primary or the query comes first is not certain.
    if scene
        .client
        .write_all(&query("DROP_REPLICATION_SLOT stream"))
        .await
        .is_ok()
    {
        let said = rest_or_copy(&mut scene.client).await;
        assert!(said.is_empty() || said == back(Backend::CopyBothResponse));
    }
}

/// Everything up to the end or the beginning of a copy.
async fn rest_or_copy(client: &mut DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes != back(Backend::CopyBothResponse) {
        match timeout(PATIENCE, client.read_u8())
            .await
            .expect("nothing came")
        {
            Ok(byte) => bytes.push(byte),
            Err(_) => break,
        }
    }
    bytes
}

#[tokio::test]
async fn stopping_is_said_between_messages() {
    // Idle.
    let mut scene = Scene::ready(USUAL).await;
    scene.stopper.stop();
    scene.client_gets_error("FATAL", "57P01").await;
    assert_eq!(rest(&mut scene.primary).await, front(Frontend::Terminate));
    scene.ends().await;
    // Within a message of the primary.
    let mut scene = Scene::ready(USUAL).await;
    let notice = notice("look out");
    let (begin, end) = notice.split_at(9);
    scene.primary_says(begin).await;
    scene.stopper.stop();
    scene.settle().await;
    scene.primary_says(end).await;
    scene.client_gets_error("FATAL", "57P01").await;
    // While something is decided.
    let mut scene = Scene::ready(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT never"))
        .await;
    scene.is_asked().await;
    scene.settle().await;
    scene.stopper.stop();
    scene.client_gets_error("FATAL", "57P01").await;
    assert!(scene.commands.given_up.load(Ordering::Relaxed));
    // Alone.
    let mut scene = Scene::ready(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT stream"))
        .await;
    scene.is_asked().await;
    scene.client_gets(&back(Backend::CopyBothResponse)).await;
    scene.client_says(&front(Frontend::CopyDone)).await;
    scene.client_gets(&back(Backend::CopyDone)).await;
    scene.client_gets(&done("START_REPLICATION")).await;
    scene.stopper.stop();
    scene.client_gets_error("FATAL", "57P01").await;
    // During the login.
    let mut scene = Scene::begin(USUAL).await;
    scene.stopper.stop();
    scene.client_gets_error("FATAL", "57P01").await;
}

#[tokio::test]
async fn nothing_is_collected_for_a_side_that_does_not_read() {
    let scene = Scene::ready(LOGICAL).await;
    let mut client = scene.client;
    let big = other(b'd', &[7; 4 << 20]);
    let mut written = 0;
    let full = loop {
        tokio::select! {
            biased;
            length = client.write(&big[written..]) => written += length.unwrap(),
            // Only when nothing could be written for a while.
            () = async { for _ in 0..1000 { tokio::task::yield_now().await } } => break written,
        }
    };
    assert!(full <= super::super::pump::BUFFER + 2 * PIPE, "{full}");
    let mut primary = scene.primary;
    assert!(read(&mut primary, full).await == big[..full]);
}

#[tokio::test]
async fn nonsense_is_for_the_primary_to_refuse() {
    for nonsense in [
        &b"\x01\0\0\0\x04"[..],
        b"Q\0\0\0\x03abc",
        b"Q\xff\xff\xff\xffabc",
    ] {
        let mut scene = Scene::ready(LOGICAL).await;
        scene.passes_up(nonsense).await;
        let last = back(Backend::ErrorResponse(Report::fatal("08P01", "no")));
        write(&mut scene.primary, &last, PIPE).await;
        drop(std::mem::replace(&mut scene.primary, duplex(1).0));
        assert_eq!(rest(&mut scene.client).await, last);
    }
    // A primary that makes no sense is passed on as well, but never spoken for.
    let mut scene = Scene::ready(LOGICAL).await;
    scene.primary_says(b"Z\0\0\0\x01what").await;
    scene.passes_up(&query("DROP_REPLICATION_SLOT reply")).await;
    scene.stopper.stop();
    assert_eq!(rest(&mut scene.client).await, b"");
}

#[tokio::test]
async fn something_is_given_up_for_a_slot_that_has_no_place() {
    let mut scene = Scene::ready(LOGICAL).await;
    // As an initial synchronisation does: in a transaction block, where nobody is asked.
    scene.passes_up(&query("BEGIN")).await;
    let mut in_transaction = back(Backend::CommandComplete("BEGIN"));
    Backend::ReadyForQuery(b'T').encode(&mut in_transaction);
    scene.primary_says(&in_transaction).await;
    scene
        .passes_up(&query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput"))
        .await;
    for (sqlstate, notes) in [("42710", 0), ("53400", 1)] {
        let mut refused = notice("something before it");
        let report = Report::error(sqlstate, "all replication slots are in use");
        Backend::ErrorResponse(report).encode(&mut refused);
        Backend::ReadyForQuery(b'E').encode(&mut refused);
        scene.primary_says(&refused).await;
        scene.settle().await;
        let seen = scene.commands.seen();
        let short = seen.iter().filter(|note| *note == "short of Slots");
        assert_eq!(short.count(), notes, "{seen:?}");
        scene.passes_up(&query("ROLLBACK")).await;
    }
}
