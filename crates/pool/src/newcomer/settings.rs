//! The new node's settings, which stand in its postgresql.auto.conf. No I/O.

use std::collections::BTreeMap;

use super::error::NewcomerError;
use super::peer::{AT_LEAST, Facts};

/// Settings that have an option of their own.
const OF_OPTIONS: [(&str, &str); 3] = [
    ("primary_conninfo", "--primary-conninfo"),
    ("primary_slot_name", "--slot"),
    ("port", "--conninfo"),
];

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    pub given: &'a [(String, String)],
    pub port: u16,
    /// The folder of its socket, if clients reach it so.
    pub sockets: Option<&'a str>,
    pub primary_conninfo: &'a str,
    pub slot: &'a str,
}

/// Reads `NAME=VALUE`.
pub fn parse(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    let name = name.trim().to_ascii_lowercase();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    if name.is_empty() || !name.chars().all(is_name) {
        return Err("a setting's name has letters, digits and underscores".to_owned());
    }
    if value.contains(['\n', '\r', '\0']) {
        return Err("a setting's value has one line".to_owned());
    }
    match OF_OPTIONS.iter().find(|(of, _)| *of == name) {
        Some((_, option)) => Err(format!("{option} sets {name}")),
        None => Ok((name, value.to_owned())),
    }
}

/// The settings that differ from the peer's, by name. What is given comes before what follows from the peer.
pub fn settings(
    wanted: &Wanted<'_>,
    peer: &Facts,
    primary: &Facts,
) -> Result<BTreeMap<String, String>, NewcomerError> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: &str| all.insert(name.to_owned(), value.to_owned());
    if !peer.preload.is_empty() {
        set("shared_preload_libraries", &peer.preload);
    }
    for name in AT_LEAST {
        let of = |facts: &Facts| facts.limits.get(name).copied().unwrap_or_default();
        if of(peer) < of(primary) || peer.settings_elsewhere {
            set(name, &of(primary).max(of(peer)).to_string());
        }
    }
    if let Some(folder) = wanted.sockets {
        set("unix_socket_directories", folder);
    }
    for (name, value) in wanted.given {
        // A library that is not loaded yet defines a name with a dot.
        if !name.contains('.') && !peer.settable.iter().any(|it| it.eq_ignore_ascii_case(name)) {
            return Err(NewcomerError::NoSetting { name: name.clone() });
        }
        let least = primary.limits.get(name).copied().unwrap_or_default();
        if value.trim().parse::<u64>().is_ok_and(|given| given < least) {
            return Err(NewcomerError::TooLow {
                name: name.clone(),
                given: value.clone(),
                least,
            });
        }
        set(name, value);
    }
    set("port", &wanted.port.to_string());
    set("primary_conninfo", wanted.primary_conninfo);
    set("primary_slot_name", wanted.slot);
    Ok(all)
}

/// First line of this program's block in postgresql.auto.conf.
const MARK: &str = "\n# lockstep pool add\n";

/// The text of postgresql.auto.conf with its block. `again`: the last block was written for this node, and
/// goes away; one before it is the peer's.
pub fn with_block(was: &str, settings: &BTreeMap<String, String>, again: bool) -> String {
    let kept = was.rfind(MARK).filter(|_| again);
    let kept = kept.and_then(|at| was.get(..at)).unwrap_or(was);
    format!("{kept}{}", text(settings))
}

/// Lines for postgresql.auto.conf, where the last line about a setting counts.
fn text(settings: &BTreeMap<String, String>) -> String {
    let mut text = MARK.to_owned();
    for (name, value) in settings {
        let value = value.replace('\\', "\\\\").replace('\'', "''");
        text.push_str(&format!("{name} = '{value}'\n"));
    }
    text
}

/// A name for the node's slot: what slots may be called, made of the node's name.
pub fn slot_of(node: &str) -> String {
    let plain = node.chars().map(|c| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '_',
    });
    plain.take(63).collect()
}

#[cfg(test)]
mod tests {
    use super::super::peer::tests::facts;
    use super::*;
    use lockstep_lab::assert_has;

    fn made(given: &[(&str, &str)], peer: &Facts, primary: &Facts) -> Result<String, String> {
        let given: Vec<_> = given
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let wanted = Wanted {
            given: &given,
            port: 5433,
            sockets: Some("/run/x"),
            primary_conninfo: "host=p password='it''s \\'",
            slot: "db3",
        };
        let settings = settings(&wanted, peer, primary).map_err(|error| error.to_string())?;
        Ok(text(&settings))
    }

    #[test]
    fn settings_suit_the_primary() {
        let primary = facts(false, 0);
        let mut peer = facts(true, 0);
        let text = made(&[], &peer, &primary).unwrap();
        for line in [
            "port = '5433'",
            "primary_conninfo = 'host=p password=''it''''s \\\\'''",
            "primary_slot_name = 'db3'",
            "shared_preload_libraries = 'lockstep'",
            "unix_socket_directories = '/run/x'",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(
            !text.contains("max_connections"),
            "the clone has the peer's: {text}"
        );
        peer.limits.insert("max_connections".to_owned(), 5);
        assert_has!(
            made(&[], &peer, &primary).unwrap(),
            "max_connections = '10'"
        );
        peer.settings_elsewhere = true;
        assert_has!(
            made(&[], &peer, &primary).unwrap(),
            "max_wal_senders = '10'"
        );

        let given = [("max_connections", "9")];
        let error = made(&given, &peer, &primary).unwrap_err();
        assert_has!(error, "--set max_connections=9", "primary's 10");
        let given = [("max_connections", "20"), ("shared_preload_libraries", "")];
        let text = made(&given, &peer, &primary).unwrap();
        assert_has!(
            text,
            "max_connections = '20'",
            "shared_preload_libraries = ''"
        );
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        let both = facts(false, 0);
        let error = made(&[("nosuch", "1")], &both, &both).unwrap_err();
        assert!(error.contains("--set nosuch"), "{error}");
        assert!(made(&[("some.thing", "1")], &both, &both).is_ok());
    }

    #[test]
    fn a_repeat_replaces_its_block() {
        let block = |value: &str| BTreeMap::from([("work_mem".to_owned(), value.to_owned())]);
        let of_peer = with_block("a = '1'\n", &block("peer"), false);
        let first = with_block(&of_peer, &block("wrong"), false);
        let second = with_block(&first, &block("right"), true);
        assert_eq!(second, with_block(&of_peer, &block("right"), false));
        assert!(
            second.contains("peer") && !second.contains("wrong"),
            "{second}"
        );
        // ALTER SYSTEM leaves no comment.
        assert!(with_block("b = '2'\n", &block("x"), true).starts_with("b = '2'\n"));
    }

    #[test]
    fn settings_are_given_by_name() {
        let pair = ("work_mem".to_owned(), "1=2".to_owned());
        assert_eq!(parse("Work_Mem=1=2"), Ok(pair));
        for (text, words) in [
            ("work_mem", "NAME=VALUE"),
            ("=1", "letters"),
            ("a b=1", "letters"),
            ("a=1\nport=2", "one line"),
            ("port=1", "--conninfo"),
            ("primary_slot_name=x", "--slot"),
        ] {
            assert!(parse(text).unwrap_err().contains(words), "{text}");
        }
        assert_eq!(slot_of("Db-3.x"), "db_3_x");
    }
}
