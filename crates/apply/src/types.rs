//! Which of the server's own types hold all values of which others. No I/O.
//!
//! The source sends values as text. Some types refuse text that they cannot hold, which stops the replica.
//! Others round it, cut it off, or read it by a setting of the target, without a word: only those are told
//! here. Types of users are not looked at. Of a domain the source sends what it is over, without a modifier.

/// A type that rounds or cuts off, or whose values others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer(Width),
    Float(Width),
    Numeric,
    Money,
    Date,
    Time {
        zone: bool,
    },
    Timestamp {
        zone: bool,
    },
    Interval,
    /// Text of any length.
    Text,
    Varchar,
    Bpchar,
    Name,
    /// `"char"`, one byte.
    Byte,
    /// Numbers without a sign, which take negative ones for others.
    Unsigned,
    /// Ranges and multiranges of [`Kind::Timestamp`] and [`Kind::Date`].
    Timestamps {
        zone: bool,
    },
    Dates,
}

/// Bytes of a number.
type Width = u8;

/// Names of these types in `pg_catalog`, in the order of [`KINDS`].
const NAMES: [&str; 28] = [
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "numeric",
    "money",
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "interval",
    "text",
    "varchar",
    "bpchar",
    "name",
    "char",
    "oid",
    "xid",
    "cid",
    "xid8",
    "tsrange",
    "tstzrange",
    "daterange",
    "tsmultirange",
    "tstzmultirange",
    "datemultirange",
];

/// The OID of one of these types, or of an array of one, by its name in `pg_catalog`.
pub fn named(name: &str) -> Option<u32> {
    let of = |name: &str| NAMES.iter().position(|known| *known == name);
    let plain = of(name).and_then(|at| KINDS.get(at)).map(|kind| kind.0);
    let array = name.strip_prefix('_').and_then(of);
    plain.or_else(|| array.and_then(|at| KINDS.get(at)).map(|kind| kind.1))
}

/// OIDs of types and of their arrays, which are the same on every server.
const KINDS: [(u32, u32, Kind); 28] = [
    (21, 1005, Kind::Integer(2)),
    (23, 1007, Kind::Integer(4)),
    (20, 1016, Kind::Integer(8)),
    (700, 1021, Kind::Float(4)),
    (701, 1022, Kind::Float(8)),
    (1700, 1231, Kind::Numeric),
    (790, 791, Kind::Money),
    (1082, 1182, Kind::Date),
    (1083, 1183, Kind::Time { zone: false }),
    (1266, 1270, Kind::Time { zone: true }),
    (1114, 1115, Kind::Timestamp { zone: false }),
    (1184, 1185, Kind::Timestamp { zone: true }),
    (1186, 1187, Kind::Interval),
    (25, 1009, Kind::Text),
    (1043, 1015, Kind::Varchar),
    (1042, 1014, Kind::Bpchar),
    (19, 1003, Kind::Name),
    (18, 1002, Kind::Byte),
    (26, 1028, Kind::Unsigned),
    (28, 1011, Kind::Unsigned),
    (29, 1012, Kind::Unsigned),
    (5069, 271, Kind::Unsigned),
    (3908, 3909, Kind::Timestamps { zone: false }),
    (3910, 3911, Kind::Timestamps { zone: true }),
    (3912, 3913, Kind::Dates),
    (4533, 6152, Kind::Timestamps { zone: false }),
    (4534, 6153, Kind::Timestamps { zone: true }),
    (4535, 6155, Kind::Dates),
];

/// A column's type and its modifier, -1 if it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnType {
    pub oid: u32,
    pub modifier: i32,
}

/// A modifier of lengths counts this much more.
const HEADER: i32 = 4;

/// Digits of a second that are kept without a modifier.
const MOST_DIGITS: i32 = 6;

impl ColumnType {
    fn kind(self) -> Option<Kind> {
        let of = |(plain, array, _): &&(u32, u32, Kind)| [*plain, *array].contains(&self.oid);
        KINDS.iter().find(of).map(|(.., kind)| *kind)
    }

