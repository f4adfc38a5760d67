//! Who may do what in the console.

use lockstep_wire::backend::Report;

use crate::serve::Rights;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing but a login.
    Login,
    /// Statistics and configuration are shown.
    Read,
    /// Something is changed.
    Change,
}

impl Rights {
    /// An error unless the role may do what needs this. `what` is the command, and
    /// `admin_role` the role that is configured.
    pub(super) fn check(
        &self,
        need: Need,
        what: &str,
        admin_role: Option<&str>,
    ) -> Result<(), Report> {
        let allowed = match need {
            Need::Login => true,
            Need::Read => self.superuser || self.monitor,
            Need::Change => self.superuser || self.admin,
        };
        if allowed {
            return Ok(());
        }
        let user = identifier(&self.user);
        let (needs, hint) = match (need, admin_role) {
            (Need::Change, Some(role)) => (
                "a superuser or a member of the configured admin_role",
                format!("On the primary: GRANT {} TO {user}", identifier(role)),
            ),
            (Need::Change, None) => (
                "a superuser",
                "Log in as one, or set admin_role in the relay's configuration.".to_owned(),
            ),
            _ => (
                "the rights of pg_monitor",
                format!("On the primary: GRANT pg_monitor TO {user}"),
            ),
        };
        Err(Report::error("42501", format!("permission denied: {what} needs {needs}")).hint(hint))
    }
}

/// A name as SQL writes it.
fn identifier(name: &str) -> String {
    let plain = |(at, byte): (usize, u8)| {
        byte == b'_' || byte.is_ascii_lowercase() || (at > 0 && byte.is_ascii_digit())
    };
    match !name.is_empty() && name.bytes().enumerate().all(plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}
