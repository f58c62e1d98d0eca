//! The derive macro of statedb: Table.
//!
//! It is re-exported by the `statedb` crate, whose documentation shows its use.

mod attributes;
mod emit;
mod shape;
mod spec;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// A struct whose values are the rows of a table: implements `TableSpec`, declares its indexes, and adds a function for
/// each query.
///
/// On the struct, `#[table(..)]` takes:
/// - `name = "devices"`, required: the table's name, as the shell and HTTP know it
/// - `primary(table, dst)`: the primary key is these fields, two to four, in this order; with `name = ".."` as
///   [below](#on-fields)
/// - `index(BY_FLAGS)`: an index that is declared by hand, an `Index` in scope; several are separated by commas
/// - `insertable`: rows may be written by hand (`db/insert`); the struct implements `Deserialize`
///
/// # On fields
/// - `#[primary]`: the primary key. `#[primary(name = "id")]` is what untyped queries may call it
/// - `#[index]`: an index by this field. A row may share its key with others
/// - `#[index(unique)]`: no two rows share a key; only the fallible operations compile for such a table
/// - `#[index(multi)]`: a key for each item of a collection, for each key of a map, none for `None`
/// - `#[index(lpm)]`: prefixes, such as networks, asked for the longest one that covers a key; also unique, or multi
/// - `#[index(name = "link")]`: what untyped queries call it, otherwise the field's name
/// - `#[column("MTU")]`: the column's heading, otherwise the field's name as `LinkIndex`
/// - `#[column(with = path)]`: what the column shows, a function of a reference to the field that gives something to
///   display; otherwise fields are displayed as they are, `None` as nothing, lists joined by `, `, maps as `key=value`
/// - `#[column(skip)]`: no column
///
/// # Queries
/// - `T::by_name(..)` for each index, and for the primary key if it is one field; `T::by_primary(..)` if it is several
/// - `T::by_name_prefix("et")` where the key is a string
/// - `T::by_cidr(address)` for the longest prefix that covers it, `T::by_cidr_inside(network)` for those inside a network
/// - `T::by_table(..)`, `T::by_table_link(..)` for rows whose key of several fields begins so, unless an index has that name
///
/// Strings of any kind are given as `&str`, numbers and addresses by value, other types either way.
/// The indexes themselves are private constants, `T::BY_NAME`.
#[proc_macro_derive(Table, attributes(table, primary, index, column))]
pub fn table(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    match spec::Spec::of(&input) {
        Ok(spec) => emit::table(&spec).into(),
        Err(error) => [error.into_compile_error(), emit::stub(&input)]
            .into_iter()
            .collect::<proc_macro2::TokenStream>()
            .into(),
    }
}
