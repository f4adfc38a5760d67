//! Commands of logical replication.

use fastrand::Rng;
use lockstep_wire::command::{Command, SnapshotAction, boolean};
use lockstep_wire::publication_names;

use crate::rng;

fn create(snapshot: SnapshotAction, two_phase: bool, failover: bool) -> Command {
    Command::CreateLogicalSlot {
        slot: "s".to_owned(),
        temporary: false,
        plugin: "pgoutput".to_owned(),
        snapshot,
        two_phase,
        failover,
    }
}

fn start(slot: &str, start: u64, options: &[(&str, Option<&str>)]) -> Command {
    Command::StartLogical {
        slot: slot.to_owned(),
        start: start.into(),
        options: owned(options),
    }
}

fn owned(options: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
    options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
        .collect()
}

#[test]
fn slots_are_made_as_clients_of_15_to_18_ask() {
    use SnapshotAction::{Export, Nothing, Use};
    for (rest, command) in [
        // As clients before 15 write it.
        ("", create(Export, false, false)),
        (" EXPORT_SNAPSHOT", create(Export, false, false)),
        (" NOEXPORT_SNAPSHOT", create(Nothing, false, false)),
        (" USE_SNAPSHOT", create(Use, false, false)),
        (" TWO_PHASE NOEXPORT_SNAPSHOT", create(Nothing, true, false)),
        // As clients of 15 and later write it.
        (" (SNAPSHOT 'nothing')", create(Nothing, false, false)),
        (" (TWO_PHASE, SNAPSHOT 'use')", create(Use, true, false)),
        (
            " (TWO_PHASE, FAILOVER, SNAPSHOT 'nothing')",
            create(Nothing, true, true),
        ),
        (
            " (\"snapshot\" export, two_phase 0, FAILOVER 'True') ;",
            create(Export, false, true),
        ),
    ] {
        let text = format!("CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput{rest}");
        assert_eq!(Command::parse(&text), Ok(command), "{text}");
    }
    assert_eq!(
        Command::parse("CREATE_REPLICATION_SLOT a TEMPORARY LOGICAL \"Own\"\"Plugin\""),
        Ok(Command::CreateLogicalSlot {
            slot: "a".to_owned(),
            temporary: true,
            plugin: "Own\"Plugin".to_owned(),
            snapshot: Export,
            two_phase: false,
            failover: false,
        })
    );
}

#[test]
fn streams_begin_as_clients_of_15_to_18_ask() {
    for (text, command) in [
        (
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '3', publication_names '\"p\"')",
            start(
                "s",
                0,
                &[
                    ("proto_version", Some("3")),
                    ("publication_names", Some("\"p\"")),
                ],
            ),
        ),
        (
            "START_REPLICATION SLOT \"s\" LOGICAL 16/B374D848 (proto_version '4', streaming 'parallel', origin 'any', publication_names '\"p\",\"it''s\"', binary 'true')",
            start(
                "s",
                0x16_B374_D848,
                &[
                    ("proto_version", Some("4")),
                    ("streaming", Some("parallel")),
                    ("origin", Some("any")),
                    ("publication_names", Some("\"p\",\"it's\"")),
                    ("binary", Some("true")),
                ],
            ),
        ),
        // As pg_recvlogical writes it.
        (
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (\"include-xids\", \"skip\" '')",
            start("s", 0, &[("include-xids", None), ("skip", Some(""))]),
        ),
        ("START_REPLICATION SLOT S LOGICAL 0/1", start("s", 1, &[])),
        // Given twice; refusing it is left to the plugin.
        (
            "START_REPLICATION SLOT s LOGICAL 0/1 (A, a 'x')",
            start("s", 1, &[("a", None), ("a", Some("x"))]),
        ),
        (
            "ALTER_REPLICATION_SLOT \"s\" ( FAILOVER true )",
            Command::AlterReplicationSlot {
                slot: "s".to_owned(),
                options: owned(&[("failover", Some("true"))]),
            },
        ),
        (
            "ALTER_REPLICATION_SLOT s (FAILOVER, TWO_PHASE 'Off', \"X\" 1)",
            Command::AlterReplicationSlot {
                slot: "s".to_owned(),
                options: owned(&[
                    ("failover", None),
                    ("two_phase", Some("Off")),
                    ("X", Some("1")),
                ]),
            },
        ),
        ("UPLOAD_MANIFEST", Command::Other("UPLOAD_MANIFEST")),
        ("start_replication_x", Command::Sql),
        ("\u{a0}START_REPLICATION", Command::Sql),
        ("/**/ START_REPLICATION 0/0", Command::Sql),
    ] {
        assert_eq!(Command::parse(text), Ok(command), "{text}");
    }
}

