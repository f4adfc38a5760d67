//! Queries and their answers, as a client reads them.

use std::sync::Mutex;

use lockstep_lab::for_tests;
use lockstep_wire::Lsn;
use lockstep_wire::frame::{self, BACKEND_LIMIT};

use super::*;
use crate::stats::{ClientStat, ClientState, GroupStat, GroupState, SlotStat};

/// A relay with two groups and three slots, which notes what is asked of it.
#[derive(Default)]
struct Relay {
    asked: Mutex<Vec<String>>,
    admin_role: Option<&'static str>,
    more_slots: usize,
}

impl Relay {
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }
}

fn lsn(text: &str) -> Lsn {
    text.parse().unwrap()
}

fn slots() -> Vec<SlotStat> {
    let slot = |name: &str, hit, miss| SlotStat {
        name: name.to_owned(),
        database: "app".to_owned(),
        group: "orders".to_owned(),
        sent: lsn("0/30"),
        written: lsn("0/2A"),
        applied: lsn("0/28"),
        confirmed: lsn("0/20"),
        behind_bytes: 5,
        cache_hit: hit,
        cache_miss: miss,
        ..SlotStat::default()
    };
    vec![
        SlotStat {
            active_pid: Some(79_183),
            last_reset_unix_us: 1_795_280_832_123_456,
            ..slot("a", 24, 0)
        },
        SlotStat {
            sent: Lsn::INVALID,
            ..slot("b", 0, 0)
        },
        slot("c's", 99_999, 1),
    ]
}

impl Source for Relay {
    fn snapshot(&self) -> Snapshot {
        let group = |name: &str, cached| GroupStat {
            name: name.to_owned(),
            upstream_slot: format!("lockstep_{name}"),
            database: "app".to_owned(),
            publications: vec!["p".to_owned(), "q".to_owned()],
            plugin: "lockstep".to_owned(),
            state: GroupState::Streaming,
            sent: lsn("0/50"),
            received: lsn("0/40"),
            committed: lsn("0/38"),
            durable: lsn("0/30"),
            oldest_cached: cached,
            oldest_spooled: lsn("0/8"),
            cache_bytes: 1,
            cache_limit_bytes: 2,
            spool_bytes: 3,
            transactions: 4,
            received_bytes: 5,
            ..GroupStat::default()
        };
        Snapshot {
            groups: vec![
                GroupStat {
                    state: GroupState::Failed,
                    reason: "no such slot".to_owned(),
                    ..group("idle", Lsn::INVALID)
                },
                group("orders", lsn("1/A0")),
                group("other", lsn("0/FF")),
            ],
            slots: (0..self.more_slots)
                .map(|at| SlotStat {
                    name: format!("more_{at}"),
                    ..SlotStat::default()
                })
                .chain(slots())
                .collect(),
            clients: vec![ClientStat {
                id: 7,
                pid: u32::MAX,
                user: "u".to_owned(),
                database: "app".to_owned(),
                state: ClientState::Streaming,
                slot: "a".to_owned(),
                ..ClientStat::default()
            }],
        }
    }

    fn config(&self) -> Vec<(String, String, String)> {
        vec![("listen".into(), "127.0.0.1:6543".into(), "default".into())]
    }

    fn reset(&self, slot: Option<&str>) -> Reset {
        self.note(format!("reset {slot:?}"));
        match slot {
            Some(name) if !slots().iter().any(|slot| slot.name == name) => Reset::NoSuchSlot,
            _ => Reset::Done,
        }
    }

    fn drop_slot(&self, slot: &str) -> Result<(), (&'static str, String)> {
        self.note(format!("drop {slot}"));
        match slot {
            "a" => Err(("55006", "slot \"a\" is in use".to_owned())),
            _ => Ok(()),
        }
    }

    fn terminate(&self, id: u64) -> Result<(), String> {
        self.note(format!("terminate {id}"));
        match id {
            0 => Err("there is no session 0".to_owned()),
            _ => Ok(()),
        }
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.note("reload".to_owned());
        match self.admin_role {
            Some("bad") => Err("relay.toml, line 1: no".to_owned()),
            Some(_) => Ok(Vec::new()),
            None => Ok(vec!["logical_wal_cache: 16MB -> 0".to_owned()]),
        }
    }

