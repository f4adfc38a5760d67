use super::*;

fn start(slot: Option<&str>, start: u64, timeline: Option<u32>) -> Command {
    Command::StartReplication {
        slot: slot.map(str::to_owned),
        start: start.into(),
        timeline: timeline.and_then(Timeline::new),
    }
}

fn create(slot: &str, temporary: bool, reserve_wal: bool) -> Command {
    Command::CreatePhysicalSlot {
        slot: slot.to_owned(),
        temporary,
        reserve_wal,
    }
}

#[test]
fn what_clients_of_15_to_18_send_is_understood() {
    let show = |name: &str| Command::Show {
        name: name.to_owned(),
    };
    for (text, command) in [
        ("IDENTIFY_SYSTEM", Command::IdentifySystem),
        (" \tIDENTIFY_SYSTEM\n; ", Command::IdentifySystem),
        // A server takes these for SQL.
        ("identify_system", Command::Sql),
        ("\"IDENTIFY_SYSTEM\"", Command::Sql),
        ("IDENTIFY_SYSTEM$", Command::Sql),
        ("-- \nIDENTIFY_SYSTEM", Command::Sql),
        ("SHOW wal_segment_size", show("wal_segment_size")),
        ("SHOW \"Lockstep\".x", show("lockstep.x")),
        (
            "START_REPLICATION 0/2000000 TIMELINE 1",
            start(None, 0x200_0000, Some(1)),
        ),
        (
            "START_REPLICATION PHYSICAL A/B",
            start(None, 0xA_0000_000B, None),
        ),
        (
            "START_REPLICATION SLOT \"a\"\"b\" 16/B374D848 TIMELINE 4294967295",
            start(Some("a\"b"), 0x16_B374_D848, Some(u32::MAX)),
        ),
        (
            "START_REPLICATION SLOT Slot PHYSICAL 0/0",
            start(Some("slot"), 0, None),
        ),
        (
            "START_REPLICATION SLOT\"SLOT\"PHYSICAL ab/CDTIMELINE 2",
            start(Some("SLOT"), 0xAB_0000_00CD, Some(2)),
        ),
        // As C reads numbers into 32 bits.
        (
            "START_REPLICATION 123456789/11111111111111111111 TIMELINE 4294967298",
            start(None, 0x2345_6789_FFFF_FFFF, Some(2)),
        ),
        (
            "CREATE_REPLICATION_SLOT \"pg_walreceiver_7\" TEMPORARY PHYSICAL RESERVE_WAL",
            create("pg_walreceiver_7", true, true),
        ),
        (
            "CREATE_REPLICATION_SLOT \"s\" PHYSICAL",
            create("s", false, false),
        ),
        (
            "CREATE_REPLICATION_SLOT \"s\" PHYSICAL (RESERVE_WAL)",
            create("s", false, true),
        ),
        (
            "CREATE_REPLICATION_SLOT \"s\" PHYSICAL ( reserve_wal 'False' )",
            create("s", false, false),
        ),
        (
            // No slot has such a name, and a server says so.
            "READ_REPLICATION_SLOT a.\"B\"",
            Command::ReadReplicationSlot {
                slot: "a.B".to_owned(),
            },
        ),
        ("BASE_BACKUP ( LABEL 'x' )", Command::Other("BASE_BACKUP")),
        (
            "SELECT pg_catalog.set_config('search_path', '', false);",
            Command::Sql,
        ),
        ("", Command::Sql),
    ] {
        assert_eq!(Command::parse(text), Ok(command), "{text}");
    }
}

#[test]
fn commands_that_make_no_sense_are_errors() {
    for text in [
        "SHOW",
        "SHOW a.",
        "IDENTIFY_SYSTEM x",
        "START_REPLICATION",
        "START_REPLICATION 0/0 TIMELINE 0",
        "START_REPLICATION 0/0 TIMELINE -1",
        "START_REPLICATION 0/0 TIMELINE 4294967296",
        "START_REPLICATION SLOT 0/0",
        "START_REPLICATION SLOT \"x 0/0",
        "START_REPLICATION 0",
        "START_REPLICATION 0 / 0",
        "START_REPLICATION G/0",
        "START_REPLICATION SLOT LOGICAL 0/0",
        "START_REPLICATION slot s 0/0",
        "START_REPLICATION 0/0 TIMELINE 1a",
        "START_REPLICATION 0/0;;",
        "START_REPLICATION 0/0 -- end",
        "START_REPLICATION 0/0; SELECT 1",
        "TIMELINE_HISTORY",
        "TIMELINE_HISTORY 0",
        "CREATE_REPLICATION_SLOT PHYSICAL",
        "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (",
        "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (snapshot 'x')",
        "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (reserve_wal maybe)",
        "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (reserve_wal '1')",
        "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (reserve_wal 2)",
        "DROP_REPLICATION_SLOT",
        "DROP_REPLICATION_SLOT WAIT",
        "DROP_REPLICATION_SLOT x wait",
        "DROP_REPLICATION_SLOT 1x",
        "DROP_REPLICATION_SLOT $x",
        "DROP_REPLICATION_SLOT 'x'",
        "READ_REPLICATION_SLOT 'x'",
    ] {
        assert!(Command::parse(text).is_err(), "{text}");
    }
    assert!(Command::parse(&format!("SHOW x{}", " ".repeat(LIMIT))).is_err());
    assert!(Command::parse("SHOW \"\0\"").is_err());
}

#[test]
fn only_replication_commands_have_a_limit() {
    let sql = format!("SELECT {}", " ".repeat(LIMIT));
    assert_eq!(Command::parse(&sql), Ok(Command::Sql));
}
