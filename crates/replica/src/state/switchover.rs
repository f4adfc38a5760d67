//! A switchover: how far it is.
//!
//! | column of `lockstep.replica` | what | written |
//! |---|---|---|
//! | `switchover` | `begun`, `begun, pooled`, `begun, proxied` or `done`; NULL if there is none | before clients notice anything; at its end |

use lockstep_client::field;

use super::{ReplicaState, as_text};
use crate::error::{ReplicaError, Result};

/// How far a switchover is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchStage {
    /// There is none, or one that was taken back.
    None,
    /// Entered before clients are made to wait. After a crash it is taken back in phase ready, and goes on
    /// later.
    Begun,
    /// Begun, and clients of a PgBouncer may wait.
    Pooled,
    /// Begun, and new sessions of an HAProxy may wait.
    Proxied,
    /// Entered once clients write on the target. The end.
    Done,
}

as_text!(
    SwitchStage,
    "switchover",
    (SwitchStage::None, ""),
    (SwitchStage::Begun, "begun"),
    (SwitchStage::Pooled, "begun, pooled"),
    (SwitchStage::Proxied, "begun, proxied"),
    (SwitchStage::Done, "done"),
);

impl SwitchStage {
    /// There is one that is not over.
    pub fn is_begun(self) -> bool {
        matches!(self, Self::Begun | Self::Pooled | Self::Proxied)
    }

    /// Which clients may wait, in words.
    pub(crate) fn waiting(self) -> Option<&'static str> {
        match self {
            Self::Pooled => Some(
                "clients of PgBouncer may wait: once it leads where they are to go, RESUME in its console lets them go on",
            ),
            Self::Proxied => Some(
                "new sessions of HAProxy may wait for its server lockstep-waits: let the server where they are to go take                  sessions (set server … state ready), set lockstep-waits to maint, end its sessions and delete it",
            ),
            Self::None | Self::Begun | Self::Done => None,
        }
    }
}

impl ReplicaState {
    /// How far a replica's switchover is.
    pub fn switch_stage(&mut self, name: &str) -> Result<SwitchStage> {
        let sql = "SELECT coalesce(switchover, '') FROM lockstep.replica WHERE name = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let read = rows.and_then(|rows| rows.first().map(|row| field(row, 0)).transpose());
        let text: Option<String> = read.map_err(ReplicaError::Target)?;
        SwitchStage::parse(&text.unwrap_or_default())
    }

    /// Keeps how far a replica's switchover is.
    pub fn set_switch_stage(&mut self, name: &str, stage: SwitchStage) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET switchover = nullif($2, '') WHERE name = $1";
        let set = (self.connection).query_with(sql, &[&name, &stage.text()]);
        set.map(drop).map_err(ReplicaError::Target)
    }

    /// Times that apply's process has written its state, as a text that is another one each time.
    pub fn looked(&mut self, name: &str) -> Result<Option<String>> {
        self.written(name)
    }
}
