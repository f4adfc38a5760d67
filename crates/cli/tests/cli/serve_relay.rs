//! `lockstep serve` where a relay stands between the primary and its subscriber: its metrics
//! agree with the relay's own, and the page shows cache and spool.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::browser::Browser;
use crate::relay_support::{
    Relay, logical, publisher, subscribe, table_on_both, until, until_same,
};
use crate::serve_page::{pictures, until_drawn};
use crate::serve_support::{Answer, Serve};
use lockstep_lab::for_tests::{TestLab, free_port};
use lockstep_lab::server::{SUPERUSER, Settings};

/// What the relay itself says over HTTP.
fn own_metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    Answer::parse(&text).body
}

/// Values by series, of what both say; without the labels of `serve` alone.
fn of_relays(text: &str) -> BTreeMap<String, String> {
    let lines = text
        .lines()
        .filter(|line| line.starts_with("lockstep_relay_"));
    let pairs = lines.filter_map(|line| line.rsplit_once(' '));
    pairs
        .map(|(series, value)| {
            let series = series.replace("node=\"relay\",", "");
            let series = series.replace(",cluster=\"primary\"", "");
            (series, value.to_owned())
        })
        .collect()
}

#[test]
fn a_relays_cache_and_spool_are_shown() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    for server in [&primary, &subscriber] {
        server.run("CREATE TABLE t (id bigserial PRIMARY KEY, v text)");
    }
    primary.run("CREATE PUBLICATION p FOR TABLE t");
    let port = free_port().unwrap();
    let metrics = format!("127.0.0.1:{port}");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &["--metrics", &metrics]);
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION p",
        relay.conninfo()
    ));
    primary.run("INSERT INTO t (v) SELECT repeat('x', 1000) FROM generate_series(1, 1000)");
    until_same(&primary, &subscriber, "t");

    let console = format!("port={} user={SUPERUSER}", relay.port);
    let serve = Serve::start(&[
        "--primary",
        &primary.conninfo(SUPERUSER),
        "--relay",
        &console,
        "--subscriber",
        &subscriber.conninfo(SUPERUSER),
    ]);
    // Nobody writes any more, so both say the same once both have seen the last of it.
    until("serve says what the relay says", || {
        let ours = of_relays(&serve.get("/metrics").body);
        let own = of_relays(&own_metrics(port));
        let hits = ours
            .iter()
            .find(|(series, _)| series.starts_with("lockstep_relay_slot_cache_hit"));
        let is_served = hits.is_some_and(|(_, blocks)| blocks != "0");
        (is_served
            && ours
                .iter()
                .all(|(series, value)| own.get(series) == Some(value)))
        .then_some(())
    });
    until("both legs are followed", || {
        let state = serve.state();
        let links = state["links"].as_array()?.clone();
        let ups: Vec<_> = links.iter().map(|link| link["upstream"].clone()).collect();
        (ups.contains(&"primary".into()) && ups.contains(&"relay".into())).then_some(())
    });
    page_has_the_relay(&serve);
}

fn page_has_the_relay(serve: &Serve) {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&format!("http://{}/", serve.address));
    let card = until("the page has the relay", || {
        let card =
            browser.text("return document.querySelector('#relay-list article')?.textContent");
        (!card.is_empty()).then_some(card)
    });
    for part in [
        "✓ streaming",
        "in memory",
        "on disk",
        "% of ",
        " blocks from memory",
    ] {
        assert!(card.contains(part), "{card}");
    }
    let server = browser.text("return document.getElementById('node-list').textContent");
    assert!(server.contains("lockstep relay "), "{server}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    if let Some(folder) = pictures() {
        browser.resize(360, 740, true);
        browser.picture(&folder.join("relay-phone.png"));
    }
}

/// A standby of a standby, and a subscriber behind a relay: each stands behind its upstream.
#[test]
fn the_picture_has_a_cascade_and_a_relay() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = table_on_both(&lab, "t (id int PRIMARY KEY)");
    let first = lab.standby(&primary, "first", &Settings::new()).unwrap();
    let second = lab.standby(&first, "second", &Settings::new()).unwrap();
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, "s", &relay.conninfo(), "p");
    let console = format!("port={} user={SUPERUSER}", relay.port);
    let [primary, first, second, subscriber] =
        [&primary, &first, &second, &subscriber].map(|server| server.conninfo(SUPERUSER));
    let serve = Serve::start(&[
        "--primary",
        &primary,
        // The one that is further away first: the order must not matter.
        "--standby",
        &second,
        "--standby",
        &first,
        "--relay",
        &console,
        "--subscriber",
        &subscriber,
    ]);
    browser.open(&format!("http://{}/", serve.address));
    for width in [360, 1920] {
        until_drawn(&browser, width, 5, 4);
    }
    until("each place names its upstream", || {
        let roles = browser.run(
            "return [...document.querySelectorAll('.place')].map((place) =>
                 place.querySelector('strong').textContent + ' | '
                 + place.querySelector('.role').textContent)",
        );
        let mut roles: Vec<String> = serde_json::from_value(roles).unwrap();
        roles.sort();
        println!("{roles:?}");
        let expected = [
            "✓ first | standby, from primary",
            "✓ primary | primary",
            "✓ relay | relay, from primary",
            "✓ second | standby, from first",
            "✓ subscriber | subscriber, from relay",
        ];
        (roles == expected).then_some(())
    });
    // To the right of its upstream, or on a phone below it.
    let places = "const box = (name) => [...document.querySelectorAll('.place')]
         .find((place) => place.querySelector('strong').textContent.endsWith(' ' + name))
         .getBoundingClientRect();
         const pairs = [['primary', 'first'], ['first', 'second'], ['primary', 'relay'],
             ['relay', 'subscriber']].map((names) => names.map(box));";
    let right = format!("{places} return pairs.every(([up, at]) => at.left > up.right)");
    assert_eq!(browser.run(&right), true);
    browser.resize(360, 740, true);
    let below = format!("{places} return pairs.every(([up, at]) => at.top >= up.bottom)");
    until("the picture grows downwards", || {
        (browser.run(&below) == true).then_some(())
    });
    assert_eq!(browser.complaints(), Vec::<String>::new());
    if let Some(folder) = pictures() {
        browser.picture(&folder.join("cascade-phone.png"));
        browser.resize(1920, 1080, false);
        browser.picture(&folder.join("cascade-wide.png"));
    }
}
