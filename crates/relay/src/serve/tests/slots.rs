//! SQL that concerns slots, in sessions of any kind and cut anywhere.

use super::passing::PIECES;
use super::*;

/// A slot of the relay.
const KEPT: &str = "kept";
const CREATE: &str = "SELECT pg_create_logical_replication_slot('kept', 'pgoutput')";

fn parse(text: &str) -> Vec<u8> {
    other(b'P', &[b"\0", text.as_bytes(), &[0; 3]].concat())
}

/// Takes what the primary gets in the place of what is refused, and what that is said to be.
async fn failing(scene: &mut Scene, tag: u8) -> String {
    let (got, body) = message(&mut scene.primary).await;
    assert_eq!(got, tag);
    let body = String::from_utf8(body).unwrap();
    let (_, why) = body.split_once('"').unwrap();
    why.split_once('"').unwrap().0.to_owned()
}

#[tokio::test]
async fn a_refusal_takes_the_place_of_the_primarys_error() {
    for piece in PIECES {
        for parameters in [USUAL, LOGICAL] {
            let mut scene = Scene::ready(parameters).await;
            scene.piece = piece;
            scene.commands.kept(KEPT);
            scene.client_says(&query(CREATE)).await;
            let why = failing(&mut scene, b'Q').await;
            // With other messages before and behind it, and another error.
            let mut said = notice("before");
            let other = back(Backend::ErrorResponse(Report::error("42703", "another")));
            let error = Report::error("42703", format!("column \"{why}\" does not exist"));
            said.extend(&other);
            said.extend(back(Backend::ErrorResponse(error)));
            said.extend(back(Backend::ReadyForQuery(b'I')));
            write(&mut scene.primary, &said, piece).await;
            scene.client_gets(&notice("before")).await;
            scene.client_gets(&other).await;
            scene.client_gets_error("ERROR", "42710").await;
            scene.client_gets(&back(Backend::ReadyForQuery(b'I'))).await;
            // The session goes on.
            scene.passes_up(&query("SELECT 1")).await;
            scene.primary_says(&done("SELECT 1")).await;
        }
    }
}

#[tokio::test]
async fn what_the_primary_throws_away_leaves_no_refusal_behind() {
    for piece in PIECES {
        let mut scene = Scene::ready(USUAL).await;
        scene.piece = piece;
        scene.commands.kept(KEPT);
        let sync = other(b'S', b"");
        let first = parse("SELECT nonsense");
        scene.passes_up(&first).await;
        scene.client_says(&parse(CREATE)).await;
        let why = failing(&mut scene, b'P').await;
        scene.passes_up(&sync).await;
        let mut said = back(Backend::ErrorResponse(Report::error("42703", "nonsense")));
        said.extend(back(Backend::ReadyForQuery(b'I')));
        scene.primary_says(&said).await;
        // Nobody is to be told any more, whatever says so.
        scene.passes_up(&query("SELECT 1")).await;
        let late = back(Backend::ErrorResponse(Report::error("42703", why)));
        scene.primary_says(&late).await;
    }
}

#[tokio::test]
async fn a_statement_that_lists_slots_is_sent_with_them() {
    for piece in PIECES {
        let mut scene = Scene::ready(USUAL).await;
        scene.piece = piece;
        scene.commands.kept(KEPT);
        let text = "SELECT * FROM pg_replication_slots";
        scene.client_says(&parse(text)).await;
        let (tag, body) = message(&mut scene.primary).await;
        let body = String::from_utf8(body).unwrap();
        assert_eq!(tag, b'P');
        assert!(
            body.starts_with("\0WITH pg_replication_slots AS ("),
            "{body}"
        );
        assert!(body.contains("\"slot_name\":\"kept\""), "{body}");
        assert!(body.ends_with(&format!("{text}\0\0\0")), "{body}");
        // What it does not know goes on as it is, however long.
        let long = other(
            b'P',
            &[&b"\0"[..], &[b'x'; 70_000], b" pg_replication_slots\0\0\0"].concat(),
        );
        let half = long.len() / 2;
        for part in [&long[..half], &long[half..]] {
            let (client, primary) = (&mut scene.client, &mut scene.primary);
            let sent = async { write(client, part, PIPE).await };
            let (_, got) = tokio::join!(sent, read(primary, part.len()));
            assert_eq!(got, part);
        }
    }
}