    fn admin_role(&self) -> Option<String> {
        self.admin_role.map(str::to_owned)
    }
}

/// `s`uperuser, `m`onitor, `a`dmin.
fn rights(letters: &str) -> Rights {
    Rights {
        user: "Joe \"J\"".to_owned(),
        superuser: letters.contains('s'),
        monitor: letters.contains('m'),
        admin: letters.contains('a'),
    }
}

/// Messages, one a line; every byte of the answer must belong to one.
fn shown(answer: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = answer;
    while !left.is_empty() {
        let (frame, used) = frame::first(left, BACKEND_LIMIT).unwrap().unwrap();
        lines.push(match Backend::parse(frame).unwrap() {
            Backend::RowDescription(columns) => {
                let names: Vec<_> = columns
                    .iter()
                    .map(|column| format!("{}:{}", column.name, column.kind))
                    .collect();
                format!("# {}", names.join(" "))
            }
            Backend::DataRow(values) => {
                let texts: Vec<_> = values
                    .iter()
                    .map(|value| value.map_or("~".into(), String::from_utf8_lossy))
                    .collect();
                format!("| {}", texts.join(" | "))
            }
            Backend::CommandComplete(tag) => format!("= {tag}"),
            Backend::EmptyQueryResponse => "empty".to_owned(),
            Backend::ErrorResponse(report) | Backend::NoticeResponse(report) => format!(
                "{} {} {}; {}",
                report.severity,
                report.sqlstate,
                report.message,
                report.hint.unwrap_or_default()
            ),
            other => panic!("{other:?}"),
        });
        left = &left[used..];
    }
    lines
}

fn ask(relay: Relay, letters: &str, query: &str) -> (Vec<String>, Vec<String>) {
    let relay = Arc::new(relay);
    let console = Console::new(relay.clone());
    let lines = shown(&console.answer(&rights(letters), query));
    let asked = relay.asked.lock().unwrap().clone();
    (lines, asked)
}

#[test]
fn a_statement_is_described_as_its_answer_is() {
    let queries = "SELECT * FROM lockstep_stat_logical_wal_cache()|\
         SELECT hit_rate, name FROM lockstep_stat_logical_wal_cache() WHERE name = 'a'|\
         SELECT lockstep_stat_reset_wal_cache('a')|SELECT get_oldest_wal_cache_ptr()|SHOW SLOTS|\
         SHOW CLIENTS|SHOW UPSTREAM|SHOW SPOOL|SHOW CONFIG|SHOW VERSION|SHOW HELP|DROP SLOT b|\
         TERMINATE 7|RELOAD|SELECT 1|SELECT version()|BEGIN|SET x = 1|";
    for query in queries.split('|') {
        let relay = Arc::new(Relay::default());
        let console = Console::new(relay.clone());
        let columns = console.columns(query).unwrap();
        assert!(relay.asked.lock().unwrap().is_empty(), "{query} was run");
        let mut described = Vec::new();
        Backend::RowDescription(columns.clone()).encode(&mut described);
        let described = Some(shown(&described).remove(0)).filter(|_| !columns.is_empty());
        let answer = shown(&console.answer(&rights("s"), query));
        let answered = answer.iter().find(|line| line.starts_with('#'));
        assert_eq!(answered.cloned(), described, "{query}");
        assert!(!answer[0].starts_with("ERROR"), "{answer:?}");
    }
    let console = Console::new(Arc::new(Relay::default()));
    let refused = console.columns("RELOAD; RELOAD").unwrap_err();
    assert_eq!(refused.sqlstate, "42601");
}

#[test]
fn statistics_have_the_columns_and_types_that_were_promised() {
    let heads = "# name:25 active_pid:23 cache_hit:20 cache_miss:20 blks_read:20 hit_rate:25 \
                 last_reset_timestamp:1184";
    let (lines, _) = ask(
        Relay::default(),
        "m",
        "SELECT * FROM lockstep_stat_logical_wal_cache();",
    );
    assert_eq!(
        lines,
        [
            heads,
            "| a | 79183 | 24 | 0 | 24 | 100.00% | 2026-11-21 17:07:12.123456+00",
            "| b | ~ | 0 | 0 | 0 | ~ | ~",
            "| c's | ~ | 99999 | 1 | 100000 | 99.99% | ~",
            "= SELECT 3",
        ]
    );
}