#[test]
fn commands_that_make_no_sense_are_errors() {
    for text in [
        "START_REPLICATION LOGICAL 0/0",
        "START_REPLICATION SLOT s LOGICAL",
        "START_REPLICATION SLOT s LOGICAL 0",
        "START_REPLICATION SLOT s LOGICAL 0/0 ()",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a,)",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a 1)",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a b)",
        "START_REPLICATION SLOT s LOGICAL 0/0 ('a' 'b')",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a 'b' 'c')",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a 'b)",
        "START_REPLICATION SLOT s LOGICAL 0/0 (a) TIMELINE 1",
        "START_REPLICATION SLOT 1s LOGICAL 0/0",
        "CREATE_REPLICATION_SLOT s LOGICAL",
        "CREATE_REPLICATION_SLOT s LOGICAL 'pgoutput'",
        "CREATE_REPLICATION_SLOT s LOGICAL p RESERVE_WAL",
        "CREATE_REPLICATION_SLOT s LOGICAL p FAILOVER",
        "CREATE_REPLICATION_SLOT s LOGICAL p USE_SNAPSHOT EXPORT_SNAPSHOT",
        "CREATE_REPLICATION_SLOT s LOGICAL p ()",
        "CREATE_REPLICATION_SLOT s LOGICAL p (SNAPSHOT)",
        "CREATE_REPLICATION_SLOT s LOGICAL p (SNAPSHOT 'Use')",
        "CREATE_REPLICATION_SLOT s LOGICAL p (TWO_PHASE, TWO_PHASE)",
        "CREATE_REPLICATION_SLOT s LOGICAL p (TWO_PHASE maybe)",
        "CREATE_REPLICATION_SLOT s LOGICAL p (RESERVE_WAL)",
        "CREATE_REPLICATION_SLOT s LOGICAL p (\"FAILOVER\")",
        "CREATE_REPLICATION_SLOT s PHYSICAL (TWO_PHASE)",
        "CREATE_REPLICATION_SLOT s PHYSICAL USE_SNAPSHOT",
        "ALTER_REPLICATION_SLOT s",
        "ALTER_REPLICATION_SLOT s ()",
        "ALTER_REPLICATION_SLOT s (FAILOVER true) x",
        "ALTER_REPLICATION_SLOT (FAILOVER)",
    ] {
        assert!(Command::parse(text).is_err(), "{text}");
    }
}

#[test]
fn booleans_are_read_as_servers_do() {
    for value in [None, Some("true"), Some("ON"), Some("1")] {
        assert_eq!(boolean(value), Some(true), "{value:?}");
    }
    for value in ["false", "Off", "0"] {
        assert_eq!(boolean(Some(value)), Some(false), "{value}");
    }
    for value in ["", "yes", "t", "2"] {
        assert_eq!(boolean(Some(value)), None, "{value}");
    }
}

#[test]
fn names_are_cut_as_servers_do() {
    let long = "é".repeat(40);
    let cut = "é".repeat(31);
    assert_eq!(
        Command::parse(&format!("READ_REPLICATION_SLOT \"{long}\"")),
        Ok(Command::ReadReplicationSlot { slot: cut.clone() })
    );
    assert_eq!(
        publication_names::parse(&format!("\"{long}\"")),
        Ok(vec![cut])
    );
}

/// Text that tries to get out of its quotes.
fn hostile(rng: &mut Rng) -> String {
    let pieces = [
        "\"",
        "'",
        "\\",
        "\"\"",
        "''",
        ";",
        "--",
        "/*",
        ",",
        ")",
        "(",
        " ",
        "\n",
        "é",
        "A",
        "a",
        "0/0",
        "LOGICAL",
        "DROP_REPLICATION_SLOT",
        "$$",
        "\u{3000}",
    ];
    let mut text = String::new();
    for _ in 0..rng.usize(..8) {
        let piece = rng.choice(pieces).unwrap();
        // Longer names are cut.
        if text.len() + piece.len() <= 63 {
            text.push_str(piece);
        }
    }
    text
}

