//! A private standby from a recording.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use lockstep_lab::Role;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings};

use super::{PlayerError, Recording};
use crate::Result;

/// Who may connect: the socket is in the lab's own folder.
const HBA: &str = "local all all trust\nlocal replication all trust\n";

/// Copies a recording's base backup and starts it as a standby of `player`, a conninfo
/// such as [`super::Player::conninfo`] gives. It has the settings that a standby needs
/// from its primary, and `settings` on top; the source's own configuration is left out.
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

/// The same without starting it: [`Server::start`] does that.
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
    copy_base(lab, recording, &server)?;
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

/// As ourselves, since a user's recording may belong to somebody else than the account
/// that servers run as; then the copy goes to that account.
fn copy_base(lab: &Lab, recording: &Recording, server: &Server) -> Result<()> {
    let data = server.data();
    fs::create_dir_all(data).map_err(PlayerError::io("create", data))?;
    let mut copy = Command::new("/usr/bin/cp");
    copy.args([
        "--recursive",
        "--reflink=auto",
        "--preserve=mode,timestamps",
    ]);
    copy.arg("--no-target-directory");
    copy.arg(recording.base()).arg(data);
    run(copy, "cp")?;
    if lab.account().is_other() {
        let mut own = Command::new("/usr/bin/chown");
        own.arg("--recursive").arg(lab.account().name()).arg(data);
        run(own, "chown")?;
    }
    Ok(())
}

fn run(mut command: Command, program: &str) -> Result<()> {
    command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    let output = command
        .output()
        .map_err(PlayerError::io("start", std::path::Path::new(program)))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(PlayerError::program(
            program,
            &String::from_utf8_lossy(&output.stderr),
        )),
    }
}
