//! Fields with types that their attributes do not support.

use serde::Serialize;
use statedb::Table;

#[derive(Serialize)]
struct Opaque(f32);

//~ a collection has a key for each of its items: write `#[index(multi)]`
#[derive(Serialize, Table)]
#[table(name = "lists")]
struct Lists {
    #[primary]
    id: u32,
    #[index]
    names: Vec<String>,
}

//~ `multi` is for collections, maps and options
#[derive(Serialize, Table)]
#[table(name = "one")]
struct One {
    #[primary]
    id: u32,
    #[index(multi)]
    name: String,
}

// At the field, with the remedy beside.
//~ `Opaque` doesn't implement `std::fmt::Display`
//~ value: Opaque,
//~ remedy: `#[column(with = function)]` or `#[column(skip)]`
#[derive(Serialize, Table)]
#[table(name = "shown")]
struct Shown {
    #[primary]
    id: u32,
    value: Opaque,
}

//~ `Opaque` cannot be a key of an index
//~ implement `statedb::IndexKey` for it by delegating to its parts
#[derive(Serialize, Table)]
#[table(name = "keyed")]
struct Keyed {
    #[primary]
    id: u32,
    #[index]
    #[column(skip)]
    key: Opaque,
}

//~ remedy: `#[derive(Deserialize)] #[serde(default)]`, for `#[table(insertable)]`
#[derive(Serialize, Table)]
#[table(name = "given", insertable)]
struct Given {
    #[primary]
    id: u32,
}

fn main() {}
