//! From the start packet to the first `ReadyForQuery`.

use super::*;

fn sasl(names: &[&str]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 10];
    for name in names {
        body.extend(name.as_bytes());
        body.push(0);
    }
    body.push(0);
    other(b'R', &body)
}

#[tokio::test]
async fn a_login_passes_but_for_channel_binding() {
    for piece in [1, 2, 3, 5, PIPE] {
        let mut scene = Scene::begin(USUAL).await;
        scene.piece = piece;
        let offer = sasl(&["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]);
        write(&mut scene.primary, &offer, piece).await;
        scene.client_gets(&sasl(&["SCRAM-SHA-256"])).await;
        let first = other(b'p', b"SCRAM-SHA-256\0\0\0\0\x05n,,xy");
        scene.passes_up(&first).await;
        scene.primary_says(&other(b'R', b"\0\0\0\x0br=1")).await;
        scene.passes_up(&other(b'p', b"c=biws")).await;
        let mut end = other(b'R', b"\0\0\0\x0cv=1");
        end.extend(notice("welcome"));
        end.extend(welcome());
        scene.primary_says(&end).await;
        scene.passes_up(&query("SELECT 1")).await;
    }
}

#[tokio::test]
async fn what_a_client_sends_too_early_waits_for_its_time() {
    let mut scene = Scene::begin(LOGICAL).await;
    scene
        .client_says(&query("DROP_REPLICATION_SLOT reply"))
        .await;
    scene.settle().await;
    scene.primary_says(&welcome()).await;
    scene.is_asked().await;
    scene.client_gets(&done("REPLIED")).await;
    assert_eq!(
        scene.commands.seen(),
        ["opened 7", "DROP_REPLICATION_SLOT reply"]
    );
}

#[tokio::test]
async fn a_refusal_of_the_primary_is_the_end() {
    let mut scene = Scene::begin(USUAL).await;
    let mut last = other(b'v', b"\0\0\0\0\0\0\0\0");
    last.extend(back(Backend::ErrorResponse(Report::fatal("3D000", "no"))));
    scene.primary_says(&last).await;
    scene.primary.shutdown().await.unwrap();
    let commands = scene.ends().await;
    assert!(commands.seen().is_empty());
}

#[tokio::test]
async fn a_client_that_leaves_or_rambles_during_its_login_is_the_end() {
    let mut scene = Scene::begin(USUAL).await;
    scene.primary_says(&other(b'R', b"\0\0\0\x03")).await;
    scene.client.shutdown().await.unwrap();
    scene.ends().await;

    let mut scene = Scene::begin(USUAL).await;
    scene.primary_says(&other(b'R', b"\0\0\0\x03")).await;
    scene.client_says(b"p\x7f\xff\xff\xff").await;
    scene.client_gets_error("FATAL", "08P01").await;
    scene.ends().await;
}

#[tokio::test]
async fn a_primary_that_makes_no_sense_is_named() {
    for nonsense in [
        &b"HTTP/1.1 400 Bad Request"[..],
        b"R\0\0\0\x01",
        b"S\x7f\0\0\0",
    ] {
        let mut scene = Scene::begin(USUAL).await;
        write(&mut scene.primary, nonsense, PIPE).await;
        let report = scene.client_gets_error("FATAL", "08P01").await;
        assert!(report.message.contains("the primary"), "{report:?}");
        scene.ends().await;
    }
}

fn too_many() -> Vec<u8> {
    let words = "number of requested standby connections exceeds max_wal_senders";
    back(Backend::ErrorResponse(Report::fatal("53300", words)))
}

#[tokio::test]
async fn a_login_without_a_walsender_is_tried_again_if_one_is_given_up() {
    let mut scene = Scene::begin(LOGICAL).await;
    scene.commands.gives.store(true, Ordering::Relaxed);
    // The second time what was given up has not ended yet.
    for _ in 0..2 {
        write(&mut scene.primary, &too_many(), PIPE).await;
        let (primary, theirs) = duplex(PIPE);
        scene.primaries.send(theirs).unwrap();
        scene.primary = primary;
        let (_, packet) = start(LOGICAL);
        assert_eq!(read(&mut scene.primary, packet.len()).await, packet);
    }
    scene.primary_says(&welcome()).await;
    scene.passes_up(&query("IDENTIFY_SYSTEM")).await;
    let seen = scene.commands.seen();
    assert_eq!(seen, ["short of Walsenders", "opened 7", "IDENTIFY_SYSTEM"]);
}

#[tokio::test]
async fn a_client_learns_that_nothing_can_be_given_up_for_it() {
    // Another session does not use a walsender, and nothing is given up for it.
    for (parameters, asked) in [(LOGICAL, &["short of Walsenders"][..]), (USUAL, &[])] {
        let mut scene = Scene::begin(parameters).await;
        scene.primary_says(&too_many()).await;
        assert_eq!(scene.ends().await.seen(), asked);
    }
    // So it does where the primary had asked for a password: it cannot be asked twice.
    let mut scene = Scene::begin(LOGICAL).await;
    scene.primary_says(&other(b'R', b"\0\0\0\x03")).await;
    scene.passes_up(&other(b'p', b"secret")).await;
    scene.primary_says(&too_many()).await;
    scene.primary.shutdown().await.unwrap();
    assert!(scene.ends().await.seen().is_empty());
}
