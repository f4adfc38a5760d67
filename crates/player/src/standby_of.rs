//! A private standby from a recording.

use std::io::Write;

use lockstep_lab::Role;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings};

use super::{PlayerError, Recording};
use crate::Result;

/// `pg_hba.conf`: everybody may connect, since only the lab's account can enter the socket's
/// folder.
const HBA: &str = "local all all trust\nlocal replication all trust\n";

/// Copies a recording's base backup and starts it as a standby of `player`, a conninfo such as
/// [`super::Player::conninfo`] returns; with an empty one it waits for WAL in its `pg_wal`. The
/// standby has the settings that must be as high as its primary's, and `settings` on top; the
/// source's own configuration is left out.
pub fn standby_of(
    lab: &Lab,
    recording: &Recording,
    name: &str,
    player: &str,
    settings: &Settings,
) -> Result<Server> {
    let mut server = prepare_standby_of(lab, recording, name, player, settings)?;
    server.start()?;
    Ok(server)
}

/// Like [`standby_of`], without starting the server.
pub fn prepare_standby_of(
    lab: &Lab,
    recording: &Recording,
    name: &str,
    player: &str,
    settings: &Settings,
) -> Result<Server> {
    let programs = lab.package().major().get();
    if recording.major() != programs {
        return Err(PlayerError::OtherMajor {
            recorded: recording.major(),
            programs,
        });
    }
    let mut server = lab.server(Role::Standby, name, None)?;
    lab.launcher()
        .copy_folder(&recording.base(), server.data())?;
    for (file, content) in [
        ("postgresql.conf", ""),
        ("postgresql.auto.conf", ""),
        ("pg_hba.conf", HBA),
        ("pg_ident.conf", ""),
        ("standby.signal", ""),
    ] {
        let path = server.data().join(file);
        lab.launcher()
            .create_file(&path)?
            .write_all(content.as_bytes())
            .map_err(PlayerError::io("write", &path))?;
    }
    server.include_settings()?;
    server.set(recording.standby_settings())?;
    server.set([("primary_conninfo", player)])?;
    server.set(settings.clone())?;
    Ok(server)
}
