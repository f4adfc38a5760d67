//! A private standby from a recording.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use lockstep_lab::Role;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings};

use super::{PlayerError, Recording};
use crate::Result;

/// `pg_hba.conf`: everybody may connect, since only the lab's account can enter the socket's
/// folder.
const HBA: &str = "local all all trust\nlocal replication all trust\n";

/// Copies a recording's base backup and starts it as a standby of `player`, a conninfo such as
/// [`super::Player::conninfo`] returns. The standby has the settings that must be as high as
/// its primary's, and `settings` on top; the source's own configuration is left out.
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

/// As [`standby_of`], without starting the server.
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

/// Copies the base backup as the invoking user, since the account that servers run as may not
/// be able to read a user's recording. Then gives the copy to that account.
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
