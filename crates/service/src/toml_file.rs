//! Files in TOML that users write.

use std::fs::File;
use std::io::Read;
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
