//! Which spool a slot on the primary belongs to.
//!
//! A spool has an identity, twelve random hexadecimal digits in its file `identity.json`
//! (checksum line, then JSON). The names of the slots that are made for it end in them, so a
//! relay never takes the slot of another spool for its own: not that of a second relay with
//! the same configuration, and not that of its own spool while its volume is not mounted.
//! Slots from before there were identities keep their names, which their groups' files have.
//!
//! The file is durable before the first slot is made. A copy of a spool has the same identity:
//! only one of the two may ever run.

use std::fs;
use std::path::Path;

use lockstep_spool::{Folder, kept};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::config::{LONGEST_NAME, SLOT_PREFIX};
use crate::error::{RelayError, Result};
use crate::slots;

/// The identity's file.
const FILE: &str = "identity.json";

const DIGITS: usize = 12;

/// Digits of a hash that stand for the end of a name that is too long.
const HASH_DIGITS: usize = 8;

/// The identity of a spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity(String);

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    identity: String,
}

impl Identity {
    /// The identity of a spool, which gets one if it has none, and whether it has it just now.
    pub fn of(spool: &Path) -> Result<(Self, bool)> {
        let path = spool.join(FILE);
        let damaged = |why: String| RelayError::Damaged {
            path: path.clone(),
            why,
        };
        if path.exists() {
            let text = fs::read_to_string(&path)
                .map_err(|source| slots::file("cannot read", path.clone(), source))?;
            let kept: Kept = kept::unchecked(&text)
                .and_then(|json| serde_json::from_str(json).map_err(|error| error.to_string()))
                .map_err(damaged)?;
            return match is_identity(&kept.identity) {
                true => Ok((Self(kept.identity), false)),
                false => Err(damaged(format!("\"{}\" is no identity", kept.identity))),
            };
        }
        let mut bytes = [0; DIGITS / 2];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| damaged("the system gives no random numbers".to_owned()))?;
        let identity = hexadecimal(&bytes);
        let kept = Kept {
            identity: identity.clone(),
        };
        let json = serde_json::to_string(&kept).map_err(|error| damaged(error.to_string()))?;
        kept::replace(&Folder::new(spool), FILE, &kept::checked(&json))
            .map_err(|source| slots::file("cannot write", path.clone(), source))?;
        Ok((Self(identity), true))
    }

    /// The name of a group's slot.
    pub fn slot(&self, group: &str) -> String {
        format!("{}_{}", stem(group), self.0)
    }

    /// Whether a slot was made for this spool.
    pub fn made(&self, slot: &str) -> bool {
        slot.starts_with(SLOT_PREFIX)
            && slot
                .strip_suffix(&self.0)
                .is_some_and(|rest| rest.ends_with('_'))
    }

    /// Whether a slot is one that another spool has for a group of this name. Those from
    /// before there were identities are: this spool's own stand in its groups' files.
    pub fn is_anothers(&self, slot: &str, group: &str) -> bool {
        let earlier = slot.strip_prefix(SLOT_PREFIX) == Some(group);
        let maker = slot
            .strip_prefix(&stem(group))
            .and_then(|rest| rest.strip_prefix('_'));
        earlier || maker.is_some_and(|maker| is_identity(maker) && maker != self.0)
    }

    /// Whether a slot is one that another spool has for any group.
    pub fn is_foreign(&self, slot: &str) -> bool {
        let named = slot.strip_prefix(SLOT_PREFIX);
        let maker = named.and_then(|rest| rest.rsplit_once('_'));
        maker.is_some_and(|(_, maker)| is_identity(maker) && maker != self.0)
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_identity(text: &str) -> bool {
    text.len() == DIGITS
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of a group's slot without the identity. The end of one that would be too long is
/// replaced by its hash.
fn stem(group: &str) -> String {
    let most = LONGEST_NAME - DIGITS - 1;
    let name = format!("{SLOT_PREFIX}{group}");
    match name.get(..most - HASH_DIGITS - 1) {
        Some(begin) if name.len() > most => {
            let hash = sha256(group);
            let hash = hash.get(..HASH_DIGITS).unwrap_or_default();
            format!("{begin}_{hash}")
        }
        _ => name,
    }
}

/// SHA-256 of a text, in hexadecimal.
pub fn sha256(text: &str) -> String {
    hexadecimal(digest(&SHA256, text.as_bytes()).as_ref())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LONGEST_GROUP_NAME;

    fn identity(digits: &str) -> Identity {
        Identity(digits.to_owned())
    }

    #[test]
    fn a_spool_keeps_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let (made, new) = Identity::of(folder.path()).unwrap();
        assert!(new && is_identity(&made.0));
        assert_eq!(Identity::of(folder.path()).unwrap(), (made.clone(), false));
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Identity::of(other.path()).unwrap().0, made);
        let path = folder.path().join(FILE);
        let good = fs::read(&path).unwrap();
        for place in 0..good.len() {
            let mut bad = good.clone();
            bad[place] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(Identity::of(folder.path()).is_err(), "byte {place}");
        }
    }

    #[test]
    fn slots_say_whose_they_are() {
        let (ours, theirs) = (identity("0123456789ab"), identity("ffffffffffff"));
        assert_eq!(ours.slot("orders"), "lockstep_orders_0123456789ab");
        let longest = "x".repeat(LONGEST_GROUP_NAME);
        let almost = "x".repeat(LONGEST_GROUP_NAME - 1);
        assert_ne!(ours.slot(&longest), ours.slot(&almost));
        for group in ["orders", "auto", "a_b", &longest, &almost] {
            let (slot, other) = (ours.slot(group), theirs.slot(group));
            assert!(slot.len() <= LONGEST_NAME, "{slot}");
            assert!(ours.made(&slot) && !ours.made(&other), "{slot}");
            assert!(!ours.is_anothers(&slot, group) && ours.is_anothers(&other, group));
            assert!(!ours.is_foreign(&slot) && ours.is_foreign(&other));
            assert!(!ours.is_anothers(&other, "other"), "{other}");
        }
        // From before there were identities.
        assert!(ours.is_anothers("lockstep_orders", "orders"));
        assert!(!ours.made("lockstep_orders"));
        // An automatic group's, whose name ended in eight digits.
        assert!(!ours.is_anothers("lockstep_auto_01234567", "auto"));
        assert!(!ours.made("mine_0123456789ab"));
    }

    #[test]
    fn sha_256_is_what_it_is_elsewhere() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256("abc"), expected);
    }
}
