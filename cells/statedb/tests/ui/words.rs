//! Unknown attribute items, known ones in wrong places, invalid values.

use serde::Serialize;
use statedb::Table;

//~ `#[table]` knows no `nme`; did you mean `name`?
//~ the table has no name: write `#[table(name = "..")]`
#[derive(Serialize, Table)]
#[table(nme = "slip")]
struct Slip {
    #[primary]
    id: u8,
}

//~ `#[index]` knows no `uniqe`; did you mean `unique`?
//~ `#[index]` knows no `sorted`; there are unique, multi, lpm, name
//~ `#[column]` knows no `skipp`; did you mean `skip`?
//~ `#[primary]` knows no `unique`; there are name
//~ write what belongs to it in parentheses: `#[column(..)]`
//~ `#[index]` takes no text here
#[derive(Serialize, Table)]
#[table(name = "slips")]
struct Slips {
    #[primary(unique)]
    id: u8,
    #[index(uniqe)]
    a: u8,
    #[index(sorted)]
    #[column(skipp)]
    b: u8,
    #[column = "C"]
    c: u8,
    #[index("D")]
    d: u8,
}

//~ `#[index]` belongs on a field
//~ `#[table]` belongs on the struct
#[derive(Serialize, Table)]
#[table(name = "places")]
#[index(unique)]
struct Places {
    #[primary]
    #[table(name = "x")]
    id: u8,
}

//~ names of tables are a lower-case letter, then up to 30 of a-z, 0-9, `-`, `_`
//~ names of indexes are not empty, not `primary`, and do not begin with `__`
//~ two indexes are named `a`: give one another by `name = ".."`
//~ two columns are headed `A`: give one another by `#[column("..")]`
#[derive(Serialize, Table)]
#[table(name = "My Table")]
struct Names {
    #[primary]
    id: u8,
    #[index]
    a: u8,
    #[index(name = "a")]
    #[column("A")]
    b: u8,
    #[index(name = "__c")]
    c: u8,
}

fn main() {}
