//! Whether a column takes all values of a column of another type, and what it lacks for that. Types are named
//! as `format_type` does; the values come as text.

/// How a type takes the values of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    All,
    /// The type is of the same kind and takes fewer: all its values are values of the other, too.
    Fewer,
    /// The type is of another kind, and may refuse any value.
    Other,
}

/// Types that differ only in how much they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Float,
    Bits,
}

/// What of a type is not in parentheses, and what is.
fn split(name: &str) -> (String, &str) {
    match name.split_once('(').zip(name.rsplit_once(')')) {
        Some(((base, _), (_, rest))) => {
            let inner = name.get(base.len() + 1..name.len() - rest.len() - 1);
            (format!("{base}{rest}"), inner.unwrap_or_default())
        }
        None => (name.to_owned(), ""),
    }
}

/// The kind of a type, and how much it takes.
fn room(name: &str) -> Option<(Kind, u32)> {
    let (base, inner) = split(name);
    let length = inner.parse().unwrap_or(u32::MAX);
    Some(match base.as_str() {
        "text" | "character varying" | "character" => (Kind::Text, length),
        "smallint" => (Kind::Integer, 2),
        "integer" => (Kind::Integer, 4),
        "bigint" => (Kind::Integer, 8),
        "real" => (Kind::Float, 4),
        "double precision" => (Kind::Float, 8),
        "bit varying" => (Kind::Bits, length),
        _ => return None,
    })
}

/// Digits of a `numeric` before and after its point.
fn digits(name: &str) -> Option<(i64, i64)> {
    let (base, inner) = split(name);
    let (all, after) = inner.split_once(',').unwrap_or((inner, "0"));
    let unlimited = (i64::MAX, i64::MAX);
    (base == "numeric").then(|| match (all.parse::<i64>(), after.parse::<i64>()) {
        (Ok(all), Ok(after)) => (all.saturating_sub(after), after),
        _ => unlimited,
    })
}

/// How a column of type `ours` takes what one of type `theirs` has.
pub(super) fn fit(theirs: &str, ours: &str) -> Fit {
    if theirs == ours || ["text", "character varying"].contains(&ours) {
        return Fit::All;
    }
    if let Some(((before, after), (our_before, our_after))) = digits(theirs).zip(digits(ours)) {
        return match (before <= our_before, our_after <= after) {
            (true, _) => Fit::All,
            (false, true) => Fit::Fewer,
            // It would be rounded.
            (false, false) => Fit::Other,
        };
    }
    match (room(theirs), room(ours)) {
        (Some((kind, most)), Some((our_kind, our_most))) if kind == our_kind => {
            match most <= our_most {
                true => Fit::All,
                false => Fit::Fewer,
            }
        }
        (Some((Kind::Integer | Kind::Float, _)), None) if ours == "numeric" => Fit::All,
        // Digits of a second are rounded.
        _ if ["time", "interval"].iter().any(|it| ours.starts_with(it))
            && split(theirs).0 == split(ours).0 =>
        {
            Fit::All
        }
        _ => Fit::Other,
    }
}

/// True if the values of both types are alike in their binary form.
pub(super) fn is_alike_in_binary(theirs: &str, ours: &str) -> bool {
    let is_text = |name: &str| matches!(room(name), Some((Kind::Text, _)));
    split(theirs).0 == split(ours).0 || is_text(theirs) && is_text(ours)
}

/// Labels of an enum as SQL has them, of a list with commas.
fn labels(list: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let pieces = list.split(|letter: char| {
        is_quoted ^= letter == '\'';
        letter == ',' && !is_quoted
    });
    pieces.map(str::trim).filter(|it| !it.is_empty()).collect()
}

/// Statements that give enum `name`, which has the labels `ours`, those that `theirs` has besides, in their
/// order.
pub(super) fn labels_added(name: &str, theirs: &str, ours: &str) -> Vec<String> {
    let (theirs, ours) = (labels(theirs), labels(ours));
    let mut before = None;
    let mut added = Vec::new();
    for label in theirs {
        if !ours.contains(&label) {
            let place = match (before, ours.first()) {
                (Some(before), _) => format!(" AFTER {before}"),
                (None, Some(first)) => format!(" BEFORE {first}"),
                (None, None) => String::new(),
            };
            added.push(format!("ALTER TYPE {name} ADD VALUE {label}{place};"));
        }
        before = Some(label);
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrower_type_takes_fewer() {
        use Fit::{All, Fewer, Other};
        for (theirs, ours, expected) in [
            ("text", "text", All),
            ("text", "character varying(3)", Fewer),
            ("character varying(3)", "character varying(4)", All),
            ("character varying(4)", "character varying(3)", Fewer),
            ("character varying", "character varying(3)", Fewer),
            ("character varying(3)", "text", All),
            ("character(4)", "character varying(3)", Fewer),
            ("uuid", "text", All),
            ("uuid", "character varying(3)", Other),
            ("integer", "bigint", All),
            ("integer", "smallint", Fewer),
            ("bigint", "numeric", All),
            ("numeric", "bigint", Other),
            ("text", "integer", Other),
            ("double precision", "real", Fewer),
            ("numeric(8,2)", "numeric(5,2)", Fewer),
            ("numeric(8,2)", "numeric(5,3)", Other),
            ("numeric(8,2)", "numeric(8,1)", All),
            ("numeric(8,2)", "numeric", All),
            ("numeric", "numeric(8,2)", Fewer),
            ("numeric(3)", "numeric(2)", Fewer),
            (
                "timestamp(6) with time zone",
                "timestamp(3) with time zone",
                All,
            ),
            (
                "timestamp with time zone",
                "timestamp without time zone",
                Other,
            ),
            ("bit(3)", "bit(4)", Other),
            ("bit varying(4)", "bit varying(3)", Fewer),
            ("public.mood", "public.other", Other),
            ("text[]", "character varying(3)[]", Other),
            ("character varying(4)[]", "character varying(3)[]", Other),
        ] {
            assert_eq!(fit(theirs, ours), expected, "{theirs} into {ours}");
        }
    }

    #[test]
    fn texts_are_alike_in_binary_and_numbers_are_not() {
        assert!(is_alike_in_binary("character varying(3)", "text"));
        assert!(is_alike_in_binary("numeric(3,1)", "numeric"));
        assert!(!is_alike_in_binary("integer", "bigint"));
        assert!(!is_alike_in_binary("uuid", "text"));
    }

    #[test]
    fn labels_are_added_in_their_order() {
        let added = |theirs: &str, ours: &str| labels_added("s.e", theirs, ours).join(" ");
        assert_eq!(added("'a', 'b'", "'b', 'a', 'c'"), "");
        assert_eq!(
            added("'first', 'a', 'it''s, so', 'b', 'c'", "'a', 'b'"),
            "ALTER TYPE s.e ADD VALUE 'first' BEFORE 'a'; ALTER TYPE s.e ADD VALUE 'it''s, so' AFTER 'a'; \
             ALTER TYPE s.e ADD VALUE 'c' AFTER 'b';"
        );
        assert_eq!(added("'a'", ""), "ALTER TYPE s.e ADD VALUE 'a';");
    }
}
