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
    let mut blocks = blocks(text);
    let place = only_entry(&blocks, array, has)?;
    blocks.remove(place);
    Some(blocks.concat())
}

/// The text with a value, of plain letters, for a key in the table of an array that has these values for
/// these keys. None unless exactly one has them.
pub fn with_value(
    text: &str,
    array: &str,
    has: &[(&str, &str)],
    (key, value): (&str, &str),
) -> Option<String> {
    let mut blocks = blocks(text);
    let place = only_entry(&blocks, array, has)?;
    let block = blocks.get_mut(place)?;
    let mut lines: Vec<String> = block.split_inclusive('\n').map(str::to_owned).collect();
    let is_key = |line: &String| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let new = format!("{key} = \"{value}\"\n");
    match lines.iter_mut().find(|line| is_key(line)) {
        Some(line) => *line = new,
        None => {
            // What follows the last value may belong to the next table.
            let is_value =
                |line: &String| !matches!(line.trim_start().chars().next(), None | Some('#'));
            let end = lines.iter().rposition(is_value)?;
            let last = lines.get_mut(end)?;
            if !last.ends_with('\n') {
                last.push('\n');
            }
            lines.insert(end + 1, new);
        }
    }
    *block = lines.concat();
    let whole = blocks.concat();
    let mut changed = has.to_vec();
    changed.push((key, value));
    only_entry(&self::blocks(&whole), array, &changed).map(|_| whole)
}

/// The text before the first table, and each table.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in text.split_inclusive('\n') {
        match (line.trim_start().starts_with('['), blocks.last_mut()) {
            (false, Some(block)) => block.push_str(line),
            _ => blocks.push(line.to_owned()),
        }
    }
    blocks
}

/// Place of the table of an array that has these values. None unless exactly one has them.
fn only_entry(blocks: &[String], array: &str, has: &[(&str, &str)]) -> Option<usize> {
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
        found.iter().any(|entry| {
            let text = |key| entry.get(key).and_then(toml::Value::as_str);
            has.iter().all(|(key, value)| text(*key) == Some(*value))
        })
    };
    let mut ours = (0_usize..)
        .zip(blocks)
        .filter(|(_, block)| has_value(block));
    let (place, _) = ours.next()?;
    ours.next().is_none().then_some(place)
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
    fn one_value_is_changed() {
        let text = "[[node]]\nname = \"a\"\ndoor='fresh' # x\n\n# the second\n[[node]]\nname = 'b'\ndoors = 1\n\n# end";
        let with = |name, value| with_value(text, "node", &[("name", name)], ("door", value));
        assert_eq!(
            with("a", "reports").unwrap(),
            text.replace("door='fresh' # x", "door = \"reports\"")
        );
        assert_eq!(
            with("b", "reports").unwrap(),
            text.replace("doors = 1\n", "doors = 1\ndoor = \"reports\"\n")
        );
        assert_eq!(with("c", "reports"), None);
        let last = with_value("[[node]]\nname = 'b'", "node", &[], ("door", "x")).unwrap();
        assert_eq!(last, "[[node]]\nname = 'b'\ndoor = \"x\"\n");
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
