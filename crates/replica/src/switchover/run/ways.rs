//! The way back that an earlier call has made, or has left.

use super::Ends;
use crate::error::{ReplicaError, Result};
use crate::state::{Phase, Replica};
use crate::switchover::decision::WayBack;
use crate::switchover::reverse;

impl Ends<'_> {
    /// Finds the replica of the way back, and those that stand in its way.
    pub(super) fn find_way_back(&mut self, is_ready: bool) -> Result<(WayBack, Option<String>)> {
        let wanted = self.what.way_back.as_deref();
        let found = reverse::find_all(&self.run.source, wanted, self.run.state.connection())?;
        if is_ready {
            self.fed = found.fed;
        }
        let is_alone = found.own.is_none() && !is_ready;
        let other = (found.other).filter(|it| it.phase == Phase::Preparing || is_alone);
        let mut refusal = None;
        if let Some(other) = &other {
            let words = left(wanted, &other.name, &self.run.source.to_string());
            match (wanted, is_ready) {
                // What it lacks now may be why it goes without.
                (None, false) => self.run.notes.push(words),
                (Some(_), false) => return Err(ReplicaError::State(words)),
                (_, true) => refusal = Some(words),
            }
        }
        let Some(name) = wanted else {
            return Ok((WayBack::NotWanted, refusal));
        };
        let Some(own) = found.own else {
            return Ok((WayBack::Missing, refusal));
        };
        let (way_back, other) = self.take_way_back(name, own, is_ready)?;
        Ok((way_back, other.or(refusal)))
    }

    fn take_way_back(
        &mut self,
        name: &str,
        own: Replica,
        is_ready: bool,
    ) -> Result<(WayBack, Option<String>)> {
        let way_back = match (own.phase, is_ready) {
            (Phase::Preparing, _) => {
                self.begun = Some(own.clone());
                self.way = reverse::found(&self.run.source, &self.what.target, own)?;
                match self.way.is_some() {
                    true => WayBack::Prepared,
                    false => WayBack::Part,
                }
            }
            (Phase::Ready, false) => {
                self.run.way_back = Some(own.origin);
                WayBack::Ready
            }
            (Phase::Promoted, _) => WayBack::Missing,
            _ => {
                let words = format!(
                    "the source has a replica \"{name}\" of its own: give the way back another name (--reverse)"
                );
                return Ok((WayBack::Missing, Some(words)));
            }
        };
        Ok((way_back, None))
    }
}

/// What to do about a way back that an earlier call has made with another name, or although none is wanted
/// now.
fn left(wanted: Option<&str>, other: &str, source: &str) -> String {
    let made = format!("an earlier call has made the way back as replica \"{other}\"");
    match wanted {
        Some(_) => format!("{made}: repeat the command with --reverse {other}"),
        None => format!(
            "{made}, whose slot keeps WAL on the target: repeat the command with --reverse {other}, or drop it first \
             (lockstep replica drop {other} --target '{source}')"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_back_that_is_left_is_named_with_what_to_do() {
        assert!(left(Some("b"), "a", "host=s").ends_with("--reverse a"));
        let none = left(None, "a", "host=s");
        assert!(none.contains("drop a --target 'host=s'"), "{none}");
    }
}
