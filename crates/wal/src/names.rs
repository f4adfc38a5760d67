//! What resource managers and their operations are called, as pg_waldump prints them.

/// Resource managers by their number.
const MANAGERS: [&str; 23] = [
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
    "XLOG2",
];

/// Numbers of resource managers.
pub mod manager {
    pub const XLOG: u8 = 0;
    pub const XACT: u8 = 1;
    pub const SMGR: u8 = 2;
    pub const CLOG: u8 = 3;
    pub const MULTIXACT: u8 = 6;
    pub const STANDBY: u8 = 8;
    pub const HEAP2: u8 = 9;
    pub const HEAP: u8 = 10;
    pub const BTREE: u8 = 11;
    pub const HASH: u8 = 12;
    pub const GIN: u8 = 13;
    pub const GIST: u8 = 14;
    pub const SEQ: u8 = 15;
    pub const SPGIST: u8 = 16;
    pub const BRIN: u8 = 17;
    pub const GENERIC: u8 = 20;
    pub const LOGICALMSG: u8 = 21;
}

/// The resource manager's name; `custom128` for an extension's.
pub fn of_manager(number: u8) -> String {
    match MANAGERS.get(usize::from(number)) {
        Some(name) => (*name).to_owned(),
        None => format!("custom{number:03}"),
    }
}

/// The operation's name, or its number where it has none here.
pub fn of_operation(major: u32, manager: u8, info: u8) -> String {
    let masked = |mask: u8| info & mask;
    let name = match manager {
        manager::XLOG => xlog(masked(0xF0)),
        manager::XACT => transaction(masked(0x70)),
        manager::SMGR => storage(masked(0xF0)),
        manager::STANDBY => standby(masked(0xF0)),
        manager::HEAP2 => heap2(major, masked(0x70)),
        manager::HEAP => heap(masked(0x70)),
        manager::BTREE => btree(masked(0xF0)),
        manager::SEQ => (masked(0xF0) == 0).then_some("LOG"),
        manager::LOGICALMSG => (masked(0xF0) == 0).then_some("MESSAGE"),
        _ => None,
    };
    match name {
        Some(name) => name.to_owned(),
        None => format!("{:02X}", masked(0xF0)),
    }
}

fn xlog(operation: u8) -> Option<&'static str> {
    Some(match operation {
        0x00 => "CHECKPOINT_SHUTDOWN",
        0x10 => "CHECKPOINT_ONLINE",
        0x20 => "NOOP",
        0x30 => "NEXTOID",
        0x40 => "SWITCH",
        0x50 => "BACKUP_END",
        0x60 => "PARAMETER_CHANGE",
        0x70 => "RESTORE_POINT",
        0x80 => "FPW_CHANGE",
        0x90 => "END_OF_RECOVERY",
        0xA0 => "FPI_FOR_HINT",
        0xB0 => "FPI",
        0xD0 => "OVERWRITE_CONTRECORD",
        0xE0 => "CHECKPOINT_REDO",
        _ => return None,
    })
}

fn transaction(operation: u8) -> Option<&'static str> {
    Some(match operation {
        0x00 => "COMMIT",
        0x10 => "PREPARE",
        0x20 => "ABORT",
        0x30 => "COMMIT_PREPARED",
        0x40 => "ABORT_PREPARED",
        0x50 => "ASSIGNMENT",
        0x60 => "INVALIDATION",
        _ => return None,
    })
}

fn storage(operation: u8) -> Option<&'static str> {
    Some(match operation {
        0x10 => "CREATE",
        0x20 => "TRUNCATE",
        _ => return None,
    })
}

fn standby(operation: u8) -> Option<&'static str> {
    Some(match operation {
        0x00 => "LOCK",
        0x10 => "RUNNING_XACTS",
        0x20 => "INVALIDATIONS",
        _ => return None,
    })
}

fn heap(operation: u8) -> Option<&'static str> {
    Some(match operation {
        0x00 => "INSERT",
        0x10 => "DELETE",
        0x20 => "UPDATE",
        0x30 => "TRUNCATE",
        0x40 => "HOT_UPDATE",
        0x50 => "HEAP_CONFIRM",
        0x60 => "LOCK",
        0x70 => "INPLACE",
        _ => return None,
    })
}

fn heap2(major: u32, operation: u8) -> Option<&'static str> {
    Some(match (operation, major >= 17) {
        (0x00, _) => "REWRITE",
        (0x10, false) => "PRUNE",
        (0x20, false) => "VACUUM",
        (0x30, false) => "FREEZE_PAGE",
        (0x10, true) => "PRUNE_ON_ACCESS",
        (0x20, true) => "PRUNE_VACUUM_SCAN",
        (0x30, true) => "PRUNE_VACUUM_CLEANUP",
        (0x40, _) => "VISIBLE",
        (0x50, _) => "MULTI_INSERT",
        (0x60, _) => "LOCK_UPDATED",
        (0x70, _) => "NEW_CID",
        _ => return None,
    })
}

fn btree(operation: u8) -> Option<&'static str> {
    Some(match operation {
        0x00 => "INSERT_LEAF",
        0x10 => "INSERT_UPPER",
        0x20 => "INSERT_META",
        0x30 => "SPLIT_L",
        0x40 => "SPLIT_R",
        0x50 => "INSERT_POST",
        0x60 => "DEDUP",
        0x70 => "DELETE",
        0x80 => "UNLINK_PAGE",
        0x90 => "UNLINK_PAGE_META",
        0xA0 => "NEWROOT",
        0xB0 => "MARK_PAGE_HALFDEAD",
        0xC0 => "VACUUM",
        0xD0 => "REUSE_PAGE",
        0xE0 => "META_CLEANUP",
        _ => return None,
    })
}
