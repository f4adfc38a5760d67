//! Makes text of servers safe to show: names, queries and messages are chosen by whoever uses
//! the servers, and a terminal or a log would obey control characters in them.

/// Stands for a character that was taken out.
const LEFT_OUT: char = '\u{fffd}';

/// Characters that a terminal obeys rather than shows: control characters, and those that
/// change the direction of text.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Replaces white space with blanks, and control characters with
/// [`char::REPLACEMENT_CHARACTER`].
pub fn sanitize(text: &str) -> String {
    text.chars().map(seen).collect()
}

fn seen(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        c if acts(c) => LEFT_OUT,
        c => c,
    }
}

/// [`sanitize`] for the strings of a JSON text, in which control characters may be escaped. Text
/// that is no JSON stays so.
pub fn sanitize_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            // White space between values belongs to JSON, and strings hold none unescaped.
            plain.push(if c.is_ascii_whitespace() { c } else { seen(c) });
            continue;
        }
        match rest.next() {
            Some('t' | 'n' | 'r') => plain.push(' '),
            Some('b' | 'f') => plain.push(LEFT_OUT),
            Some('u') => {
                let digits = rest.as_str().get(..4).unwrap_or_default();
                let code = u32::from_str_radix(digits, 16).ok();
                match code.and_then(char::from_u32).filter(|&c| acts(c)) {
                    Some(c) => {
                        plain.push(seen(c));
                        rest = rest.as_str().get(4..).unwrap_or_default().chars();
                    }
                    // Other escapes stay as they are, surrogates and invalid ones too: the
                    // parser reports them.
                    None => plain.push_str("\\u"),
                }
            }
            Some(other) => plain.extend(['\\', other]),
            None => plain.push('\\'),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_is_left() {
        for (text, expected) in [
            ("plain é 漢", "plain é 漢"),
            ("a\tb\nc", "a b c"),
            ("\x1b[31mred\x07", "\u{fffd}[31mred\u{fffd}"),
            ("\u{9b}31m\u{7f}", "\u{fffd}31m\u{fffd}"),
            ("abc\u{202e}cba", "abc\u{fffd}cba"),
        ] {
            assert_eq!(sanitize(text), expected);
        }
    }

    #[test]
    fn strings_of_json_are_the_same_after_parsing() {
        let texts = [
            "",
            "plain",
            "a\\b\"c/",
            "\x1b]0;title\x07",
            "\u{0}\u{1}\u{8}\u{c}\n\r\t\u{7f}\u{85}\u{9b}",
            "\\u001b is no escape",
            "\\\\u001b",
            "😀\u{202e}",
        ];
        for text in texts {
            for json in [
                serde_json::to_string(text).unwrap(),
                // With every character escaped, as some servers do.
                format!(
                    "\"{}\"",
                    text.encode_utf16()
                        .map(|unit| format!("\\u{unit:04X}"))
                        .collect::<String>()
                ),
            ] {
                let parsed: String = serde_json::from_str(&sanitize_json(&json)).unwrap();
                assert_eq!(parsed, sanitize(text), "{json}");
            }
        }
        assert!(serde_json::from_str::<String>(&sanitize_json("\"\\u00")).is_err());
        assert_eq!(sanitize_json("{\n \"a\": 1}"), "{\n \"a\": 1}");
    }
}
