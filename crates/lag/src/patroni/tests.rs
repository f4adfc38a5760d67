use super::*;
use crate::node::MOST_NAME;

/// What Patroni 4 answers, by the documentation of its REST interface.
const FOUR: &str = r#"{"members": [
    {"name": "patroni1", "role": "leader", "state": "running", "api_url": "http://10.89.0.4:8008/patroni",
     "host": "10.89.0.4", "port": 5432, "timeline": 5, "tags": {"clonefrom": true}},
    {"name": "patroni2", "role": "quorum_standby", "state": "streaming",
     "api_url": "http://10.89.0.6:8008/patroni", "host": "10.89.0.6", "port": 5433, "timeline": 5,
     "tags": {"clonefrom": true}, "receive_lag": 0, "receive_lsn": "0/4000060", "replay_lag": 0,
     "replay_lsn": "0/4000060", "lag": 0, "lsn": "0/4000060"},
    {"name": "patroni3", "role": "replica", "state": "creating replica",
     "api_url": "http://10.89.0.7:8008/patroni", "lag": "unknown"}],
    "scope": "demo", "pause": true,
    "scheduled_switchover": {"at": "2023-09-24T10:36:00+02:00", "from": "patroni1", "to": "patroni3"}}"#;

/// What Patroni 3 answers: no scope, lag in bytes or unknown.
const THREE: &str = r#"{"members": [
    {"name": "db1", "role": "replica", "state": "running", "api_url": "http://db1:8008/patroni",
     "host": "db1", "port": 5432, "timeline": 2, "lag": 0},
    {"name": "db2", "role": "leader", "state": "running", "api_url": "http://db2:8008/patroni",
     "host": "db2", "port": 5432, "timeline": 2},
    {"name": "db3", "role": "sync_standby", "state": "streaming", "api_url": "http://db3:8008/patroni",
     "host": "db3", "port": 5432, "timeline": 2, "lag": "unknown",
     "pending_restart": true}]}"#;

fn member(name: &str, role: &str) -> String {
    format!(
        r#"{{"name": "{name}", "role": "{role}", "state": "running", "host": "h{name}", "port": 1}}"#
    )
}

fn cluster(members: &[(&str, &str)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, role)| member(name, role))
        .collect();
    format!(r#"{{"members": [{}]}}"#, members.join(", "))
}

fn conninfo(text: &str) -> Conninfo {
    Conninfo::parse(text).unwrap()
}

fn roster(named: &[(&str, Role)]) -> Roster {
    let named = named.iter().map(|(name, role)| Node {
        name: (*name).to_owned(),
        role: *role,
        conninfo: conninfo("host=elsewhere"),
    });
    Roster::new(conninfo("user=watcher dbname=postgres"), named.collect())
}

fn shown(roster: &Roster) -> String {
    let nodes = roster.nodes().iter();
    let words: Vec<String> = nodes
        .map(|node| format!("{} {}", node.name, node.role))
        .collect();
    words.join(", ")
}

fn unknown(roster: &Roster) -> String {
    roster.membership(0).unknown.join("; ")
}

#[test]
fn both_formats_give_nodes_with_addresses() {
    let mut four = roster(&[("app", Role::Subscriber)]);
    four.take(Ok(FOUR), 1);
    assert_eq!(
        shown(&four),
        "patroni1 primary, patroni2 standby, app subscriber"
    );
    assert_eq!(four.nodes()[1].address(), "10.89.0.6:5433/postgres");
    assert_eq!(four.nodes()[1].conninfo.get("user"), Some("watcher"));
    let expected = Membership {
        unknown: vec![
            "patroni3 is not watched: Patroni gives no address for it; its state at Patroni is \"creating \
             replica\""
                .to_owned(),
        ],
        is_paused: true,
        ..Membership::default()
    };
    assert_eq!(four.membership(1), expected);
    let mut three = roster(&[]);
    three.take(Ok(THREE), 1);
    assert_eq!(shown(&three), "db2 primary, db1 standby, db3 standby");
}

#[test]
fn roles_change_and_who_leaves_is_told_until_it_is_back() {
    let mut it = roster(&[]);
    it.take(
        Ok(&cluster(&[
            ("a", "leader"),
            ("b", "replica"),
            ("c", "replica"),
        ])),
        1_000,
    );
    it.take(
        Ok(&cluster(&[
            ("a", "replica"),
            ("b", "leader"),
            ("d", "replica"),
        ])),
        6_000,
    );
    assert_eq!(shown(&it), "b primary, a standby, d standby");
    let left = |it: &Roster, now_ms| -> Vec<(String, u64)> {
        let left = it.membership(now_ms).left.into_iter();
        left.map(|one| (one.node, one.away.as_secs())).collect()
    };
    assert_eq!(left(&it, 11_000), [("c".to_owned(), 10)]);
    let back = cluster(&[
        ("b", "leader"),
        ("a", "replica"),
        ("c", "replica"),
        ("d", "replica"),
    ]);
    let mut again = it.clone();
    again.take(Ok(&back), 12_000);
    assert_eq!(left(&again, 12_000), []);
    // An hour later it is forgotten.
    it.take(
        Ok(&cluster(&[
            ("b", "leader"),
            ("a", "replica"),
            ("d", "replica"),
        ])),
        3_700_000,
    );
    assert_eq!(left(&it, 3_700_000), []);
}