#[test]
fn some_columns_of_some_slots_in_some_order() {
    for (rest, lines) in [
        (
            "name, hit_rate FROM lockstep_stat_logical_wal_cache() WHERE name = 'a'",
            &["# name:25 hit_rate:25", "| a | 100.00%", "= SELECT 1"][..],
        ),
        (
            "NAME from pg_catalog.lockstep_stat_logical_wal_cache() as x where \"name\" = 'c''s'::text",
            &["# name:25", "| c's", "= SELECT 1"],
        ),
        (
            "name FROM lockstep_stat_logical_wal_cache() w WHERE name = 'none'",
            &["# name:25", "= SELECT 0"],
        ),
        (
            "name FROM lockstep_stat_logical_wal_cache() ORDER BY cache_hit DESC",
            &["# name:25", "| c's", "| a", "| b", "= SELECT 3"],
        ),
        (
            "name FROM lockstep_stat_logical_wal_cache() ORDER BY hit_rate",
            &["# name:25", "| c's", "| a", "| b", "= SELECT 3"],
        ),
        (
            "name FROM lockstep_stat_logical_wal_cache() ORDER BY active_pid ASC",
            &["# name:25", "| a", "| b", "| c's", "= SELECT 3"],
        ),
        (
            "blks_read, * FROM lockstep_stat_logical_wal_cache() WHERE name='b' ORDER BY name",
            &[
                "# blks_read:20 name:25 active_pid:23 cache_hit:20 cache_miss:20 blks_read:20 hit_rate:25 last_reset_timestamp:1184",
                "| 0 | b | ~ | 0 | 0 | 0 | ~ | ~",
                "= SELECT 1",
            ],
        ),
    ] {
        let (found, _) = ask(Relay::default(), "s", &format!("SELECT {rest}"));
        assert_eq!(found, lines, "{rest}");
    }
}

#[test]
fn listings_show_everything_once() {
    for (what, lines) in [
        (
            "slots",
            &[
                "# name:25 database:25 group:25 active_pid:23 sent_lsn:3220 confirmed_lsn:3220 behind_bytes:20 cache_hit:20 cache_miss:20 hit_rate:25 written_lsn:3220 applied_lsn:3220 reason:25",
                "| a | app | orders | 79183 | 0/30 | 0/20 | 5 | 24 | 0 | 100.00% | 0/2A | 0/28 | ~",
                "| b | app | orders | ~ | ~ | 0/20 | 5 | 0 | 0 | ~ | 0/2A | 0/28 | ~",
                "| c's | app | orders | ~ | 0/30 | 0/20 | 5 | 99999 | 1 | 99.99% | 0/2A | 0/28 | ~",
                "= SHOW",
            ][..],
        ),
        (
            "Clients",
            &[
                "# id:20 pid:23 user:25 database:25 application_name:25 address:25 state:25 slot:25 since:1184",
                "| 7 | -1 | u | app | ~ | ~ | streaming | a | ~",
                "= SHOW",
            ],
        ),
        (
            "UPSTREAM",
            &[
                "# group:25 slot:25 database:25 publications:25 plugin:25 state:25 reason:25 primary:25 sent_lsn:3220 received_lsn:3220 durable_lsn:3220 transactions:20 received_bytes:20 committed_lsn:3220",
                "| idle | lockstep_idle | app | p,q | lockstep | failed | no such slot | ~ | 0/50 | 0/40 | 0/30 | 4 | 5 | 0/38",
                "| orders | lockstep_orders | app | p,q | lockstep | streaming | ~ | ~ | 0/50 | 0/40 | 0/30 | 4 | 5 | 0/38",
                "| other | lockstep_other | app | p,q | lockstep | streaming | ~ | ~ | 0/50 | 0/40 | 0/30 | 4 | 5 | 0/38",
                "= SHOW",
            ],
        ),
        (
            "SPOOL",
            &[
                "# group:25 oldest_spooled_lsn:3220 oldest_cached_lsn:3220 durable_lsn:3220 spool_bytes:20 spool_limit_bytes:20 cache_bytes:20 cache_limit_bytes:20",
                "| idle | 0/8 | ~ | 0/30 | 3 | 0 | 1 | 2",
                "| orders | 0/8 | 1/A0 | 0/30 | 3 | 0 | 1 | 2",
                "| other | 0/8 | 0/FF | 0/30 | 3 | 0 | 1 | 2",
                "= SHOW",
            ],
        ),
        (
            "config",
            &[
                "# name:25 value:25 source:25",
                "| listen | 127.0.0.1:6543 | default",
                "= SHOW",
            ],
        ),
    ] {
        let (found, asked) = ask(Relay::default(), "m", &format!("SHOW {what};"));
        assert_eq!(found, lines);
        assert!(asked.is_empty());
    }
}

