//! Invalid primary keys: missing, duplicate, of an unsupported kind, of fields that do not exist.
//!
//! An invalid struct still gets an implementation, so that its users cause no further errors.
//!~ the trait bound

use serde::Serialize;
use statedb::{Db, Table};

//~ `NoKey` has no primary key: mark the field that tells rows apart with `#[primary]`
#[derive(Serialize, Table)]
#[table(name = "no-key")]
struct NoKey {
    name: String,
}

//~ a second primary key; for one of several fields write `#[table(primary(index, name))]`
#[derive(Serialize, Table)]
#[table(name = "two")]
struct Two {
    #[primary]
    index: u32,
    #[primary]
    name: String,
}

//~ the primary key is said in `#[table(primary(..))]` already
#[derive(Serialize, Table)]
#[table(name = "both", primary(index, name))]
struct Both {
    #[primary]
    index: u32,
    name: String,
}

//~ `Misspelled` has no field `indx`; did you mean `index`?
#[derive(Serialize, Table)]
#[table(name = "misspelled", primary(indx, name))]
struct Misspelled {
    index: u32,
    name: String,
}

//~ `primary(..)` on the struct names two to 4 fields; for one write `#[primary]` on the field
#[derive(Serialize, Table)]
#[table(name = "single", primary(name))]
struct Single {
    name: String,
}

//~ a primary key tells rows apart, a longest match does not: mark it `#[primary]`, and add `#[index(lpm)]`
#[derive(Serialize, Table)]
#[table(name = "longest")]
struct Longest {
    #[primary(lpm)]
    prefix: String,
}

fn main() {
    let _ = Db::new().table::<NoKey>();
}
