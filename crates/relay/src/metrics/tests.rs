//! The text format, read back by its rules, and both pages over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use lockstep_lab::for_tests;
use lockstep_wire::Lsn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::*;
use crate::stats::ClientStat;

fn example() -> Snapshot {
    let lsn = Lsn::from;
    let group = GroupStat {
        name: "orders".to_owned(),
        state: GroupState::Streaming,
        watched: true,
        sent: lsn(500),
        received: lsn(400),
        durable: lsn(300),
        oldest_spooled: lsn(100),
        cache_bytes: 1 << 20,
        cache_limit_bytes: 16 << 20,
        spool_bytes: 1 << 30,
        spool_limit_bytes: 0,
        transactions: 12,
        received_bytes: 3456,
        ..GroupStat::default()
    };
    let slot = SlotStat {
        name: "sub_1".to_owned(),
        group: "orders".to_owned(),
        active_pid: Some(1),
        sent: lsn(250),
        confirmed: lsn(200),
        behind_bytes: 50,
        cache_hit: 24,
        cache_miss: 1,
        last_reset_unix_us: 1_795_280_832_000_456,
        ..SlotStat::default()
    };
    let client = |state| ClientStat {
        state,
        ..ClientStat::default()
    };
    Snapshot {
        groups: vec![
            group.clone(),
            GroupStat {
                name: "other".to_owned(),
                state: GroupState::Waiting,
                reason: "the spool is full".to_owned(),
                ..group
            },
        ],
        slots: vec![
            slot.clone(),
            SlotStat {
                name: "sub_2".to_owned(),
                active_pid: None,
                last_reset_unix_us: 0,
                ..slot
            },
        ],
        clients: vec![
            client(ClientState::Streaming),
            client(ClientState::Console),
            client(ClientState::Streaming),
        ],
    }
}

/// A sample's name and labels.
type Series = (String, BTreeMap<String, String>);

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Labels of `{a="b",c="d"}` without the braces.
fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut left = text;
    while !left.is_empty() {
        let (name, rest) = left.split_once("=\"").unwrap();
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut rest = rest.chars();
        loop {
            match rest.next().unwrap() {
                '"' => break,
                '\\' => value.push(match rest.next().unwrap() {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c}"),
                }),
                '\n' => panic!("a line ends inside a label"),
                c => value.push(c),
            }
        }
        assert_eq!(labels.insert(name.to_owned(), value), None);
        left = rest.as_str();
        left = left.strip_prefix(',').unwrap_or(left);
    }
    labels
}

/// Reads the format 0.0.4 and checks its rules: each family once and in one piece, HELP and
/// TYPE before its samples, no series twice, every value a number.
fn parse(text: &str) -> BTreeMap<Series, f64> {
    assert!(text.ends_with('\n'));
    let mut families = BTreeSet::new();
    let mut family = String::new();
    let mut samples = BTreeMap::new();
    // Only \n ends a line, unlike for str::lines.
    let mut lines = text.strip_suffix('\n').unwrap().split('\n');
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && help.ends_with('.'), "{line}");
            assert!(families.insert(name.to_owned()), "{name} is there twice");
            family = name.to_owned();
            let kind = lines.next().unwrap();
            let expected = match name.ends_with("_total") {
                true => "counter",
                false => "gauge",
            };
            assert_eq!(kind, format!("# TYPE {name} {expected}"));
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, rest) = series.split_once('{').unwrap();
        assert_eq!(name, family);
        let labels = labels(rest.strip_suffix('}').unwrap());
        let before = samples.insert((name.to_owned(), labels), value.parse().unwrap());
        assert_eq!(before, None, "{series} is there twice");
    }
    samples
}

#[test]
fn metrics_are_as_recorded() {
    let text = render(&example()).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics/example.txt");
    lockstep_lab::for_tests::assert_recorded(&path, &text);
}