    fn is_array(self) -> bool {
        KINDS.iter().any(|(_, array, _)| *array == self.oid)
    }

    /// Digits after the point, of a numeric type that has a scale.
    fn scale(self) -> Option<i32> {
        let scale = self.modifier.wrapping_sub(HEADER) & 0x7ff;
        // A number of eleven bits with a sign.
        (self.modifier >= HEADER).then_some((scale ^ 1024) - 1024)
    }

    /// Digits of a second.
    fn digits(self) -> i32 {
        match self.modifier {
            ..0 => MOST_DIGITS,
            digits => (digits & 0xffff).min(MOST_DIGITS),
        }
    }

    /// Fields of an interval, as bits.
    fn fields(self) -> i32 {
        match self.modifier {
            ..0 => 0x7fff,
            modifier => (modifier >> 16) & 0x7fff,
        }
    }

    /// Longest text in characters; None if there is no limit.
    fn length(self) -> Option<i32> {
        (self.modifier >= HEADER).then_some(self.modifier - HEADER)
    }

    /// True if a value of the source's type is rounded or cut off in this one, or is another by the target's
    /// settings.
    pub fn loses(self, source: Self) -> bool {
        let (Some(ours), Some(theirs)) = (self.kind(), source.kind()) else {
            return false;
        };
        if self.is_array() != source.is_array() {
            return false;
        }
        let is_number = |kind| matches!(kind, Kind::Integer(_) | Kind::Float(_) | Kind::Numeric);
        let is_text = |kind| matches!(kind, Kind::Text | Kind::Varchar | Kind::Bpchar | Kind::Name);
        match (ours, theirs) {
            // Text is rounded as a number, and read by settings as a time.
            (Kind::Numeric, theirs) if is_text(theirs) => self.scale().is_some(),
            (
                Kind::Float(_)
                | Kind::Money
                | Kind::Date
                | Kind::Time { .. }
                | Kind::Timestamp { .. }
                | Kind::Interval
                | Kind::Timestamps { .. }
                | Kind::Dates,
                theirs,
            ) if is_text(theirs) => true,
            (Kind::Float(8), Kind::Integer(8)) => true,
            (Kind::Float(4), Kind::Integer(width)) => width > 2,
            (Kind::Float(ours), Kind::Float(theirs)) => ours < theirs,
            (Kind::Float(_), Kind::Numeric) | (Kind::Float(4), Kind::Unsigned) => true,
            (Kind::Numeric, theirs) if is_number(theirs) => match (self.scale(), theirs) {
                (None, _) => false,
                (Some(ours), Kind::Integer(_)) => ours < 0,
                (Some(ours), Kind::Numeric) => source.scale().is_none_or(|theirs| ours < theirs),
                (Some(_), _) => true,
            },
            (Kind::Money, theirs) => matches!(theirs, Kind::Float(_) | Kind::Numeric),
            (Kind::Date | Kind::Time { .. }, Kind::Timestamp { .. }) => true,
            (Kind::Time { zone: ours }, Kind::Time { zone: theirs })
            | (Kind::Timestamp { zone: ours }, Kind::Timestamp { zone: theirs }) => {
                ours != theirs || self.digits() < source.digits()
            }
            (Kind::Interval, Kind::Interval) => {
                self.digits() < source.digits() || source.fields() & !self.fields() != 0
            }
            // As the target's time zone has it.
            (Kind::Timestamp { zone: true }, Kind::Date)
            | (Kind::Timestamps { zone: true }, Kind::Dates)
            | (Kind::Dates, Kind::Timestamps { .. }) => true,
            (Kind::Timestamps { zone: ours }, Kind::Timestamps { zone: theirs }) => ours != theirs,
            (Kind::Unsigned, Kind::Integer(_)) => true,
            (Kind::Name | Kind::Byte, Kind::Text | Kind::Varchar | Kind::Bpchar) => true,
            (Kind::Byte, Kind::Name) => true,
            // It drops blanks at the end.
            (Kind::Bpchar, Kind::Text | Kind::Varchar) => self.length().is_some(),
            (Kind::Varchar | Kind::Bpchar, Kind::Text | Kind::Varchar | Kind::Bpchar) => {
                match (self.length(), source.length()) {
                    (Some(ours), Some(theirs)) => ours < theirs,
                    (ours, _) => ours.is_some(),
                }
            }
            _ => false,
        }
    }

