//! Types that cannot be rows.

use serde::Serialize;
use statedb::Table;

//~ the rows of a table are structs with named fields; `Tuple` is a tuple: give its fields names
#[derive(Serialize, Table)]
#[table(name = "tuple")]
struct Tuple(u32);

//~ `Unit` is empty
#[derive(Serialize, Table)]
#[table(name = "unit")]
struct Unit;

//~ `Choice` is an enum: make a struct with a key and the enum
#[derive(Serialize, Table)]
#[table(name = "choice")]
enum Choice {
    A,
}

//~ a table is of one type: take the parameters out, or implement `statedb::TableSpec` by hand
#[derive(Serialize, Table)]
#[table(name = "generic")]
struct Generic<T> {
    #[primary]
    id: u32,
    value: T,
}

fn main() {}
