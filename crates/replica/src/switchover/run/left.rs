//! What a switchover leaves if its command ends in the middle, in words. No I/O.

use crate::error::ReplicaError;
use crate::state::Phase;

/// What a command has seen of its switchover.
#[derive(Debug, Clone)]
pub(super) struct Left {
    pub is_begun: bool,
    pub phase: Phase,
    /// The source has a fence, whole or not.
    pub is_fenced: bool,
    pub is_open: bool,
    /// What the pooler calls the database, if its clients wait.
    pub waits: Option<String>,
    /// The source's database, as SQL has it.
    pub database: String,
}

impl Left {
    /// An error of the command, with what it leaves and what to do.
    pub fn told(&self, error: ReplicaError) -> ReplicaError {
        match self.words() {
            None => error,
            Some(left) => ReplicaError::Unfinished {
                error: Box::new(error),
                left,
            },
        }
    }

    fn words(&self) -> Option<String> {
        if !self.is_begun {
            return None;
        }
        let is_before = self.phase == Phase::Ready;
        let mut left = Vec::new();
        if self.is_fenced || !is_before {
            left.push("the source takes no writes");
        }
        if self.waits.is_some() {
            left.push("clients of PgBouncer wait");
        }
        if !is_before {
            left.push(match self.is_open {
                true => "the target is open",
                false => "the target may be open",
            });
        }
        let is = match left.is_empty() {
            true => String::new(),
            false => format!(": {}", left.join(", ")),
        };
        let begun =
            format!("The switchover has begun and is not over{is}. Repeat the same command");
        if !is_before {
            return Some(format!("{begun}, which goes on"));
        }
        let resume = match &self.waits {
            Some(database) => format!(", and in PgBouncer's console RESUME {database}"),
            None => String::new(),
        };
        Some(format!(
            "{begun}, which takes back what was done and tries again. Only if the target is gone for good, which was \
             not opened, run in the source's database: BEGIN READ WRITE; ALTER DATABASE {} RESET \
             default_transaction_read_only; DROP FUNCTION IF EXISTS lockstep.fence() CASCADE; COMMIT;{resume}",
            self.database
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_what_is_left_and_open_the_source_only_while_the_target_never_was() {
        let left = |is_begun, phase, is_fenced, waits: Option<&str>| Left {
            is_begun,
            phase,
            is_fenced,
            is_open: false,
            waits: waits.map(str::to_owned),
            database: "app".to_owned(),
        };
        assert_eq!(left(false, Phase::Ready, false, None).words(), None);
        let words = |it: Left| it.words().unwrap_or_default();
        let before = words(left(true, Phase::Ready, true, Some("pooled")));
        for part in [
            "over: the source takes no writes, clients of PgBouncer wait. Repeat",
            "DROP FUNCTION",
            "RESUME pooled",
        ] {
            assert!(before.contains(part), "{before}");
        }
        let unfenced = words(left(true, Phase::Ready, false, None));
        assert!(
            unfenced.contains("over. Repeat") && !unfenced.contains("RESUME"),
            "{unfenced}"
        );
        let after = words(left(true, Phase::Promoting, false, None));
        assert!(
            after.contains("takes no writes, the target may be open. Repeat"),
            "{after}"
        );
        assert!(!after.contains("DROP FUNCTION"), "{after}");
    }
}
