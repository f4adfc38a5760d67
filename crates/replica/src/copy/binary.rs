//! Which types may be copied in the binary format.
//!
//! Some binary values name objects by their OIDs, which differ between two servers: arrays and
//! rows name their elements' types, `regclass` and its like are nothing but OIDs. Types that are
//! not built in may differ between versions of their extension, so they go as text, which is what
//! pg_dump would do.

use std::collections::HashMap;

use lockstep_apply::types::ColumnType;

/// OIDs from here on are given by each server on its own.
const FIRST_OWN_OID: u32 = 16_384;

/// Built-in types whose binary form says less than its text, or something else on another server:
/// regproc, regconfig, regdictionary, regprocedure, regoper, regoperator, regclass, regtype,
/// regnamespace, regrole, regcollation, and money, whose fraction depends on `lc_monetary`.
const TEXT_ONLY: [u32; 12] = [
    24, 3734, 3769, 2202, 2203, 2204, 2205, 2206, 4089, 4096, 4191, 790,
];

/// A type as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// The name of the type with its schema, quoted.
    pub name: String,
    /// `pg_type.typtype`.
    pub kind: char,
    /// The type can be sent and received in the binary format.
    pub has_binary: bool,
    /// The type of an array's elements, 0 if it is no array.
    pub element: u32,
    /// A domain's base type or a range's subtype, 0 for others.
    pub base: u32,
    /// The modifier of what a domain is over, -1 for others.
    pub modifier: i32,
}

/// Deepest chain of domains and ranges that is followed.
const DEEPEST: usize = 16;

/// True if values of the type mean the same in the binary format on both servers.
pub fn goes_binary(types: &HashMap<u32, Type>, oid: u32) -> bool {
    let mut oid = oid;
    for _ in 0..DEEPEST {
        let Some(of) = types.get(&oid).filter(|of| of.has_binary) else {
            return false;
        };
        match of.kind {
            'd' | 'r' => oid = of.base,
            'e' => return true,
            'b' if of.element != 0 => {
                let element = types.get(&of.element);
                return built_in(of.element)
                    && element
                        .is_some_and(|of| of.kind == 'b' && of.has_binary && of.element == 0);
            }
            'b' => return built_in(oid),
            _ => return false,
        }
    }
    false
}

/// A type as both servers write it, with what a domain or a range is over: two that are written alike have
/// the same binary values. None of composite types and their like.
pub fn written(types: &HashMap<u32, Type>, of: ColumnType) -> Option<String> {
    let (mut next, mut text) = (of, String::new());
    for _ in 0..DEEPEST {
        let of = types.get(&next.oid)?;
        text.push_str(&format!("{} {} {}/", of.name, of.kind, next.modifier));
        match of.kind {
            'd' | 'r' => {
                next = ColumnType {
                    oid: of.base,
                    modifier: of.modifier,
                };
            }
            _ => return Some(text),
        }
    }
    None
}

/// What a domain is over, with its modifier; other types are that themselves.
pub fn bottom(types: &HashMap<u32, Type>, of: ColumnType) -> ColumnType {
    let mut bottom = of;
    for _ in 0..DEEPEST {
        match types.get(&bottom.oid).filter(|of| of.kind == 'd') {
            Some(of) => {
                bottom = ColumnType {
                    oid: of.base,
                    modifier: of.modifier,
                };
            }
            None => break,
        }
    }
    bottom
}

fn built_in(oid: u32) -> bool {
    oid < FIRST_OWN_OID && !TEXT_ONLY.contains(&oid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_the_same_on_both_goes_binary() {
        let of = |kind, element, base| Type {
            name: String::new(),
            modifier: -1,
            kind,
            has_binary: true,
            element,
            base,
        };
        let types: HashMap<u32, Type> = [
            (23, of('b', 0, 0)),
            (1007, of('b', 23, 0)),
            (2205, of('b', 0, 0)),
            (2210, of('b', 2205, 0)),
            (3904, of('r', 0, 23)),
            (20_000, of('e', 0, 0)),
            (20_001, of('b', 20_000, 0)),
            (20_002, of('d', 0, 23)),
            (20_003, of('d', 0, 20_002)),
            (20_004, of('c', 0, 0)),
            (20_005, of('b', 0, 0)),
            (20_006, of('r', 0, 20_005)),
            (20_007, of('d', 0, 20_007)),
            (
                1033,
                Type {
                    has_binary: false,
                    ..of('b', 0, 0)
                },
            ),
        ]
        .into();
        for (oid, binary) in [
            (23, true),
            (1007, true),
            (2205, false),
            (2210, false),
            (3904, true),
            (20_000, true),
            (20_001, false),
            (20_002, true),
            (20_003, true),
            (20_004, false),
            (20_005, false),
            (20_006, false),
            (20_007, false),
            (1033, false),
            (99, false),
        ] {
            assert_eq!(goes_binary(&types, oid), binary, "{oid}");
        }
    }

    #[test]
    fn types_are_written_down_to_what_they_are_over() {
        let of = |name: &str, kind, base, modifier| Type {
            name: name.to_owned(),
            kind,
            has_binary: true,
            element: 0,
            base,
            modifier,
        };
        let numeric = (1700, of("n", 'b', 0, -1));
        let source: HashMap<_, _> = [
            numeric.clone(),
            (3906, of("numrange", 'r', 1700, -1)),
            (20_000, of("d", 'd', 1700, 655_366)),
            (20_001, of("e", 'd', 20_000, -1)),
            (20_002, of("own", 'd', 20_002, -1)),
        ]
        .into();
        let target: HashMap<_, _> = [numeric, (30_000, of("d", 'd', 1700, -1))].into();
        let column = |oid, modifier| ColumnType { oid, modifier };
        assert_eq!(
            written(&source, column(20_001, -1)).as_deref(),
            Some("e d -1/d d -1/n b 655366/")
        );
        assert_eq!(
            written(&source, column(3906, -1)).as_deref(),
            Some("numrange r -1/n b -1/")
        );
        // A domain of the same name over something else.
        let theirs = written(&source, column(20_000, -1));
        assert_ne!(theirs, written(&target, column(30_000, -1)));
        // A modifier, a type without a row, and a domain over itself.
        let (plain, small) = (column(1700, -1), column(1700, 7));
        assert_ne!(written(&source, plain), written(&target, small));
        assert_eq!(written(&source, plain), written(&target, plain));
        assert_eq!(written(&target, column(20_004, -1)), None);
        assert_eq!(written(&source, column(20_002, -1)), None);
        assert_eq!(bottom(&source, column(20_001, -1)), column(1700, 655_366));
        assert_eq!(bottom(&source, small), small);
    }
}
