//! Copying a primary, and what its standby can do: catch up, be promoted, be removed.

use std::fs;
use std::time::Duration;

use lockstep_wire::Lsn;

use crate::server::{PATIENCE, SUPERUSER, Server, Stop};
use crate::{LabError, Result, Role};

impl Server {
    /// Copies the running primary into this server's data folder and makes it a standby
    /// that streams through a slot of its own, so that no WAL it needs goes away. The copy is
    /// written to disk if the server is to write to disk what it does.
    pub(crate) fn back_up(&self, primary: &Server, durable: bool) -> Result<()> {
        let mut backup = self.launcher.command(self.package.program("pg_basebackup"));
        backup.arg("-D").arg(&self.data);
        backup.arg("-d").arg(format!(
            "{} application_name={}",
            primary.conninfo(SUPERUSER),
            self.id.name
        ));
        backup.args([
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--wal-method=stream",
        ]);
        backup.args(["--create-slot", "--slot", &self.slot()]);
        if !durable {
            backup.arg("--no-sync");
        }
        self.launcher.run(backup)
    }

    /// The name of the standby's slot on its primary.
    fn slot(&self) -> String {
        self.id
            .name
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '_'
                }
            })
            .collect()
    }

    /// Waits until the standby has replayed up to `lsn`.
    pub fn await_replay(&mut self, lsn: Lsn, patience: Duration) -> Result<()> {
        self.await_event(&format!("replay {lsn}"), patience, |server| {
            server.check_alive()?;
            Ok(server.replay_lsn()? >= lsn)
        })
    }

    /// Waits until the standby has replayed all that the primary had flushed at the call.
    pub fn catch_up(&mut self, primary: &Server) -> Result<()> {
        let lsn = primary.flush_lsn()?;
        self.await_replay(lsn, PATIENCE)
    }

    /// Promotes the standby and waits until it accepts writes.
    pub fn promote(&mut self) -> Result<()> {
        self.execute("SELECT pg_promote(false)")?;
        self.await_event("promote", PATIENCE, |server| {
            server.check_alive()?;
            Ok(server
                .query_text("SELECT pg_is_in_recovery()::text")?
                .as_deref()
                == Some("false"))
        })?;
        self.id.role = Role::Primary;
        Ok(())
    }

    /// Stops the standby, drops its slot and removes its data folder and its log.
    pub fn discard(mut self, primary: &Server) -> Result<()> {
        self.stop(Stop::Immediate)?;
        let slot = self.slot();
        // The primary's walsender may take a moment to notice that the standby is gone.
        self.await_event("release its slot", PATIENCE, |_| {
            let active = primary.query_text(&format!(
                "SELECT active::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
            ))?;
            Ok(active.as_deref() != Some("true"))
        })?;
        primary.execute(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        ))?;
        self.remove()
    }

    /// Stops the server, primary or standby, and removes its data folder and its log.
    pub fn remove(mut self) -> Result<()> {
        self.stop(Stop::Immediate)?;
        fs::remove_dir_all(&self.data).map_err(LabError::io("remove", &self.data))?;
        fs::remove_file(self.log()).map_err(LabError::io("remove", self.log()))
    }
}