#[test]
fn what_clients_say_by_themselves_is_answered() {
    let version = concat!("| lockstep relay ", env!("CARGO_PKG_VERSION"));
    let no_transactions =
        "WARNING 25P01 this console has no transactions: each statement takes effect at once; ";
    for (query, lines) in [
        ("", &["empty"][..]),
        (" ;; -- nothing\n", &["empty"]),
        ("SELECT 1", &["# ?column?:23", "| 1", "= SELECT 1"]),
        ("select 1 as x;", &["# ?column?:23", "| 1", "= SELECT 1"]),
        ("SELECT version()", &["# version:25", version, "= SELECT 1"]),
        (
            "SELECT pg_catalog.version()",
            &["# version:25", version, "= SELECT 1"],
        ),
        ("SHOW VERSION", &["# version:25", version, "= SHOW"]),
        ("SET client_encoding TO 'x'", &["= SET"]),
        (
            "SET search_path = a, b; RESET ALL; DISCARD ALL",
            &["= SET", "= RESET", "= DISCARD ALL"],
        ),
        (
            "BEGIN ISOLATION LEVEL SERIALIZABLE",
            &[no_transactions, "= BEGIN"],
        ),
        (
            "START TRANSACTION",
            &[no_transactions, "= START TRANSACTION"],
        ),
        (
            "COMMIT; ABORT",
            &[no_transactions, "= COMMIT", no_transactions, "= ROLLBACK"],
        ),
    ] {
        assert_eq!(ask(Relay::default(), "", query).0, lines, "{query}");
    }
    let (help, _) = ask(Relay::default(), "", "SHOW HELP");
    assert_eq!(help.len(), 15);
}

#[test]
fn every_command_in_the_help_is_understood() {
    let (help, _) = ask(Relay::default(), "", "SHOW HELP");
    for line in help.iter().filter(|line| line.starts_with('|')) {
        let command = line.trim_start_matches("| ").split(" | ").next().unwrap();
        let command = &command.replace("TERMINATE id", "TERMINATE 7");
        let (lines, _) = ask(Relay::default(), "s", command);
        assert!(
            lines.last().unwrap().starts_with('='),
            "{command}: {lines:?}"
        );
    }
}

#[test]
fn resets_say_what_happened() {
    let value = |query: &str| {
        let (lines, asked) = ask(Relay::default(), "s", query);
        assert_eq!(lines.first().unwrap(), "# lockstep_stat_reset_wal_cache:25");
        assert_eq!(lines.last().unwrap(), "= SELECT 1");
        (lines[1].clone(), asked.join(","))
    };
    for (query, text, asked) in [
        (
            "SELECT lockstep_stat_reset_wal_cache('a')",
            "| Cache statistics of slot \"a\" start again from zero.",
            "reset Some(\"a\")",
        ),
        (
            "select * from lockstep_stat_reset_wal_cache(NULL::text)",
            "| Cache statistics of all slots start again from zero.",
            "reset None",
        ),
        (
            "SELECT lockstep_stat_reset_wal_cache('none')",
            "| There is no slot \"none\": nothing was reset.",
            "reset Some(\"none\")",
        ),
    ] {
        assert_eq!(value(query), (text.to_owned(), asked.to_owned()), "{query}");
    }
}

#[test]
fn the_oldest_position_is_that_of_all_groups() {
    for query in [
        "SELECT get_oldest_wal_cache_ptr()",
        "SELECT * FROM get_oldest_wal_cache_ptr()",
    ] {
        let (lines, _) = ask(Relay::default(), "m", query);
        assert_eq!(
            lines,
            ["# get_oldest_wal_cache_ptr:3220", "| 0/FF", "= SELECT 1"]
        );
    }
    assert_eq!(oldest_cached(&Snapshot::default()), None);
}

