//! Ports that nobody uses.
//!
//! The lab's servers listen on Unix sockets only. The port is part of the socket file's
//! name, and a number that is free for TCP too cannot be mistaken for another server's.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::{LabError, Result};

/// The port of the machine's own cluster: never used, even if it is free.
const RESERVED: u16 = 5432;

/// Ports that are tried: below those that the kernel gives to connections, and to whoever asks for any. So
/// none is taken by chance before its server comes, or comes back.
const PORTS: Range<u16> = 20_000..32_000;

/// How many ports to try before giving up.
const ATTEMPTS: usize = 64;

/// Ports that this process was offered: one may be free still, as its server comes later.
static OFFERED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Finds a port that is free for TCP and as a socket file in `sockets`. A process is offered each once.
pub fn free(sockets: &Path) -> Result<u16> {
    let mut last = RESERVED;
    for _ in 0..ATTEMPTS {
        last = fastrand::u16(PORTS);
        if check(sockets, last).is_ok() && offer(last) {
            return Ok(last);
        }
    }
    Err(LabError::PortInUse(last))
}

/// Finds a port that is free for TCP. A process is offered each once.
pub(crate) fn free_for_tcp() -> u16 {
    loop {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && offer(port) {
            return port;
        }
    }
}

fn offer(port: u16) -> bool {
    let mut offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
    offered.insert(port)
}

/// Refuses a port that is in use.
pub fn check(sockets: &Path, port: u16) -> Result<()> {
    let taken = port == RESERVED
        || socket_exists(sockets, port)
        || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err();
    if taken {
        Err(LabError::PortInUse(port))
    } else {
        Ok(())
    }
}

fn socket_exists(sockets: &Path, port: u16) -> bool {
    sockets.join(format!(".s.PGSQL.{port}")).exists()
        || sockets.join(format!(".s.PGSQL.{port}.lock")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_offered_twice() {
        let folder = tempfile::tempdir().unwrap();
        let ports: BTreeSet<u16> = (0..500).map(|_| free(folder.path()).unwrap()).collect();
        assert_eq!(ports.len(), 500);
    }

    #[test]
    fn a_port_in_use_is_refused_and_never_offered() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        assert!(matches!(
            check(folder.path(), taken),
            Err(LabError::PortInUse(port)) if port == taken
        ));
        assert!(check(folder.path(), RESERVED).is_err());
        let port = free(folder.path()).unwrap();
        assert_ne!(port, taken);
        std::fs::write(folder.path().join(format!(".s.PGSQL.{port}")), "").unwrap();
        assert!(check(folder.path(), port).is_err());
    }
}