#[test]
fn metrics_can_be_parsed_and_are_named_by_the_rules() {
    let samples = parse(&render(&example()));
    for (name, labels) in samples.keys() {
        let name = name.strip_prefix("lockstep_relay_").unwrap();
        let unitless = [
            "build_info",
            "upstream_state",
            "slot_active",
            "slot_failed",
            "clients",
        ];
        assert!(
            unitless.contains(&name)
                || ["_bytes", "_seconds", "_total"]
                    .iter()
                    .any(|suffix| name.ends_with(suffix)),
            "{name}"
        );
        for label in labels.keys() {
            assert!(["group", "slot", "state", "version"].contains(&label.as_str()));
        }
    }
    let value = |name: &str, wanted: &[(&str, &str)]| {
        let labels = wanted
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        samples[&(format!("lockstep_relay_{name}"), labels)]
    };
    assert_eq!(
        value(
            "upstream_state",
            &[("group", "other"), ("state", "waiting")]
        ),
        1.0
    );
    assert_eq!(
        value(
            "upstream_state",
            &[("group", "other"), ("state", "streaming")]
        ),
        0.0
    );
    assert_eq!(
        value("upstream_received_bytes_total", &[("group", "orders")]),
        3456.0
    );
    let slot = [("group", "orders"), ("slot", "sub_1")];
    assert_eq!(value("slot_cache_hit_blocks_total", &slot), 24.0);
    assert_eq!(
        value("slot_stats_reset_timestamp_seconds", &slot),
        1_795_280_832.000_456
    );
    assert_eq!(value("clients", &[("state", "streaming")]), 2.0);
    assert_eq!(value("clients", &[("state", "passed through")]), 0.0);
    // Nothing at all is metrics, too.
    parse(&render(&Snapshot::default()));
}

#[test]
fn the_document_names_every_metric_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/relay.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("| metric | labels |").unwrap();
    let named: BTreeSet<&str> = table
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|names| names.split('`').skip(1).step_by(2))
        .collect();
    let samples = parse(&render(&example()));
    let found = samples
        .keys()
        .map(|(name, _)| name.trim_start_matches("lockstep_relay_"));
    assert_eq!(named, found.collect());
}

#[test]
fn any_name_stays_inside_its_label() {
    let seed = for_tests::number("SEED").unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let pieces = [
        "a",
        "\\",
        "\"",
        "\n",
        "\r",
        "}",
        ",",
        "=",
        " ",
        "# HELP x y",
        "ä",
        "\u{2028}",
    ];
    for _ in 0..300 {
        let names: BTreeSet<String> = (0..5)
            .map(|_| {
                (0..random.usize(1..6))
                    .map(|_| pieces[random.usize(..pieces.len())])
                    .collect()
            })
            .collect();
        let mut snapshot = example();
        snapshot.slots = names
            .iter()
            .map(|name| SlotStat {
                name: name.clone(),
                ..SlotStat::default()
            })
            .collect();
        let found: BTreeSet<String> = parse(&render(&snapshot))
            .into_keys()
            .filter_map(|(_, labels)| labels.get("slot").cloned())
            .collect();
        assert_eq!(found, names, "seed {seed}");
    }
}

#[test]
fn health_names_every_group_and_slot_that_it_watches() {
    let mut snapshot = example();
    assert_eq!(
        health(&snapshot),
        (
            false,
            "{\"reasons\":[{\"group\":\"other\",\"reason\":\"the spool is full\",\
             \"state\":\"waiting\"}],\"status\":\"not streaming\"}\n"
                .to_owned()
        )
    );
    // One that nobody configured.
    snapshot.groups[1].watched = false;
    assert_eq!(
        health(&snapshot),
        (true, "{\"reasons\":[],\"status\":\"ok\"}\n".to_owned())
    );
    assert!(health(&Snapshot::default()).0);
    snapshot.slots[1].reason = "the spool is damaged".to_owned();
    assert_eq!(
        health(&snapshot),
        (
            false,
            "{\"reasons\":[{\"reason\":\"the spool is damaged\",\"slot\":\"sub_2\"}],\
             \"status\":\"not streaming\"}\n"
                .to_owned()
        )
    );
}

/// Serves a snapshot; the sender ends it.
async fn served(
    snapshot: Snapshot,
) -> (
    SocketAddr,
    oneshot::Sender<()>,
    tokio::task::JoinHandle<io::Result<()>>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(serve(listener, move || snapshot.clone(), async {
        let _ = stopped.await;
    }));
    (address, stop, serving)
}

async fn response(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn get_page(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    response(&mut stream).await
}

#[tokio::test]
async fn both_pages_are_served_and_nothing_else() {
    let (address, stop, serving) = served(example()).await;
    let page = get_page(address, "GET /metrics").await;
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert_eq!(body, render(&example()));
    let page = get_page(address, "GET /healthz").await;
    assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
    assert!(page.contains("application/json") && page.contains("the spool is full"));
    for request in [
        "GET /",
        "POST /metrics",
        "GET /metrics/x",
        "DELETE /healthz",
    ] {
        let page = get_page(address, request).await;
        assert!(page.starts_with("HTTP/1.1 40"), "{request}: {page}");
    }
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_healthy_relay_answers_200() {
    let mut snapshot = example();
    snapshot.groups.pop();
    let (address, _stop, _serving) = served(snapshot).await;
    let page = get_page(address, "GET /healthz").await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
}