#[test]
fn slots_are_dropped_by_name_however_it_is_quoted() {
    for (name, dropped) in [
        ("mine", "drop mine"),
        ("MINE", "drop mine"),
        ("\"Mine\"", "drop Mine"),
        ("'it''s'", "drop it's"),
    ] {
        let (lines, asked) = ask(Relay::default(), "a", &format!("drop slot {name};"));
        assert_eq!(lines, ["= DROP SLOT"]);
        assert_eq!(asked, [dropped]);
    }
    let (lines, _) = ask(Relay::default(), "s", "DROP SLOT a; DROP SLOT b");
    assert_eq!(lines, ["ERROR 55006 slot \"a\" is in use; "]);
}

#[test]
fn sessions_are_ended_by_number() {
    let (lines, asked) = ask(Relay::default(), "a", "terminate 12;");
    assert_eq!(
        (lines, asked),
        (
            vec!["= TERMINATE".to_owned()],
            vec!["terminate 12".to_owned()]
        )
    );
    let (lines, _) = ask(Relay::default(), "s", "TERMINATE 0; RELOAD");
    assert_eq!(
        lines,
        ["ERROR 42704 there is no session 0; SHOW CLIENTS lists them: column id."]
    );
}

#[test]
fn a_reload_says_what_has_changed() {
    let reload = |admin_role| {
        let relay = Relay {
            admin_role,
            ..Relay::default()
        };
        ask(relay, "a", "RELOAD").0
    };
    assert_eq!(
        reload(None),
        ["# change:25", "| logical_wal_cache: 16MB -> 0", "= RELOAD"]
    );
    assert_eq!(
        reload(Some("dba")),
        ["# change:25", "| nothing has changed", "= RELOAD"]
    );
    assert_eq!(
        reload(Some("bad")),
        ["ERROR F0000 the configuration cannot be used: relay.toml, line 1: no; "]
    );
}

#[test]
fn rights_are_checked_for_every_command() {
    let everything = [
        ("SELECT 1", "-", true),
        ("SHOW HELP", "-", true),
        ("SHOW VERSION", "-", true),
        ("SHOW SLOTS", "ms", false),
        ("SHOW CLIENTS", "ms", false),
        ("SHOW UPSTREAM", "ms", false),
        ("SHOW SPOOL", "ms", false),
        ("SHOW CONFIG", "ms", false),
        (
            "SELECT name FROM lockstep_stat_logical_wal_cache()",
            "ms",
            false,
        ),
        ("SELECT get_oldest_wal_cache_ptr()", "ms", false),
        ("SELECT lockstep_stat_reset_wal_cache('a')", "as", false),
        ("SELECT lockstep_stat_reset_wal_cache(NULL)", "as", false),
        ("DROP SLOT b", "as", false),
        ("TERMINATE 1", "as", false),
        ("RELOAD", "as", false),
    ];
    for (query, enough, always) in everything {
        for letters in ["", "m", "a", "s", "ma", "msa"] {
            let allowed = always || letters.chars().any(|letter| enough.contains(letter));
            let (lines, asked) = ask(Relay::default(), letters, query);
            let done = lines.last().unwrap().starts_with('=');
            assert_eq!(done, allowed, "{query} as {letters:?}: {lines:?}");
            if !allowed {
                assert_eq!(lines.len(), 1);
                assert!(lines[0].starts_with("ERROR 42501 permission denied: "));
                assert!(asked.is_empty(), "{query}: {asked:?}");
            }
        }
    }
}

#[test]
fn refusals_say_what_to_grant() {
    let refusal = |admin_role, letters, query| {
        let relay = Relay {
            admin_role,
            ..Relay::default()
        };
        ask(relay, letters, query).0.join("\n")
    };
    assert_eq!(
        refusal(None, "a", "SHOW SLOTS"),
        "ERROR 42501 permission denied: SHOW needs the rights of pg_monitor; \
         On the primary: GRANT pg_monitor TO \"Joe \"\"J\"\"\""
    );
    assert_eq!(
        refusal(None, "m", "RELOAD"),
        "ERROR 42501 permission denied: RELOAD needs a superuser; \
         Log in as one, or set admin_role in the relay's configuration."
    );
    assert_eq!(
        refusal(Some("dba"), "m", "DROP SLOT b"),
        "ERROR 42501 permission denied: DROP SLOT needs a superuser or a member of the \
         configured admin_role; On the primary: GRANT dba TO \"Joe \"\"J\"\"\""
    );
}