#[test]
fn whatever_a_name_holds_a_command_comes_back() {
    let mut rng = rng();
    for _ in 0..5_000 {
        let (slot, plugin) = (hostile(&mut rng), hostile(&mut rng));
        let options: Vec<_> = (0..rng.usize(1..4))
            .map(|_| {
                let value = match rng.u8(..4) {
                    0 => None,
                    1 => Some(rng.u8(..3).to_string()),
                    _ => Some(hostile(&mut rng)),
                };
                (hostile(&mut rng), value)
            })
            .collect();
        let start = rng.u64(..).into();
        for command in [
            Command::CreateLogicalSlot {
                slot: slot.clone(),
                temporary: rng.bool(),
                plugin: plugin.clone(),
                snapshot: *rng
                    .choice(&[
                        SnapshotAction::Export,
                        SnapshotAction::Use,
                        SnapshotAction::Nothing,
                    ])
                    .unwrap(),
                two_phase: rng.bool(),
                failover: rng.bool(),
            },
            Command::AlterReplicationSlot {
                slot: slot.clone(),
                options: options.clone(),
            },
            Command::StartLogical {
                slot: slot.clone(),
                start,
                options: options.clone(),
            },
            Command::StartReplication {
                slot: Some(slot.clone()),
                start,
                timeline: None,
            },
            Command::CreatePhysicalSlot {
                slot: slot.clone(),
                temporary: rng.bool(),
                reserve_wal: rng.bool(),
            },
            Command::ReadReplicationSlot { slot: slot.clone() },
            Command::DropReplicationSlot {
                slot,
                wait: rng.bool(),
            },
        ] {
            let text = command.to_string();
            assert_eq!(Command::parse(&text), Ok(command), "{text}");
        }
    }
}

#[test]
fn a_zero_byte_is_left_out_of_a_command() {
    let command = Command::ReadReplicationSlot {
        slot: "a\0\"b".to_owned(),
    };
    assert_eq!(command.to_string(), "READ_REPLICATION_SLOT \"a\"\"b\"");
    assert_eq!(publication_names::write(["a\0b"]), "\"ab\"");
}

#[test]
fn random_words_are_errors_or_commands() {
    let mut rng = rng();
    let words = [
        "START_REPLICATION",
        "CREATE_REPLICATION_SLOT",
        "ALTER_REPLICATION_SLOT",
        "SLOT",
        "s",
        "\"S\"",
        "LOGICAL",
        "0/1",
        "(",
        ")",
        ",",
        "'x'",
        "1",
        "SNAPSHOT",
        "'use'",
        "TWO_PHASE",
        "FAILOVER",
        "USE_SNAPSHOT",
        "true",
        "PHYSICAL",
        ";",
        "TEMPORARY",
        "pgoutput",
    ];
    let mut understood = 0;
    for _ in 0..40_000 {
        let line: Vec<&str> = (0..rng.usize(1..10))
            .map(|_| rng.choice(words).unwrap())
            .collect();
        // Most random lines are refused early, so half of them begin well.
        let line = match rng.u8(..4) {
            0 => format!("START_REPLICATION SLOT s LOGICAL 0/1 ({}", line.join(" ")),
            1 => format!("CREATE_REPLICATION_SLOT s LOGICAL {}", line.join(" ")),
            2 => format!("ALTER_REPLICATION_SLOT s ( {}", line.join(" ")),
            _ => line.join(" "),
        };
        match Command::parse(&line) {
            Ok(Command::Sql | Command::Other(_)) | Err(_) => {}
            Ok(command) => {
                understood += 1;
                let again = command.to_string();
                assert_eq!(Command::parse(&again), Ok(command), "{again}");
            }
        }
    }
    assert!(understood > 100, "{understood}");
}

#[test]
fn lists_of_publications_are_read_as_servers_do() {
    for (list, names) in [
        ("", &[][..]),
        ("  \t\n", &[]),
        ("p", &["p"]),
        ("\"p\"", &["p"]),
        ("\"p\",\"q\"", &["p", "q"]),
        (" One , \"Two\"\t,three ", &["one", "Two", "three"]),
        ("\"a\"\"b\",\"a,b\",\" \"", &["a\"b", "a,b", " "]),
        ("\"\"", &[""]),
        ("\"\"\"\"", &["\""]),
        // A quote has a meaning only at the start of a name.
        ("a\"b,é", &["a\"b", "é"]),
    ] {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(publication_names::parse(list), Ok(names), "{list}");
    }
    for list in [
        ",",
        "a,",
        ",a",
        "a,,b",
        "a b",
        "\"a",
        "\"a\"b",
        "\"a\" \"b\"",
        "\"\"\"",
        "\"",
    ] {
        assert!(publication_names::parse(list).is_err(), "{list}");
    }
}

#[test]
fn lists_of_publications_come_back() {
    let mut rng = rng();
    for _ in 0..5_000 {
        let names: Vec<String> = (0..rng.usize(..4)).map(|_| hostile(&mut rng)).collect();
        let list = publication_names::write(&names);
        assert_eq!(publication_names::parse(&list), Ok(names.clone()), "{list}");
        // The list as the value of an option in a command.
        let command = Command::StartLogical {
            slot: "s".to_owned(),
            start: 0.into(),
            options: vec![("publication_names".to_owned(), Some(list))],
        };
        assert_eq!(Command::parse(&command.to_string()), Ok(command));
        // Any text is a list or an error.
        let _ = publication_names::parse(&hostile(&mut rng));
    }
}
