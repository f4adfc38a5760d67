//! Small files beside the segments: a checksum line, then JSON, replaced as a whole.

use std::io;

use crate::storage::{SpoolFile, Storage};

/// A text behind a line with its checksum.
pub fn checked(json: &str) -> String {
    format!("{:08x}\n{json}", crc32c::crc32c(json.as_bytes()))
}

/// The text behind its checksum, if that matches.
pub fn unchecked(text: &str) -> Result<&str, String> {
    let (sum, json) = text.split_once('\n').ok_or("it has no second line")?;
    let sum = u32::from_str_radix(sum, 16).map_err(|_| "its first line is no checksum")?;
    match sum == crc32c::crc32c(json.as_bytes()) {
        true => Ok(json),
        false => Err("its checksum does not match".to_owned()),
    }
}

/// Replaces a file as a whole: afterwards it is durable, before that the old one is.
pub fn replace<S: Storage>(storage: &S, name: &str, content: &str) -> io::Result<()> {
    let beside = format!("{name}.new");
    let file = storage.create(&beside)?;
    file.write_at(0, content.as_bytes())?;
    file.sync()?;
    storage.rename(&beside, name)?;
    storage.sync()
}

/// All of a file.
pub fn read_text<S: Storage>(storage: &S, name: &str) -> io::Result<String> {
    let file = storage.open(name)?;
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_at(0, &mut bytes)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
