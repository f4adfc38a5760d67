//! Files in TOML that users write.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::Path;

use serde::de::DeserializeOwned;

/// Most bytes of a file.
const MOST_FILE: u64 = 1 << 20;

/// Reads a file. What is wrong is said without the line, which may hold a password.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MOST_FILE + 1).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST_FILE {
        return Err(format!(
            "it has more than {MOST_FILE} bytes: is it the right file?"
        ));
    }
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        let pieces: Vec<&str> = error.message().split('"').step_by(2).collect();
        format!("line {line}: {}", pieces.join("…"))
    })
}

/// The text without the table of an array that has these values for these keys. None unless exactly one has
/// them.
pub fn without_entry(text: &str, array: &str, has: &[(&str, &str)]) -> Option<String> {
    let is_head = |line: &&str| line.trim_start().starts_with('[');
    let mut blocks: Vec<String> = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if is_head(&line) {
            blocks.push(String::new());
        }
        blocks.last_mut()?.push_str(line);
    }
    let entries = |text: &str| {
        toml::from_str::<toml::Table>(text)
            .ok()?
            .remove(array)?
            .try_into()
            .ok()
    };
    let has_value = |block: &String| {
        let found: Option<Vec<toml::Table>> = entries(block);
        let found = found.unwrap_or_default();
        let text = |entry: &toml::Table, key| {
            entry
                .get(key)
                .and_then(toml::Value::as_str)
                .map(str::to_owned)
        };
        found.iter().any(|entry| {
            let mut has = has.iter();
            has.all(|(key, value)| text(entry, *key).as_deref() == Some(*value))
        })
    };
    let (ours, rest): (Vec<String>, Vec<String>) = blocks.into_iter().partition(has_value);
    (ours.len() == 1).then(|| rest.concat())
}

/// Replaces a file as a whole, so that nobody reads a part; its owner and its rights stay.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = (|| {
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(metadata.permissions())?;
        if file.metadata()?.uid() != metadata.uid() || file.metadata()?.gid() != metadata.gid() {
            chown(&beside, Some(metadata.uid()), Some(metadata.gid()))?;
        }
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        // What is left is of no use.
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_entry_is_taken_out() {
        let text = "# all\n[[node]]\nname = \"a\"\n\n[[node]]\nname = 'b' # two\nx = 1\n[[node]]\nname = \"c\"\n";
        let left = without_entry(text, "node", &[("name", "b")]).unwrap();
        assert_eq!(
            left,
            "# all\n[[node]]\nname = \"a\"\n\n[[node]]\nname = \"c\"\n"
        );
        assert_eq!(without_entry(text, "node", &[("name", "d")]), None);
        assert_eq!(
            without_entry(&text.replace('c', "a"), "node", &[("name", "a")]),
            None
        );
    }

    #[test]
    fn a_file_is_replaced_with_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(replace(&folder.path().join("none"), "x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
