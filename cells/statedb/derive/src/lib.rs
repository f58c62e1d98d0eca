//! The derive macro of statedb: Table.
//!
//! It is re-exported by the `statedb` crate; see there for its use.

mod attributes;
mod emit;
mod shape;
mod spec;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct the row type of a table: implements `TableSpec`, declares its indexes, and adds a function for each
/// query. With the feature `untyped` of `statedb` it implements `TableDisplay`, too, which needs `Serialize`.
///
/// On the struct, `#[table(..)]` takes:
/// - `name = "devices"`, required: the table's name
/// - `primary(table, dst)`: the primary key is these fields, two to four, in this order; with `name = ".."` as
///   [below](#on-fields)
/// - `index(BY_FLAGS)`: an index that is declared by hand, an `Index` in scope; several are separated by commas
/// - `insertable`: tools may insert rows (`AnyTable::edit`); the struct implements `Deserialize`
/// - `crate = "facade::statedb"`: the path to the library, in a crate that has it under another one than `::statedb`
/// - `no_display`: no `TableDisplay`, for a table that is never listed for tools; the struct need not implement
///   `Serialize`
///
/// # On fields
/// - `#[primary]`: the primary key. `#[primary(name = "id")]` sets an additional name for untyped queries
/// - `#[index]`: an index by this field. A row may share its key with others
/// - `#[index(unique)]`: no two rows share a key; only the fallible operations compile for such a table
/// - `#[index(multi)]`: a key for each item of a collection, for each key of a map, none for `None`
/// - `#[index(lpm)]`: prefixes, such as networks; a query finds the longest one that covers a key; also unique, or
///   multi
/// - `#[index(name = "link")]`: the name in untyped queries, by default the field's name
/// - `#[column("MTU")]`: the column's heading, by default the field's name in Pascal case, such as `LinkIndex`
/// - `#[column(with = path)]`: the function that returns the column's value (`Display`) for a reference to the field;
///   by default the field itself is displayed, `None` as an empty text, lists joined by `, `, maps as `key=value`
/// - `#[column(skip)]`: no column
///
/// # Queries
/// - `T::by_name(..)` for each index, and for the primary key if it is one field; `T::by_primary(..)` if it is several
/// - `T::by_name_prefix("et")` where the key is a string
/// - `T::by_cidr(address)` for the longest prefix that covers it, `T::by_cidr_inside(network)` for those inside a network
/// - `T::by_table(..)`, `T::by_table_link(..)` for the leading fields of a key of several fields, unless an index has
///   that name
///
/// Strings of any kind are passed as `&str`, numbers and addresses by value, other types either way.
/// The indexes themselves are private constants, `T::BY_NAME`.
#[proc_macro_derive(Table, attributes(table, primary, index, column))]
pub fn table(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let expanded = match spec::Spec::of(&input) {
        Ok(spec) => emit::scope(&input.attrs, &emit::table(&spec)),
        Err(error) => {
            let placeholder = emit::scope(&input.attrs, &emit::placeholder(&input));
            [error.into_compile_error(), placeholder].into_iter().collect()
        }
    };
    expanded.into()
}
