//! Values as the text that the server reads and writes.

use std::any::type_name;

use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::error::one_line;
use crate::{ClientError, Result};

/// A value that can be a parameter of a statement.
pub trait ToText {
    /// The value as text; None for null.
    fn to_text(&self) -> Option<String>;
}

/// A type that a field of a row can be read as.
pub trait FromText: Sized {
    /// Parses the text of a field; `text` is None for null. Returns None if the text is no value of
    /// this type.
    fn from_text(text: Option<&str>) -> Option<Self>;
}

macro_rules! as_displayed {
    ($($value:ty),*) => {$(
        impl ToText for $value {
            fn to_text(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}

macro_rules! as_parsed {
    ($($value:ty),*) => {$(
        impl FromText for $value {
            fn from_text(text: Option<&str>) -> Option<Self> {
                text?.parse().ok()
            }
        }
    )*};
}

as_displayed!(
    bool, f32, f64, i16, i32, i64, str, String, u16, u32, u64, usize
);
as_displayed!(Lsn, SystemId, Timeline);

as_parsed!(f32, f64, i16, i32, i64, String, u16, u32, u64, usize);
as_parsed!(Lsn, SystemId, Timeline);

impl FromText for bool {
    fn from_text(text: Option<&str>) -> Option<Self> {
        match text? {
            "t" => Some(true),
            "f" => Some(false),
            _ => None,
        }
    }
}

impl<T: ToText + ?Sized> ToText for &T {
    fn to_text(&self) -> Option<String> {
        (**self).to_text()
    }
}

impl<T: ToText> ToText for Option<T> {
    fn to_text(&self) -> Option<String> {
        self.as_ref()?.to_text()
    }
}

impl<T: FromText> FromText for Option<T> {
    fn from_text(text: Option<&str>) -> Option<Self> {
        match text {
            None => Some(None),
            some => T::from_text(some).map(Some),
        }
    }
}

/// The value of the field at `place` of a row, counted from 0. Null is an error unless `T` is
/// an [`Option`].
pub fn field<T: FromText>(row: &[Option<String>], place: usize) -> Result<T> {
    let text = row
        .get(place)
        .ok_or_else(|| ClientError::Protocol(format!("{} columns, none at {place}", row.len())))?;
    T::from_text(text.as_deref()).ok_or_else(|| {
        let text = text.as_deref().map_or_else(
            || "null".to_owned(),
            |text| format!("\"{}\"", one_line(text)),
        );
        ClientError::Protocol(format!("column {place} is {text}, no {}", type_name::<T>()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_went() {
        fn same<T: ToText + FromText + PartialEq + std::fmt::Debug>(value: T) {
            assert_eq!(T::from_text(value.to_text().as_deref()), Some(value));
        }
        same(i64::MIN);
        same(u64::MAX);
        same(0.1_f64 + 0.2);
        same(f64::INFINITY);
        same(String::new());
        same(Lsn::from(0x1_0000_0010));
        same(Some(3));
        same(None::<i32>);
        assert_eq!("a".to_text().as_deref(), Some("a"));
        assert_eq!(Some("a").to_text().as_deref(), Some("a"));
        assert_eq!(None::<&str>.to_text(), None);
    }

    #[test]
    fn fields_are_what_was_asked_for_or_errors() {
        let row: Vec<Option<String>> = [Some("12"), None, Some("t"), Some("")]
            .map(|text| text.map(str::to_owned))
            .to_vec();
        assert_eq!(field(&row, 0), Ok(12_i32));
        assert_eq!(field(&row, 0), Ok(Some(12_i32)));
        assert_eq!(field::<Option<i32>>(&row, 1), Ok(None));
        assert_eq!(field(&row, 2), Ok(true));
        assert_eq!(field(&row, 3), Ok(String::new()));
        for error in [
            field::<i32>(&row, 1).unwrap_err(),
            field::<i32>(&row, 2).unwrap_err(),
            field::<Option<i32>>(&row, 3).unwrap_err(),
            field::<bool>(&row, 0).unwrap_err(),
            field::<String>(&row, 4).unwrap_err(),
        ] {
            assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
        }
        assert_eq!(
            field::<i32>(&row, 2).unwrap_err().to_string(),
            "the primary answered unexpectedly: column 2 is \"t\", no i32"
        );
    }
}