#[test]
fn what_is_not_understood_changes_nothing() {
    let help = "SHOW HELP lists what this console runs.";
    for (query, code, words) in [
        ("DROP SLOT b; nonsense", "0A000", help),
        (
            "DROP SLOT b; SHOW 'x",
            "42601",
            "unterminated quoted string",
        ),
        ("/*", "42601", "unterminated /* comment"),
        ("SHOW search_path", "0A000", help),
        ("SHOW SLOTS now", "0A000", "\"SHOW SLOTS now\""),
        ("RELOAD all", "0A000", help),
        ("DROP SLOT", "42601", "SHOW SLOTS"),
        ("TERMINATE", "42601", "SHOW CLIENTS"),
        ("TERMINATE me", "42601", "SHOW CLIENTS"),
        ("DROP SLOT a b", "0A000", help),
        ("DROP TABLE x", "0A000", help),
        ("SET ROLE nobody", "0A000", help),
        ("SET SESSION AUTHORIZATION nobody", "0A000", help),
        ("SET LOCAL role TO nobody", "0A000", help),
        ("SELECT", "0A000", help),
        ("SELECT 1, 2", "0A000", help),
        ("SELECT 99999999999", "0A000", help),
        ("SELECT 1 +", "0A000", help),
        ("SELECT now()", "0A000", help),
        (
            "SELECT x FROM lockstep_stat_logical_wal_cache()",
            "42703",
            "There are name, active_pid,",
        ),
        (
            "SELECT * FROM lockstep_stat_logical_wal_cache",
            "0A000",
            help,
        ),
        (
            "SELECT * FROM lockstep_stat_logical_wal_cache('a')",
            "42883",
            "WHERE name",
        ),
        (
            "SELECT * FROM lockstep_stat_logical_wal_cache() WHERE cache_hit = '1'",
            "0A000",
            "WHERE name",
        ),
        (
            "SELECT * FROM lockstep_stat_logical_wal_cache() WHERE name = 1",
            "0A000",
            "WHERE name",
        ),
        (
            "SELECT * FROM lockstep_stat_logical_wal_cache() WHERE name = 'a' OR 1=1",
            "0A000",
            help,
        ),
        (
            "SELECT * FROM lockstep_stat_logical_wal_cache() ORDER BY 1",
            "0A000",
            help,
        ),
        (
            "SELECT lockstep_stat_logical_wal_cache()",
            "42883",
            "SELECT * FROM",
        ),
        (
            "SELECT lockstep_stat_reset_wal_cache()",
            "42883",
            "NULL for all",
        ),
        (
            "SELECT lockstep_stat_reset_wal_cache('a', 'b')",
            "42883",
            "NULL for all",
        ),
        ("SELECT lockstep_stat_reset_wal_cache(a)", "0A000", help),
        (
            "SELECT get_oldest_wal_cache_ptr('a')",
            "42883",
            "no arguments",
        ),
        ("SELECT other.version()", "0A000", help),
        ("COPY x TO STDOUT", "0A000", help),
        ("INSERT INTO x VALUES (1)", "0A000", help),
        // psql's \l and \dt.
        (
            "SELECT d.datname as \"Name\",\n       pg_catalog.pg_get_userbyid(d.datdba) as \"Owner\"\nFROM pg_catalog.pg_database d\nORDER BY 1;",
            "0A000",
            "does not run \"SELECT d.datname as \"Name\", pg_catalog.pg_get_userbyid(d.dat…\"",
        ),
        (
            "SELECT n.nspname FROM pg_catalog.pg_class c WHERE c.relkind IN ('r','p','') AND n.nspname !~ '^pg_toast' AND pg_catalog.pg_table_is_visible(c.oid)",
            "0A000",
            help,
        ),
    ] {
        let (lines, asked) = ask(Relay::default(), "s", query);
        assert_eq!(lines.len(), 1, "{query}: {lines:?}");
        assert!(
            lines[0].starts_with(&format!("ERROR {code} ")),
            "{query}: {lines:?}"
        );
        assert!(lines[0].contains(words), "{query}: {lines:?}");
        assert!(asked.is_empty(), "{query}: {asked:?}");
    }
}

