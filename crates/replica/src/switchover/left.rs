//! What a switchover leaves if its command ends in the middle, in words. No I/O.

use crate::error::{End, ReplicaError};
use crate::state::Phase;
use crate::switchover::pooler::Waiting;

/// What a command has seen of its switchover.
#[derive(Debug, Clone)]
pub struct Left {
    pub name: String,
    pub is_begun: bool,
    pub phase: Phase,
    /// The source has a fence, whole or not.
    pub is_fenced: bool,
    pub is_open: bool,
    /// Clients that wait.
    pub waits: Option<Waiting>,
    /// The source's database, as SQL has it.
    pub database: String,
}

impl Left {
    /// An error of the command, with what it leaves and what to do.
    pub fn told(&self, error: ReplicaError) -> ReplicaError {
        match self.words(error.end()) {
            None => error,
            Some(left) => ReplicaError::Unfinished {
                error: Box::new(error),
                left,
            },
        }
    }

    /// What is left, and what to do if the server `lost` does not come back.
    fn words(&self, lost: Option<End>) -> Option<String> {
        if !self.is_begun {
            return None;
        }
        let is_before = self.phase == Phase::Ready;
        let mut left = Vec::new();
        if self.is_fenced || !is_before {
            left.push("the source takes no writes");
        }
        let wait = self.waits.as_ref().map(|it| format!("{} wait", it.whose));
        left.extend(wait.as_deref());
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
            Some(waiting) => format!(", and {}", waiting.resume),
            None => String::new(),
        };
        if lost == Some(End::Source) {
            return Some(format!(
                "{begun} once the source is back, which takes back what was done and tries again. Only if the source is \
                 gone for good, open the target with what it has: lockstep replica promote {} --with-data-loss, with \
                 the same --target{resume}",
                self.name
            ));
        }
        Some(format!(
            "{begun}, which takes back what was done and tries again. Only if the target is gone for good, which was \
             not opened, run in the source's database: SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE \
             application_name = 'lockstep replica' AND datname = current_database() AND pid <> pg_backend_pid(); \
             BEGIN READ WRITE; ALTER DATABASE {} RESET \
             default_transaction_read_only; DROP FUNCTION IF EXISTS lockstep.fence() CASCADE; COMMIT;{resume}",
            self.database
        ))
    }
}

/// What can be told of a switchover whose target does not answer when a command begins.
#[derive(Debug, Clone, Default)]
pub struct Unknown {
    /// Whether the source has a fence. None if no --source was given, or if it does not answer either.
    pub is_fenced: Option<bool>,
    pub names_source: bool,
    /// Clients that wait.
    pub waits: Option<Waiting>,
}

impl Unknown {
    /// An error of the command, with what is known and what to do.
    pub fn told(&self, error: ReplicaError) -> ReplicaError {
        ReplicaError::Unfinished {
            error: Box::new(error),
            left: self.words(),
        }
    }

    fn words(&self) -> String {
        let source = match (self.is_fenced, self.names_source) {
            (Some(true), _) => {
                ". The source has the fence of one: it takes no writes until that is over"
            }
            (Some(false), _) => ". The source has no fence, so none keeps it from taking writes",
            (None, true) => ". The source does not answer either",
            (None, false) => ". With --source the command says whether the source has a fence",
        };
        let (clients, resume) = match &self.waits {
            Some(waiting) => (
                format!("; {} wait", waiting.whose),
                format!(", and {}", waiting.resume),
            ),
            None => (String::new(), String::new()),
        };
        format!(
            "Only the target knows whether a switchover has begun{source}{clients}. Bring the target back, and repeat the \
             same command, which takes back what was begun or goes on. Only if the target is gone for good and no \
             command has said that it is or may be open, open the source by hand{resume}: the statements are in \
             docs/replica-switchover.md, Switching over"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(database: &str) -> Waiting {
        Waiting {
            whose: "clients of PgBouncer",
            resume: format!("in PgBouncer's console RESUME {database}"),
        }
    }

    #[test]
    fn words_tell_what_is_known_while_the_target_does_not_answer() {
        let words = |is_fenced, names_source, waits: Option<&str>| {
            let waits = waits.map(waiting);
            let unknown = Unknown {
                is_fenced,
                names_source,
                waits,
            };
            unknown.words()
        };
        let fenced = words(Some(true), true, Some("pooled"));
        for part in [
            "takes no writes",
            "clients of PgBouncer wait. Bring",
            "RESUME pooled",
        ] {
            assert!(fenced.contains(part), "{fenced}");
        }
        assert!(words(Some(false), true, None).contains("has no fence"));
        assert!(words(None, true, None).contains("does not answer either"));
        let nothing = words(None, false, None);
        assert!(
            nothing.contains("With --source") && !nothing.contains("RESUME"),
            "{nothing}"
        );
    }

    #[test]
    fn words_tell_what_is_left_and_open_the_source_only_while_the_target_never_was() {
        let left = |is_begun, phase, is_fenced, waits: Option<&str>| Left {
            name: "r".to_owned(),
            is_begun,
            phase,
            is_fenced,
            is_open: false,
            waits: waits.map(waiting),
            database: "app".to_owned(),
        };
        assert_eq!(left(false, Phase::Ready, false, None).words(None), None);
        let words = |it: Left| it.words(Some(End::Target)).unwrap_or_default();
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
        let source = left(true, Phase::Ready, true, None).words(Some(End::Source));
        let source = source.unwrap_or_default();
        assert!(
            source.contains("promote r --with-data-loss") && !source.contains("DROP FUNCTION"),
            "{source}"
        );
    }
}
