//! Which types may be copied in the binary format.
//!
//! Some binary values name objects by their OIDs, which differ between two servers: arrays and
//! rows name their elements' types, `regclass` and its like are nothing but OIDs. Types that are
//! not built in may differ between versions of their extension, so they go as text, which is what
//! pg_dump would do.

use std::collections::HashMap;

/// OIDs from here on are given by each server on its own.
const FIRST_OWN_OID: u32 = 16_384;

/// Built-in types whose binary form says less than its text, or something else on another server:
/// regproc, regconfig, regdictionary, regprocedure, regoper, regoperator, regclass, regtype,
/// regnamespace, regrole, regcollation, and money, whose fraction depends on `lc_monetary`.
const TEXT_ONLY: [u32; 12] = [
    24, 3734, 3769, 2202, 2203, 2204, 2205, 2206, 4089, 4096, 4191, 790,
];

/// A type as the catalog has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type {
    /// `pg_type.typtype`.
    pub kind: char,
    /// The type can be sent and received in the binary format.
    pub has_binary: bool,
    /// The type of an array's elements, 0 if it is no array.
    pub element: u32,
    /// A domain's base type or a range's subtype, 0 for others.
    pub base: u32,
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

fn built_in(oid: u32) -> bool {
    oid < FIRST_OWN_OID && !TEXT_ONLY.contains(&oid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_the_same_on_both_goes_binary() {
        let of = |kind, element, base| Type {
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
}