#[test]
fn queries_have_limits() {
    let blanks = " ".repeat(LONGEST_QUERY);
    assert_eq!(ask(Relay::default(), "s", &blanks).0, ["empty"]);
    let (lines, _) = ask(Relay::default(), "s", &format!("{blanks} "));
    assert!(lines[0].starts_with("ERROR 54000 "), "{lines:?}");
    let many = "SELECT 1;".repeat(MOST_STATEMENTS);
    assert_eq!(
        ask(Relay::default(), "s", &many).0.len(),
        3 * MOST_STATEMENTS
    );
    let (lines, asked) = ask(Relay::default(), "s", &format!("DROP SLOT b;{many}"));
    assert!(lines[0].starts_with("ERROR 54000 "), "{lines:?}");
    assert!(asked.is_empty());
    let columns = format!(
        "SELECT {}name FROM lockstep_stat_logical_wal_cache()",
        "*,".repeat(1000)
    );
    let (lines, _) = ask(Relay::default(), "s", &columns);
    assert!(lines[0].starts_with("ERROR 54011 "), "{lines:?}");
}

#[test]
fn answers_have_a_limit() {
    let relay = Relay {
        more_slots: 20_000,
        ..Relay::default()
    };
    let columns = "*,".repeat(10) + "name";
    let query = format!("SELECT {columns} FROM lockstep_stat_logical_wal_cache();").repeat(3);
    let (lines, asked) = ask(relay, "s", &format!("{query} RELOAD"));
    let done: Vec<&String> = lines
        .iter()
        .filter(|line| line.starts_with(['=', 'E']))
        .collect();
    assert_eq!(done.len(), 2, "{done:?}");
    assert_eq!(done[0], "= SELECT 20003");
    assert!(done[1].starts_with("ERROR 54000 the answer is longer"));
    assert!(asked.is_empty());
}

/// Whatever is asked, the answer is made of whole messages and ends as an answer must; who
/// may do nothing changes nothing.
#[test]
fn any_query_is_answered() {
    let seed = for_tests::number("SEED").unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let pieces = [
        "SELECT",
        "*",
        "FROM",
        "lockstep_stat_logical_wal_cache",
        "(",
        ")",
        "WHERE",
        "name",
        "=",
        "'a'",
        "ORDER",
        "BY",
        "DESC",
        "hit_rate",
        ",",
        ";",
        "lockstep_stat_reset_wal_cache",
        "NULL",
        "get_oldest_wal_cache_ptr",
        "SHOW",
        "SLOTS",
        "CLIENTS",
        "CONFIG",
        "DROP",
        "SLOT",
        "b",
        "RELOAD",
        "SET",
        "ROLE",
        "BEGIN",
        "1",
        "'",
        "\"",
        "$$",
        "$x$",
        "/*",
        "*/",
        "--",
        "\n",
        "\\",
        "E'",
        ".",
        "::",
        "ä",
        "\u{1f600}",
        "\u{0}",
        "version",
        "AS",
    ];
    for round in 0..20_000 {
        let mut query = String::new();
        for _ in 0..random.usize(..14) {
            match random.u8(..12) {
                0 => query.push(random.char(..)),
                _ => query.push_str(pieces[random.usize(..pieces.len())]),
            }
            if random.u8(..4) > 0 {
                query.push(' ');
            }
        }
        let letters = ["", "m", "a", "s"][random.usize(..4)];
        let (lines, asked) = ask(Relay::default(), letters, &query);
        let last = lines.last().unwrap();
        assert!(
            last.starts_with('=') || last.starts_with("ERROR ") || last == "empty",
            "seed {seed}, round {round}: {query:?}: {lines:?}"
        );
        assert!(
            asked.is_empty() || matches!(letters, "a" | "s"),
            "seed {seed}, round {round}: {query:?}: {asked:?}"
        );
    }
}
