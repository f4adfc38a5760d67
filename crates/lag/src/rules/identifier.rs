//! Names as SQL takes them, for remedies.

/// The keywords of PostgreSQL 15 to 18 that are no names unless they are quoted. A server whose version does
/// not have one of them takes it quoted, too.
const KEYWORDS: &str = "all analyse analyze and any array as asc asymmetric authorization between bigint binary \
     bit boolean both case cast char character check coalesce collate collation column \
     concurrently constraint create cross current_catalog current_date current_role \
     current_schema current_time current_timestamp current_user dec decimal default \
     deferrable desc distinct do else end except exists extract false fetch float for foreign \
     freeze from full grant greatest group grouping having ilike in initially inner inout int \
     integer intersect interval into is isnull join json json_array json_arrayagg json_exists \
     json_object json_objectagg json_query json_scalar json_serialize json_table json_value \
     lateral leading least left like limit localtime localtimestamp merge_action national \
     natural nchar none normalize not notnull null nullif numeric offset on only or order out \
     outer overlaps overlay placing position precision primary real references returning \
     right row select session_user setof similar smallint some substring symmetric \
     system_user table tablesample then time timestamp to trailing treat trim true union \
     unique user using values varchar variadic verbose when where window with xmlattributes \
     xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot \
     xmlserialize xmltable";

/// A name as `quote_ident()` writes it: quoted only if necessary.
pub fn identifier(name: &str) -> String {
    let plain = |(at, c): (usize, char)| {
        c == '_' || c.is_ascii_lowercase() || (at > 0 && c.is_ascii_digit())
    };
    let is_plain = !name.is_empty() && name.chars().enumerate().all(plain);
    match is_plain && !KEYWORDS.split(' ').any(|keyword| keyword == name) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}