#[test]
fn the_last_list_stays_while_patroni_cannot_be_asked() {
    let mut it = roster(&[("app", Role::Subscriber)]);
    it.take(Err("http://a:8008: refused"), 1);
    assert_eq!(shown(&it), "app subscriber");
    assert!(unknown(&it).contains("members are not known: http://a:8008: refused"));
    it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
    let known = shown(&it);
    assert_eq!(unknown(&it), "");
    for answer in [
        Err("refused"),
        Ok("<html>"),
        Ok("{}"),
        Ok("[]"),
        Ok(r#"{"members": []}"#),
    ] {
        it.take(answer, 3);
        assert_eq!(shown(&it), known, "{answer:?}");
        assert_ne!(unknown(&it), "", "{answer:?}");
        assert_eq!(it.membership(3).left, []);
    }
}

/// An odd member beside two that are well.
fn beside(odd: &str) -> String {
    let (a, b) = (member("a", "leader"), member("b", "replica"));
    format!(r#"{{"members": [{a}, {{"role": "replica", {odd}}}, {b}]}}"#)
}

#[test]
fn a_member_without_an_address_is_not_known_and_has_not_left() {
    let failed = beside(r#""name": "n3", "state": "start failed", "lag": "unknown""#);
    let why = "Patroni gives no address for it; its state at Patroni is \"start failed\"";
    let mut it = roster(&[]);
    it.take(Ok(&failed), 1);
    assert_eq!(shown(&it), "a primary, b standby");
    assert_eq!(unknown(&it), format!("n3 is not watched: {why}"));
    // Its server was known: it is missed there.
    let well = beside(r#""name": "n3", "state": "streaming", "host": "h", "port": 7"#);
    it.take(Ok(&well), 2);
    assert_eq!(unknown(&it), "");
    let nodes = it.nodes().to_vec();
    it.take(Ok(&failed), 3);
    assert_eq!(it.nodes(), nodes);
    assert_eq!(it.membership(3).left, []);
    let words = format!("n3 is watched at the address that it had: {why}");
    assert_eq!(unknown(&it), words);
    // It left, and is back without a server.
    let mut it = roster(&[]);
    it.take(Ok(&well), 1);
    it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
    assert_eq!(it.membership(2).left[0].node, "n3");
    it.take(Ok(&failed), 3);
    assert_eq!(it.membership(3).left, []);
    assert!(unknown(&it).starts_with("n3 is not watched"));
    // No member has a server: the last list stays.
    it.take(Ok(r#"{"members": [{"name": "b", "state": "crashed"}]}"#), 4);
    assert_eq!(shown(&it), "a primary, b standby");
    assert!(unknown(&it).contains("no member that has a server; b is watched at"));
    assert!(unknown(&it).contains("\"crashed\""), "{}", unknown(&it));
}

#[test]
fn one_odd_member_spoils_no_other() {
    for (odd, nodes, words) in [
        (
            r#""name": "c", "state": "crashed", "host": "h""#,
            "a primary, b standby, c standby",
            "c: its state at Patroni is \"crashed\"",
        ),
        (
            r#""name": "c", "host": "h", "port": 99999"#,
            "a primary, b standby",
            "c is not watched: Patroni says that its port is 99999",
        ),
        (
            r#""state": "running", "host": "h""#,
            "a primary, b standby",
            "Patroni names a member without a name",
        ),
        (
            r#""name": "a", "host": "h""#,
            "a primary, b standby",
            "Patroni names several members a: one is watched",
        ),
    ] {
        let mut it = roster(&[]);
        it.take(Ok(&beside(odd)), 1);
        assert_eq!((shown(&it).as_str(), unknown(&it).as_str()), (nodes, words));
    }
    let mut it = roster(&[]);
    it.take(Ok(&cluster(&[("a", "leader"), ("b", "leader")])), 1);
    assert_eq!(shown(&it), "a primary, b standby");
    assert_eq!(unknown(&it), "Patroni names several leaders: a, b");
}

#[test]
fn who_is_not_promoted_is_told_and_that_patroni_pauses() {
    let mut it = roster(&[]);
    let tagged = beside(r#""name": "c", "host": "h", "tags": {"nofailover": true}"#);
    it.take(Ok(&tagged), 1);
    assert_eq!(it.membership(1).not_promoted, ["c"]);
    assert!(!it.membership(1).is_paused);
    it.take(Ok(FOUR), 2);
    assert!(it.membership(2).not_promoted.is_empty() && it.membership(2).is_paused);
}

#[test]
fn how_long_patroni_has_not_answered_is_told_and_what_changes_once() {
    let pair = cluster(&[("a", "leader"), ("b", "replica")]);
    let mut answers = vec![
        Ok(pair.clone()),
        Err("slow".to_owned()),
        Err("refused".to_owned()),
        Err("refused".to_owned()),
    ];
    let ask = Box::new(move || answers.pop().unwrap());
    let mut members = Members::new(roster(&[]), ask, 1_000);
    let silent = News::Silent("refused".to_owned());
    assert_eq!(members.news(), [silent]);
    members.look(6_000);
    assert_eq!(members.news(), []);
    members.look(11_000);
    assert_eq!(members.news(), []);
    let said = members.roster().membership(31_000).unknown.join("; ");
    assert_eq!(
        said,
        "Patroni cannot be asked for 30 s, so its members are not known: slow"
    );
    members.look(16_000);
    let nodes = "a (primary, ha:1/postgres), b (standby, hb:1/postgres)";
    assert_eq!(
        members.news(),
        [News::Answers, News::Nodes(nodes.to_owned())]
    );
    assert_eq!(members.news(), []);
    members.roster.take(Err("slow"), 26_000);
    let said = members.roster().membership(26_000).unknown.join("; ");
    assert!(
        said.starts_with("Patroni cannot be asked for 10 s"),
        "{said}"
    );
}

#[test]
fn names_are_unique_and_what_is_remembered_is_bounded() {
    let mut it = roster(&[]);
    let long = "x".repeat(100);
    let other = format!("{long}y");
    let alike = [
        ("a", "leader"),
        (&long, "replica"),
        (&other, "replica"),
        ("", "replica"),
    ];
    it.take(Ok(&cluster(&alike)), 1);
    let names: Vec<usize> = it.nodes().iter().map(|node| node.name.len()).collect();
    assert_eq!(names, [1, MOST_NAME]);
    assert!(unknown(&it).contains("a member without a name; Patroni names several members x"));
    for number in 0..2 * MOST_MEMBERS {
        let name = format!("n{number}");
        it.take(Ok(&cluster(&[("a", "leader"), (&name, "replica")])), 2);
    }
    assert_eq!(it.membership(3).left.len(), MOST_MEMBERS);
    let many: Vec<String> = (0..=MOST_MEMBERS)
        .map(|number| format!("n{number}"))
        .collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "replica")).collect();
    it.take(Ok(&cluster(&many)), 4);
    assert_eq!(it.nodes().len(), 2);
    assert!(
        unknown(&it).contains("it names 201 members"),
        "{}",
        unknown(&it)
    );
}

#[test]
fn without_a_leader_the_former_primary_is_missed_as_such() {
    let mut it = roster(&[]);
    it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 1);
    it.take(Ok(&cluster(&[("b", "replica")])), 2);
    assert_eq!(shown(&it), "a primary, b standby");
    assert_eq!(unknown(&it), "Patroni names no leader now");
    it.take(Ok(&cluster(&[("b", "leader")])), 3);
    assert_eq!(
        (shown(&it), unknown(&it)),
        ("b primary".to_owned(), String::new())
    );
    assert_eq!(it.membership(3).left[0].node, "a");
    let mut new = roster(&[]);
    new.take(Ok(&cluster(&[("b", "replica")])), 1);
    assert_eq!(shown(&new), "b standby");
    assert_ne!(unknown(&new), "");
}

#[test]
fn a_standby_cluster_has_its_primary_elsewhere() {
    let members = cluster(&[("a", "standby_leader"), ("b", "replica")]);
    let mut it = roster(&[]);
    it.take(Ok(&members), 1);
    assert!(unknown(&it).contains("standby cluster"), "{}", unknown(&it));
    let mut it = roster(&[("far", Role::Primary)]);
    it.take(Ok(&members), 1);
    assert_eq!(shown(&it), "far primary, a standby, b standby");
    assert_eq!(unknown(&it), "");
    // It was promoted: the file is out of date.
    it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
    assert_eq!(shown(&it), "a primary, b standby");
    assert!(unknown(&it).contains("take far out of the file"));
    let mut it = roster(&[("a", Role::Subscriber)]);
    it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
    assert!(unknown(&it).contains("both name a"));
    assert_eq!(shown(&it), "a primary, b standby");
}

#[test]
fn urls_are_read_or_refused() {
    for (text, shown) in [
        ("http://db1:8008", "http://db1:8008"),
        ("http://db1", "http://db1:8008"),
        ("https://10.0.0.1:8009/cluster", "https://10.0.0.1:8009"),
        ("http://[::1]:8008", "http://[::1]:8008"),
        ("http://[::1]", "http://[::1]:8008"),
    ] {
        assert_eq!(
            PatroniUrl::parse(text).unwrap().to_string(),
            shown,
            "{text}"
        );
    }
    for text in [
        "db1:8008",
        "ftp://db1",
        "http://",
        "http://u:p@db1",
        "http://db1:x",
    ] {
        assert!(PatroniUrl::parse(text).is_err(), "{text}");
    }
}