    /// The name of the type, or of an array's elements, in `pg_catalog`.
    fn name(self) -> Option<&'static str> {
        let of = |(plain, array, _): &(u32, u32, Kind)| [*plain, *array].contains(&self.oid);
        let place = KINDS.iter().position(of)?;
        NAMES.get(place).copied()
    }

    /// The type as SQL writes it, with its modifier; None if it is not one of these.
    pub fn sql(self) -> Option<String> {
        let digits = match self.modifier >= 0 && self.digits() < MOST_DIGITS {
            true => format!("({})", self.digits()),
            false => String::new(),
        };
        let zone = |zone| if zone { " with time zone" } else { "" };
        let length = self
            .length()
            .map_or_else(String::new, |length| format!("({length})"));
        let name = match self.kind()? {
            Kind::Integer(2) => "smallint".to_owned(),
            Kind::Integer(4) => "integer".to_owned(),
            Kind::Integer(_) => "bigint".to_owned(),
            Kind::Float(4) => "real".to_owned(),
            Kind::Float(_) => "double precision".to_owned(),
            Kind::Numeric => match self.scale() {
                Some(scale) => format!("numeric({},{scale})", (self.modifier - HEADER) >> 16),
                None => "numeric".to_owned(),
            },
            Kind::Money => "money".to_owned(),
            Kind::Date => "date".to_owned(),
            Kind::Time { zone: has } => format!("time{digits}{}", zone(has)),
            Kind::Timestamp { zone: has } => format!("timestamp{digits}{}", zone(has)),
            Kind::Interval => format!("interval{digits}"),
            Kind::Text => "text".to_owned(),
            Kind::Varchar => format!("varchar{length}"),
            Kind::Bpchar => format!("char{length}"),
            Kind::Name => "name".to_owned(),
            Kind::Byte => "\"char\"".to_owned(),
            Kind::Unsigned | Kind::Timestamps { .. } | Kind::Dates => self.name()?.to_owned(),
        };
        Some(format!("{name}{}", if self.is_array() { "[]" } else { "" }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(oid: u32, modifier: i32) -> ColumnType {
        ColumnType { oid, modifier }
    }

    fn numeric(precision: i32, scale: i32) -> ColumnType {
        of(1700, (precision << 16 | scale & 0x7ff) + HEADER)
    }

    #[test]
    fn what_a_type_rounds_or_cuts_off_is_known() {
        let (int2, int4, int8) = (of(21, -1), of(23, -1), of(20, -1));
        let (real, double, any) = (of(700, -1), of(701, -1), of(1700, -1));
        let (date, time) = (of(1082, -1), of(1083, -1));
        let timestamp = |digits| of(1114, digits);
        let interval = |fields: i32, digits: i32| of(1186, fields << 16 | digits);
        let (text, name) = (of(25, -1), of(19, -1));
        let (varchar, bpchar) = (
            |length| of(1043, length + HEADER),
            |length| of(1042, length + HEADER),
        );
        for (target, source, loses) in [
            (real, double, true),
            (double, real, false),
            (of(1021, -1), of(1022, -1), true),
            (of(1021, -1), double, false),
            (real, int2, false),
            (real, int4, true),
            (double, int4, false),
            (double, int8, true),
            (double, any, true),
            (any, double, false),
            (numeric(10, 2), numeric(12, 4), true),
            (numeric(10, 2), numeric(10, 2), false),
            (numeric(10, 2), numeric(12, 1), false),
            (numeric(10, 2), any, true),
            (any, numeric(10, 2), false),
            (numeric(10, 2), int8, false),
            (numeric(4, -2), int8, true),
            (numeric(4, -2), numeric(4, -3), false),
            (numeric(4, -2), numeric(4, 0), true),
            (numeric(10, 2), real, true),
            (of(790, -1), any, true),
            (of(790, -1), int4, false),
            (timestamp(0), timestamp(6), true),
            (timestamp(0), timestamp(-1), true),
            (timestamp(6), timestamp(-1), false),
            (timestamp(-1), timestamp(3), false),
            (timestamp(-1), of(1184, -1), true),
            (date, timestamp(-1), true),
            (timestamp(-1), date, false),
            (time, timestamp(-1), true),
            (time, of(1083, 3), false),
            (of(1083, 3), time, true),
            (of(1083, -1), of(1266, -1), true),
            (interval(0x7fff, 0xffff), of(1186, -1), false),
            (interval(0x7fff, 2), of(1186, -1), true),
            (interval(0x4, 0xffff), of(1186, -1), true),
            (of(1186, -1), interval(0x4, 0xffff), false),
            (varchar(10), varchar(20), true),
            (varchar(20), varchar(10), false),
            (varchar(20), text, true),
            (text, varchar(20), false),
            (of(1043, -1), text, false),
            (bpchar(3), varchar(3), true),
            (of(1042, -1), varchar(3), false),
            (bpchar(3), bpchar(4), true),
            (name, text, true),
            (text, name, false),
            (of(18, -1), name, true),
            (numeric(10, 2), text, true),
            (any, text, false),
            (double, bpchar(20), true),
            (of(790, -1), text, true),
            (interval(0x7fff, 0xffff), text, true),
            (int4, text, false),
            (text, numeric(10, 2), false),
            // Refused if it does not fit.
            (int2, int8, false),
            (int4, double, false),
            (of(3802, -1), of(114, -1), false),
            (real, of(20_000, -1), false),
        ] {
            assert_eq!(target.loses(source), loses, "{source:?} in {target:?}");
        }
    }

    #[test]
    fn what_a_time_zone_or_a_sign_changes_is_known() {
        let (date, int4, oid) = (of(1082, -1), of(23, -1), of(26, -1));
        let (dates, times, zoned) = (of(3912, -1), of(3908, -1), of(3910, -1));
        for (target, source, loses) in [
            (of(1184, -1), date, true),
            (of(1184, -1), of(25, -1), true),
            (date, of(1043, 14), true),
            (of(1182, -1), of(1009, -1), true),
            (dates, of(25, -1), true),
            (of(1114, -1), date, false),
            (oid, int4, true),
            (of(20, -1), oid, false),
            (oid, of(28, -1), false),
            (of(700, -1), oid, true),
            (dates, times, true),
            (zoned, dates, true),
            (times, dates, false),
            (times, zoned, true),
            (of(4535, -1), of(4534, -1), true),
            (of(6155, -1), of(6152, -1), true),
        ] {
            assert_eq!(target.loses(source), loses, "{source:?} in {target:?}");
        }
    }

    #[test]
    fn types_are_written_as_sql_has_them() {
        for (of, sql) in [
            (numeric(12, 4), Some("numeric(12,4)")),
            (numeric(4, -2), Some("numeric(4,-2)")),
            (of(1700, -1), Some("numeric")),
            (of(1022, -1), Some("double precision[]")),
            (of(1114, 6), Some("timestamp")),
            (of(1184, 3), Some("timestamp(3) with time zone")),
            (of(1043, 24), Some("varchar(20)")),
            (of(1042, 7), Some("char(3)")),
            (of(18, -1), Some("\"char\"")),
            (of(1028, -1), Some("oid[]")),
            (of(4535, -1), Some("datemultirange")),
            (of(20_000, -1), None),
        ] {
            assert_eq!(of.sql().as_deref(), sql, "{of:?}");
        }
    }
}
